"""Packets between a pool and an environment process: a small one each way per command.

setup      pool → process, once, JSON                        what to make, and where its rows lie
commands   pool → process, one `Command` per environment     what to do; arrays hold the actions and seeds
reply      process → pool, one `Kind` per environment        what came of it; arrays hold the rest,
                           + JSON when there is more to say  endings of episodes, texts of failures
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

TASK_BYTES = 128
"""Longest name of a task, UTF-8."""
MAX_FRAME_BYTES = 2**17
"""Longest packet; below the send buffer that Linux gives a socket."""


FAILURES = {
    "exception": "the environment raised",
    "error": 'it said so in info["error"]',
    "contract": "it returned what it must not: a wrong shape or dtype, a reward that is not finite",
    "exit": "its process ended, by itself or by a signal",
    "hang": "a start, reset or step took longer than it may",
    "memory": "its process took more memory than it may",
}
"""The kinds of failures: what can become of an environment."""
FOR_MEMORY = "just after the kernel killed something for want of memory"


class Command(IntEnum):
    """A command for an environment."""

    NONE = 0
    STEP = 1
    RESET = 2
    MAKE = 3
    REMAKE = 4
    """Close what is left of it, make it anew, reset."""


class Kind(IntEnum):
    """The outcome of a command."""

    NONE = 0
    """Nothing to report."""
    RESET = 1
    """The first observation of an episode is there."""
    STEP = 2
    """The step's results are there."""
    FAILED = 3
    """The environment failed, and its episode is lost."""


@dataclass(frozen=True)
class EpisodeEnd:
    """An environment's report of an episode that it finished; of one that begins, its task, if it has one."""

    metrics: Mapping[str, float] = field(default_factory=dict)
    """`info["metrics"]` of the last step."""
    task: str = ""
    """`info["task"]` of the last step, or else of the reset."""


class Failure(NamedTuple):
    """Why an episode was lost."""

    kind: str
    """One of `FAILURES`: what is counted."""
    text: str
    """For people: a traceback, or what the process did."""
    rss_bytes: Sequence[int] = ()
    """Memory of its process and all that this has started, the latest last."""


@dataclass(frozen=True)
class Reply:
    """The report of a process's environments. Keys count its environments from 0."""

    kinds: bytes
    """One `Kind` per environment."""
    endings: Mapping[int, EpisodeEnd] = field(default_factory=dict)
    failures: Mapping[int, Failure] = field(default_factory=dict)

    def pack(self) -> bytes:
        """Returns the packet."""
        if not self.endings and not self.failures:
            return self.kinds
        endings = {index: asdict(ending) for index, ending in self.endings.items()}
        frame = self.kinds + json.dumps({"endings": endings, "failures": self.failures}).encode()
        if len(frame) > MAX_FRAME_BYTES:
            raise ValueError(f"the environments report {len(frame)} bytes of metrics; {MAX_FRAME_BYTES} are allowed")
        return frame


def unpack_reply(frame: bytes, count: int) -> Reply:
    """Inverts `Reply.pack`, for a process of `count` environments."""
    if len(frame) == count:
        return Reply(kinds=frame)
    data = json.loads(frame[count:])
    return Reply(
        kinds=frame[:count],
        endings={int(index): EpisodeEnd(**ending) for index, ending in data["endings"].items()},
        failures={int(index): Failure(*failure) for index, failure in data["failures"].items()},
    )


@dataclass(frozen=True)
class Setup:
    """The setup of an environment process."""

    config: Mapping[str, Any]
    """The section `env` of the configuration."""
    schema: Mapping[str, Any]
    """The run's schema as plain data: see `spaces.schema_of`."""
    num_slots: int
    """Slots of the whole pool."""
    slots: range
    """Those of this process."""
    memory: int
    """File descriptor of the pool's arrays."""
    import_path: Sequence[str]
    """Search path for modules besides the interpreter's own places."""
    frame_shape: Sequence[int] | None = None
    """[height, width, 3] of the frames that environments render when they are filmed; None where none does."""
    index: int = 0
    """Of this process among the pool's."""
    processes: int = 1
    """Number of slots of the pool."""
    discount: float = 1.0
    """γ between the environment's own steps within a step."""

    def pack(self) -> bytes:
        """Returns the packet."""
        slots = [self.slots.start, self.slots.stop]
        return json.dumps(dict(vars(self), slots=slots)).encode()


def unpack_setup(frame: bytes) -> Setup:
    """Inverts `Setup.pack`."""
    data = json.loads(frame)
    return Setup(**dict(data, slots=range(*data["slots"])))

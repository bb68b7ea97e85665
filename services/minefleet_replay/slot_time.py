"""What the slots of actors spend their time on, as the learner is told of it. In memory: it is a rate, not an account.

An incarnation that is heard of for the first time only says where it stands, so nothing is counted twice after replay
or an actor has started anew.
"""

import math
from collections.abc import Mapping

from minefleet.errors import RejectedError
from minefleet.v1 import replay_service_pb2
from minefleet_replay.progress import MAX_ACTORS

SlotSeconds = replay_service_pb2.SlotSeconds

KINDS = tuple(SlotSeconds.DESCRIPTOR.fields_by_name)


class SlotTime:
    """Seconds by what they went to, summed over all actors since this process started. Not thread-safe."""

    def __init__(self, max_actors: int = MAX_ACTORS) -> None:
        self._max_actors = max_actors
        self._known: dict[str, Mapping[str, float]] = {}
        self._total = dict.fromkeys(KINDS, 0.0)

    def take(self, actor: str, seconds: SlotSeconds) -> None:
        """Takes what an actor has come to, which never goes back.

        Raises:
            RejectedError: If it is no time.
        """
        now = {kind: getattr(seconds, kind) for kind in KINDS}
        if not all(math.isfinite(value) and value >= 0 for value in now.values()):
            raise RejectedError(f"slot_seconds are finite and >= 0, got {now}")
        before = self._known.pop(actor, now)
        self._known[actor] = now
        if len(self._known) > self._max_actors:
            del self._known[next(iter(self._known))]
        for kind in KINDS:
            self._total[kind] += max(0.0, now[kind] - before[kind])

    @property
    def total(self) -> SlotSeconds:
        """The sums."""
        return SlotSeconds(**self._total)

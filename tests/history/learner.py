"""A learner without a policy, which keeps a history.

As the real one, it opens a higher
epoch at every start, goes on from its checkpoint, publishes above all that was published, holds one lease ahead, and
publishes before it acks and acks before it writes a checkpoint. When it is fenced it tries all it can, and ends.
"""

import json
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from typing import Any

from tests.history.driver import EXIT_FENCED, RUN_ID, Setting, set_up, weights
from tests.history.survey import digest_of

from minefleet.errors import FencedError
from minefleet.files import write_whole
from minefleet.parameters import ParametersClient
from minefleet.replay import Position, ReplayClient
from minefleet.rpc import StoppedError
from minefleet.v1 import status_service_pb2

LEASE_WAIT_S = 0.5
EPISODES_PER_PAGE = 50
REMEMBERED = 64
"""Acked leases that may be acked again; replay remembers 256."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Checkpoint:
    """What a learner goes on from."""

    epoch: int = 0
    version: int = 0
    cursor: int = 0


class Learner:
    """The loop."""

    def __init__(self, setting: Setting, replay: ReplayClient, parameters: ParametersClient) -> None:
        config = setting.run.config
        self._rng = setting.rng
        self._recorder = setting.recorder
        self._stopping = setting.stopping
        self._replay = replay
        self._parameters = parameters
        self._path = setting.run.directory / "checkpoint.json"
        self._fragments = config.train_config.fragments_per_iteration
        self._thread = ThreadPoolExecutor(1, "ahead")
        self._next: Future[int] | None = None
        self._numbers = 0
        self._open: set[int] = set()
        self._acked: deque[tuple[int, int]] = deque(maxlen=REMEMBERED)
        self._state = Checkpoint()

    def run(self) -> None:
        """Trains until stopped."""
        self._start()
        while not self._stopping.is_set():
            self._iterate()

    def close(self) -> None:
        """Gives back what is open."""
        self._thread.shutdown(cancel_futures=True)
        for number in sorted(self._open):
            with suppress(FencedError, StoppedError):
                self._close_lease("release", self._replay.release, number)

    def defy(self) -> None:
        """Tries all that a fenced learner must not do."""
        self._thread.shutdown(cancel_futures=True)
        number, self._numbers = self._numbers, self._numbers + 1
        attempts: list[Callable[[], object]] = [
            self._publish,
            lambda: self._lease_once(self._numbers, self._state.version),
            lambda: self._read(number),
            lambda: self._close_lease("ack", self._replay.ack, number, used_at=self._state.version),
            lambda: self._close_lease("release", self._replay.release, number),
            self._read_episodes,
        ]
        for attempt in attempts:
            with suppress(FencedError):
                attempt()

    def _start(self) -> None:
        if self._path.exists():
            self._state = Checkpoint(**json.loads(self._path.read_text()))
        resumed = self._state
        with self._recorder.call("open_epoch", epoch=resumed.epoch, version=resumed.version) as answer:
            opened = self._parameters.open_epoch(RUN_ID, resumed.epoch, resumed.version)
            answer |= {"epoch": opened.epoch, "newest": opened.newest_version}
        position = Position(run_id=RUN_ID, epoch=opened.epoch, resumed_version=resumed.version)
        self._replay.position = position
        self._state = replace(resumed, epoch=opened.epoch, version=opened.newest_version)
        self._publish()

    def _iterate(self) -> None:
        number, version = self._take(self._state.version), self._state.version
        self._stopping.wait(self._rng.uniform(0.0, 0.04))
        if self._rng.random() < 0.05:
            self._close_lease("release", self._replay.release, number)
            return
        self._publish()
        self._ack(number, version)
        if self._rng.random() < 0.3:
            self._ack(*self._rng.choice(self._acked))
        self._read_episodes()
        if self._rng.random() < 0.5:
            write_whole(self._path, json.dumps(asdict(self._state)))

    def _ack(self, number: int, used_at: int) -> None:
        self._close_lease("ack", self._replay.ack, number, used_at=used_at)
        self._acked.append((number, used_at))

    def _take(self, version: int) -> int:
        """Returns a lease to use at `version`, and fetches the next."""
        leased = self._next or self._thread.submit(self._fetch, version)
        number = leased.result()
        self._next = self._thread.submit(self._fetch, version + 1)
        return number

    def _fetch(self, use_version: int) -> int:
        self._numbers += 1
        number = self._numbers
        while not self._lease_once(number, use_version):
            if self._stopping.is_set():
                raise StoppedError("stopped while waiting for fragments")
        self._open.add(number)
        if self._rng.random() < 0.1:
            self._lease_once(number, use_version)
        for _ in range(self._rng.choice([1] * 9 + [2])):
            self._read(number)
        return number

    def _publish(self) -> None:
        state, position = self._state, self._replay.position
        with self._recorder.call("publish", epoch=state.epoch, version=state.version) as answer:
            answer["version"] = self._parameters.publish(weights(state.version + 1), iteration=state.version)
        version = answer["version"]
        self._state = replace(state, version=version)
        self._replay.position = replace(position, version=version, first_version=position.first_version or version)

    def _lease_once(self, number: int, use_version: int) -> bool:
        with self._asking("lease", lease=number, use_version=use_version) as answer:
            lease = self._replay.lease(number, fragments=self._fragments, use_version=use_version, wait_s=LEASE_WAIT_S)
            answer["env_steps"] = lease.env_steps
            answer["chunks"] = [
                (chunk.stream, chunk.chunk, chunk.fragments, chunk.uses, chunk.oldest_version) for chunk in lease.chunks
            ]
        return bool(lease.chunks)

    def _read(self, number: int) -> None:
        with self._asking("read", lease=number) as answer:
            answer["fragments"] = [
                (header.name.stream, header.name.sequence, digest_of(payload))
                for header, payload in self._replay.read(number)
            ]

    def _close_lease(self, kind: str, close: Callable[[int], int | None], number: int, **asked: int) -> None:
        self._open.discard(number)
        with self._asking(kind, lease=number, **asked) as answer:
            answer["env_steps"] = close(number)

    def _read_episodes(self) -> None:
        cursor, full = self._state.cursor, True
        while full:
            with self._asking("read_episodes", cursor=cursor) as answer:
                page = self._replay.read_episodes(cursor, EPISODES_PER_PAGE)
                answer["episodes"] = [(record.stream, record.episode) for record in page.episodes]
                answer["next"] = page.next_cursor
            cursor, full = page.next_cursor, len(page.episodes) == EPISODES_PER_PAGE
        self._state = replace(self._state, cursor=cursor)

    @contextmanager
    def _asking(self, kind: str, **asked: int) -> Iterator[dict[str, Any]]:
        """Records a call to replay with who makes it."""
        position = self._replay.position
        with self._recorder.call(kind, epoch=position.epoch, version=position.version, **asked) as answer:
            yield answer


def main() -> int:
    """Trains until SIGTERM, or until a newer learner has taken over."""
    setting = set_up()
    services, identity = setting.run.config.services, setting.run.identity(status_service_pb2.ROLE_LEARNER)
    replay = ReplayClient(services.replay[0].address, identity=identity, stopping=setting.stopping)
    parameters = ParametersClient(services.parameters.address, identity=identity, stopping=setting.stopping)
    learner = Learner(setting, replay, parameters)
    try:
        learner.run()
    except StoppedError:
        pass
    except FencedError:
        learner.defy()
        return EXIT_FENCED
    finally:
        setting.stopping.set()
    learner.close()
    replay.close()
    parameters.close()
    return 0

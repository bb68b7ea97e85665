"""An actor without environments, which keeps a history.

One thread follows parameters; the
other asks for chunks, makes fragments that tell their names, and appends them.
"""

import threading
from collections import deque
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass

from tests.history.driver import RUN_ID, Setting, set_up
from tests.history.history import Made

from minefleet.codec import checksum
from minefleet.errors import ConflictError, RejectedError
from minefleet.parameters import ParametersClient
from minefleet.replay import Position, ReplayClient
from minefleet.rpc import PIECE_BYTES, StoppedError
from minefleet.v1 import episode_pb2, fragment_pb2, replay_service_pb2, status_service_pb2, tensor_pb2

SLOTS = 2
STEPS = 64
REMEMBERED = 8
"""Sent fragments that may be sent again; replay remembers the checksums of 16 per stream."""

Packed = tuple[fragment_pb2.FragmentHeader, bytes]


@dataclass(slots=True)
class Slot:
    """One environment, as it were."""

    number: int
    generation: int = 0
    sequence: int = 0
    episodes: int = 0

    def renew(self) -> None:
        """Begins the next stream."""
        self.generation, self.sequence, self.episodes = self.generation + 1, 0, 0


class Weights(threading.Thread):
    """Follows the versions."""

    def __init__(self, parameters: ParametersClient) -> None:
        super().__init__(name="weights")
        self._parameters = parameters
        self.version = 0
        self.arrived = threading.Event()

    def run(self) -> None:
        with suppress(StoppedError):
            for info in self._parameters.watch():
                self.version = info.version
                self.arrived.set()
        self.arrived.set()


class Actor:
    """The loop."""

    def __init__(self, setting: Setting, replay: ReplayClient, weights: Weights) -> None:
        self._setting = setting
        self._rng = setting.rng
        self._recorder = setting.recorder
        self._replay = replay
        self._weights = weights
        self._per_chunk = setting.run.config.rollout_config.replay_buffer_config.fragments_per_chunk
        self._slots = [Slot(number) for number in range(SLOTS)]
        self._pending: deque[Packed] = deque()
        self._sent: deque[Packed] = deque(maxlen=REMEMBERED)
        self._episodes: list[episode_pb2.EpisodeRecord] = []
        self._told: deque[episode_pb2.EpisodeRecord] = deque(maxlen=REMEMBERED)
        self._env_steps = 0

    def run(self) -> None:
        """Plays until stopped."""
        self._weights.arrived.wait()
        while not self._setting.stopping.is_set():
            retry_after_s = self._make()
            while self._pending and self._rng.random() < 0.8:
                self._send()
            self._trouble()
            self._setting.stopping.wait(retry_after_s)

    def _make(self) -> float:
        """Makes the chunks that are granted. Returns when to ask again."""
        version, names = self._weights.version, [(self._stream(slot), self._chunk(slot)) for slot in self._slots]
        with self._recorder.call("reserve", version=version, chunks=names) as answer:
            reservation = self._replay.reserve(version, names)
            answer |= {"granted": reservation.granted, "newest": reservation.newest_version}
        for slot, granted in zip(self._slots, reservation.granted, strict=True):
            if granted:
                self._make_chunk(slot)
        return 0.0 if any(reservation.granted) else reservation.retry_after_s

    def _make_chunk(self, slot: Slot) -> None:
        for _ in range(self._per_chunk):
            closes = self._rng.random() < 0.1
            self._pending.append(self._fragment(slot, closes))
            slot.sequence += 1
            self._env_steps += STEPS
            if self._rng.random() < 0.5:
                self._episodes.append(episode_pb2.EpisodeRecord(stream=self._stream(slot), episode=slot.episodes))
                slot.episodes += 1
            if closes:
                slot.renew()
                return

    def _fragment(self, slot: Slot, closes: bool) -> Packed:
        oldest = self._weights.version
        if self._rng.random() < 0.05:
            self._setting.stopping.wait(self._rng.uniform(0.0, 0.5))
        name = fragment_pb2.FragmentName(stream=self._stream(slot), sequence=slot.sequence)
        label = f"{name.stream}/{name.sequence}/{oldest}/".encode()
        return pack(
            fragment_pb2.FragmentHeader(
                run_id=RUN_ID,
                name=name,
                length=STEPS,
                oldest_version=oldest,
                newest_version=self._weights.version,
                schema_fingerprint=self._setting.run.schema.fingerprint,
                closes_stream=closes,
            ),
            label + self._rng.randbytes(self._size()),
        )

    def _send(self) -> None:
        batch = [self._pending.popleft() for _ in range(min(len(self._pending), self._rng.randint(1, 4)))]
        episodes, self._episodes = self._episodes, []
        self._append(batch, episodes)
        self._sent.extend(batch)
        self._told.extend(episodes)

    def _append(
        self, batch: Sequence[Packed], episodes: Collection[episode_pb2.EpisodeRecord] = (), bad: str = ""
    ) -> None:
        progress = replay_service_pb2.ActorProgress(actor=self._setting.name, env_steps=self._env_steps)
        with self._recorder.call(
            "append",
            fragments=[made_of(header) for header, _ in batch],
            episodes=[(record.stream, record.episode) for record in episodes],
            actor=self._setting.name,
            env_steps=self._env_steps,
            bad=bad,
        ) as answer:
            result = self._replay.append(batch, episodes=list(episodes), progress=progress)
            answer |= {"outcomes": result.outcomes, "newest": result.newest_version}

    def _trouble(self) -> None:
        """Sends again what was sent, other bytes under a known name, or bytes that do not fit their checksum."""
        if not self._sent or self._rng.random() < 0.7:
            return
        header, payload = self._rng.choice(self._sent)
        match self._rng.choice(["again", "again", "other bytes", "broken"]):
            case "again":
                self._append([(header, payload)], self._told)
            case "other bytes":
                with suppress(ConflictError):
                    self._append([pack(header, payload + b"!")], bad="other bytes")
            case "broken":
                broken = fragment_pb2.FragmentHeader.FromString(header.SerializeToString())
                broken.name.stream += "-broken"
                with suppress(RejectedError):
                    self._append([(broken, bytes(len(payload)))], bad="broken")

    def _stream(self, slot: Slot) -> str:
        return f"{self._setting.name}/{slot.number}/{slot.generation}"

    def _chunk(self, slot: Slot) -> int:
        return slot.sequence // self._per_chunk

    def _size(self) -> int:
        small, middle = self._rng.randrange(20_000), self._rng.randrange(300_000)
        large = self._rng.choice([PIECE_BYTES, 2 * PIECE_BYTES + 1, PIECE_BYTES + self._rng.randrange(PIECE_BYTES)])
        return self._rng.choices([small, middle, large], [85, 12, 3])[0]


def pack(header: fragment_pb2.FragmentHeader, payload: bytes) -> Packed:
    """Fits a copy of a header to a payload."""
    packed = fragment_pb2.FragmentHeader.FromString(header.SerializeToString())
    packed.checksum, packed.payload_bytes, packed.raw_bytes = checksum(payload), len(payload), len(payload)
    packed.ClearField("tensors")
    packed.tensors.add(
        name="recurrent_state",
        dtype=tensor_pb2.DTYPE_UINT8,
        shape=[len(payload)],
        codec=tensor_pb2.CODEC_NONE,
        packed_bytes=len(payload),
    )
    return packed, payload


def made_of(header: fragment_pb2.FragmentHeader) -> Made:
    """What the history says of a fragment."""
    return Made(
        stream=header.name.stream,
        sequence=header.name.sequence,
        oldest_version=header.oldest_version,
        newest_version=header.newest_version,
        digest=f"{header.checksum:016x}",
        closes_stream=header.closes_stream,
    )


def main() -> None:
    """Plays until SIGTERM."""
    setting = set_up()
    services, identity = setting.run.config.services, setting.run.identity(status_service_pb2.ROLE_ACTOR)
    parameters = ParametersClient(
        services.parameters.address, identity=identity, watcher=setting.name, stopping=setting.stopping
    )
    position = Position(run_id=RUN_ID)
    replay = ReplayClient(services.replay[0].address, identity=identity, position=position, stopping=setting.stopping)
    weights = Weights(parameters)
    weights.start()
    try:
        Actor(setting, replay, weights).run()
    except StoppedError:
        pass
    finally:
        setting.stopping.set()
        weights.join()
    replay.close()
    parameters.close()

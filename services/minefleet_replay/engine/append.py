"""Appends what actors send: fragments, episode records and their progress."""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from minefleet.core.errors import RejectedError
from minefleet.rpc.message_pieces import Piece
from minefleet.rpc.replay_types import Outcome
from minefleet.v1 import episode_pb2, fragment_pb2
from minefleet_replay.engine.memory_state import ReplayState
from minefleet_replay.engine.transaction import Transaction, TransactionManager
from minefleet_replay.state.actor_step_totals import NO_COUNTS, ActorCounts
from minefleet_replay.state.chunk import NO_LOCATION, Chunk
from minefleet_replay.state.deduplication import ChunkName, StreamNames
from minefleet_replay.state.ledger_totals import Reason, bucket_of
from minefleet_replay.state.step_fates_by_task import PLAYED
from minefleet_replay.state.task_curriculum import TaskSampler
from minefleet_replay.storage.row_codec import ACTOR, GONE_ACTORS, FragmentRow, names_row, number_key

logger = logging.getLogger(__name__)


@dataclass(kw_only=True, slots=True)
class FragmentUpload:
    """One fragment and records, all of it checked."""

    header: fragment_pb2.FragmentHeader | None = None
    pieces: list[Piece] = field(default_factory=list)
    """The fragment's payload, in pieces of `PIECE_BYTES`; the last one is shorter."""
    episodes: list[episode_pb2.EpisodeRecord] = field(default_factory=list)
    actor: str = ""
    """The incarnation that `progress` is of; empty when there is none."""
    progress: ActorCounts = NO_COUNTS


class AppendPath:
    """Appends what actors send. Not thread-safe."""

    def __init__(self, transactions: TransactionManager, clock: Callable[[], float]) -> None:
        self._transactions = transactions
        self._clock = clock

    @property
    def _sampler(self) -> TaskSampler | None:
        return self._transactions.sampler

    @property
    def _state(self) -> ReplayState:
        return self._transactions.state

    def append(self, upload: FragmentUpload) -> Outcome | None:
        """Stores what is new in an upload, as one change. Returns what becomes of its fragment, if it has one.

        Raises:
            ConflictError: If the fragment's name is known with other bytes.
            RejectedError: If its chunk was closed before it.
            OverloadedError: If there is no room, or the store would stall.
        """
        outcome, reason = self._judge(upload.header) if upload.header is not None else (None, None)
        change, names = self._transactions.change(), dict[str, StreamNames]()
        if upload.header is not None and outcome != "duplicate":
            self._take_fragment(change, names, upload.header, upload.pieces, reason)
        self._take_episodes(change, names, upload.episodes)
        self._take_progress(change, upload.actor, upload.progress)
        self._take_names(change, names)
        if change.effects:
            self._transactions.commit(change)
        if upload.header is not None and outcome is not None:
            self._count(outcome, upload.header)
        return outcome

    def _judge(self, header: fragment_pb2.FragmentHeader) -> tuple[Outcome, Reason | None]:
        """Decides what becomes of a fragment, and why it expires if it does; makes room for it if it is stored."""
        name = ChunkName(header.name.stream, header.chunk)
        if self._state.names[name.stream].knows_fragment(header.name.sequence, header.checksum):
            return "duplicate", None
        reason = self._reason_to_refuse(name, header)
        if reason is not None:
            return "expired", reason
        chunk = self._state.index.find(name)
        self._transactions.make_room(header.length, header.payload_bytes, header.ByteSize(), chunk)
        return "stored", None

    def _reason_to_refuse(self, name: ChunkName, header: fragment_pb2.FragmentHeader) -> Reason | None:
        """Why a fragment could not be used, if it could not."""
        chunk = self._state.index.find(name)
        if chunk is not None and chunk.whole:
            raise RejectedError(
                f"chunk {name.number} of stream {name.stream} was closed before fragment {header.name.sequence}"
            )
        if self._state.is_stale(header.oldest_version):
            return "stale"
        if self._state.run_state.is_abandoned(header.oldest_version, header.newest_version):
            return "abandoned"
        return "late" if chunk is None and self._state.is_begun(name) else None

    def _take_fragment(
        self,
        change: Transaction,
        names: dict[str, StreamNames],
        header: fragment_pb2.FragmentHeader,
        pieces: list[Piece],
        reason: Reason | None,
    ) -> None:
        stream, sequence, number = header.name.stream, header.name.sequence, self._state.ledger.appended
        names[stream] = self._state.names[stream].with_fragment(sequence, header.chunk, header.checksum, number)
        name = ChunkName(stream, header.chunk)
        meta = FragmentRow.of(
            number, header, NO_LOCATION if reason is not None else self._transactions.payloads.write(pieces)
        )
        change.then(partial(self._transactions.count, stream, [meta.fragment], PLAYED))
        if reason is None:
            self._store(change, name, meta)
        else:
            self._expire(change, name, meta, reason)

    def _store(self, change: Transaction, name: ChunkName, meta: FragmentRow) -> None:
        change.put("meta", number_key(meta.fragment.number), meta.to_row())
        change.ledger = change.ledger.added("live", meta.fragment.steps)
        change.then(partial(self._add, name, meta))

    def _add(self, name: ChunkName, meta: FragmentRow) -> None:
        self._transactions.payloads.hold(meta.fragment.place.file)
        began_at = self._transactions.streams.began_at(name, self._clock())
        chunk = self._state.index.add(name, meta.fragment, began_at)
        if chunk.whole:
            self._transactions.end_chunk(name)
        else:
            missing_steps = max(0, self._state.limits.chunk_steps - chunk.steps)
            self._transactions.pacing.begin(name, meta.fragment.steps, missing_steps, self._clock())

    def _expire(self, change: Transaction, name: ChunkName, meta: FragmentRow, reason: Reason) -> None:
        """Drops a fragment on arrival, and with it what there is of its chunk, which can never be whole now."""
        change.ledger = change.ledger.added(bucket_of(reason, 0), meta.fragment.steps)
        self._transactions.explain(change, name, [meta.fragment], reason)
        chunk: Chunk | None = self._state.index.find(name)
        if chunk is not None:
            self._transactions.drop(change, chunk, reason, chunk.uses)
        change.then(partial(self._transactions.end_chunk, name))

    def _take_episodes(
        self, change: Transaction, names: dict[str, StreamNames], episodes: list[episode_pb2.EpisodeRecord]
    ) -> None:
        number = self._state.next_episode
        for record in episodes:
            known = names.get(record.stream, self._state.names[record.stream])
            if not known.knows_episode(record.episode):
                names[record.stream] = known.with_episode(record.episode, change.ledger.appended)
                change.put("episodes", number_key(number), record.SerializeToString())
                number += 1
                success = record.metrics.get("success")
                if self._sampler is not None and success is not None and not (record.failure or record.evaluation):
                    change.then(partial(self._sampler.record, record.task, success))
        if number > self._state.next_episode:
            change.then(partial(self._transactions.metrics.episodes.inc, number - self._state.next_episode))
            change.then(partial(setattr, self._state, "next_episode", number))

    def _take_progress(self, change: Transaction, actor: str, progress: ActorCounts) -> None:
        known = self._state.progress[actor]
        joined = known.joined(progress)
        if not actor or joined == known:
            return
        gone = self._state.progress.surplus(actor)
        if gone is not None:
            change.delete("system", ACTOR + gone.encode())
            change.put("system", GONE_ACTORS, self._state.progress.gone.plus(self._state.progress[gone]).to_row())
            change.then(partial(self._state.progress.fold, gone))
        change.put("system", ACTOR + actor.encode(), joined.to_row())
        change.then(partial(self._state.progress.take, actor, joined))

    def _take_names(self, change: Transaction, names: dict[str, StreamNames]) -> None:
        newcomers = sum(stream not in self._state.names for stream in names)
        for stream in list(self._state.names.surplus(newcomers)):
            change.delete("names", stream.encode())
            change.then(partial(self._state.names.forget, stream))
        for stream, known in names.items():
            change.put("names", stream.encode(), names_row(known))
            change.then(partial(self._state.names.remember, stream, known))

    def _count(self, outcome: Outcome, header: fragment_pb2.FragmentHeader) -> None:
        metrics, every = self._transactions.metrics, self._state.limits.steps_per_report
        metrics.appended.labels(outcome).inc()
        if outcome == "stored":
            metrics.payload_bytes.inc(header.payload_bytes)
            metrics.raw_bytes.inc(header.raw_bytes)
            self._transactions.stored_bytes += header.payload_bytes
            self._transactions.stored_raw_bytes += header.raw_bytes
        appended = self._state.ledger.steps.appended
        if every and outcome != "duplicate" and appended % every < header.length:
            logger.info("%s", self._state.ledger)

"""What replay allows: the part of the configuration that it works by."""

from dataclasses import dataclass

from minefleet.config.shards import fragments_per_iteration, share
from minefleet.run import Run
from minefleet_replay.budget import LARGEST_RECORDS, Budget
from minefleet_replay.names import MAX_STREAMS
from minefleet_replay.pacing import room_in_chunks


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """Named as in the configuration; of one shard where there are several."""

    fragments_per_iteration: int
    fragments_per_chunk: int
    max_chunks: int
    max_bytes: int
    max_reuse: int
    max_staleness: int
    grant_timeout_s: float
    fragments_per_report: int = 0
    paced: bool = True
    syncs_appends: bool = False
    """Whether an acked append survives power loss (`durability: host`)."""
    schema_fingerprint: str = ""
    """Fragments of another schema are refused."""
    episodes_kept: int = LARGEST_RECORDS
    """Episode records, the newest."""
    drops_kept: int = LARGEST_RECORDS
    """Appended fragments, counted back from the newest, whose departure can be explained."""
    shard: int = 0
    shards: int = 1
    streams_kept: int = MAX_STREAMS
    """Streams whose names are remembered: those heard of last."""

    @property
    def budget(self) -> Budget:
        """What follows from `max_bytes`."""
        return Budget(self.max_bytes)

    @property
    def chunks_per_iteration(self) -> int:
        """Chunks that one iteration needs."""
        return self.fragments_per_iteration // self.fragments_per_chunk

    @property
    def room_chunks(self) -> int:
        """Chunks that may exist or be under way."""
        return room_in_chunks(
            fragments_per_iteration=self.fragments_per_iteration,
            fragments_per_chunk=self.fragments_per_chunk,
            max_reuse=self.max_reuse,
            max_staleness=self.max_staleness,
            max_chunks=self.max_chunks,
        )

    def fresh_chunks(self, lag: int) -> int:
        """Chunks made by weights that are `lag` versions old which can be used before they are stale.

        Each iteration uses N fragments and adds a version, so what has ⌊ahead / N⌋ iterations before it is used with
        staleness lag + ⌊ahead / N⌋.
        """
        return (self.max_staleness + 1 - lag) * self.chunks_per_iteration


def limits_of(run: Run, shard: int = 0) -> Limits:
    """Reads them from a run's configuration: one shard's part of what is for all of them.

    Chunks are split like the chunks of an iteration, so a shard may hold at least those that it provides.
    """
    replay, shards = run.config.rollout_config.replay_buffer_config, len(run.shards)
    max_bytes = replay.max_bytes // shards
    records_kept = Budget(max_bytes).records_kept
    return Limits(
        fragments_per_iteration=fragments_per_iteration(run.config, shard),
        fragments_per_chunk=replay.fragments_per_chunk,
        max_chunks=share(replay.max_chunks, shards, shard),
        max_bytes=max_bytes,
        max_reuse=replay.max_reuse,
        max_staleness=replay.max_staleness,
        grant_timeout_s=replay.grant_timeout_s,
        fragments_per_report=replay.fragments_per_report,
        paced=replay.pacing == "grants",
        syncs_appends=replay.durability == "host",
        schema_fingerprint=run.schema.fingerprint,
        shard=shard,
        shards=shards,
        episodes_kept=records_kept,
        drops_kept=records_kept,
        streams_kept=min(records_kept, MAX_STREAMS),
    )

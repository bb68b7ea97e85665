"""Replay's limits: the part of the configuration that it works by."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from minefleet.config.replay_partitioning import fragments_per_iteration, share
from minefleet.runs.run_yaml import Run
from minefleet_replay.state.deduplication import MAX_STREAMS
from minefleet_replay.state.disk_budget_split import MAX_RECORDS, DiskBudget

LIVE_LIMITS = ("max_reuse", "max_staleness", "balance", "task_weights", "balance_limit")


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """Named as in the configuration; of one shard where there are several."""

    steps_per_iteration: int
    chunk_steps: int
    """In a chunk of full fragments."""
    max_steps: int
    """Kept: those of `max_chunks` such chunks."""
    max_bytes: int
    least_steps: int
    """In the shortest fragment that is cut."""
    max_reuse: int
    max_staleness: int
    grant_timeout_s: float
    steps_per_report: int = 0
    paced: bool = True
    balance: Literal["speed", "slot", "task"] = "speed"
    task_weights: Mapping[str, float] = field(default_factory=dict)
    balance_limit: float = 4.0
    tasks: Mapping[str, float] = field(default_factory=dict)
    task_sampling: Literal["weights", "success"] = "weights"
    syncs_appends: bool = False
    """Whether an acked append survives power loss (`durability: host`)."""
    schema_fingerprint: str = ""
    """Fragments of another schema are refused."""
    episodes_kept: int = MAX_RECORDS
    """Episode records, the newest."""
    drops_kept: int = MAX_RECORDS
    """Appended fragments, counted back from the newest, whose departure can be explained."""
    shard: int = 0
    shards: int = 1
    streams_kept: int = MAX_STREAMS
    """Streams whose names are remembered: those that reported last."""
    follow: Callable[[str], "Limits"] | None = field(default=None, compare=False)
    """The limits under live settings; None where there are none."""

    def following(self, settings: str) -> "Limits":
        """The limits under live settings, whatever those of these are.

        Raises:
            ConfigError: If they are no settings of the run.
        """
        return self if self.follow is None else self.follow(settings)

    @property
    def live(self) -> dict[str, Any]:
        """Those that settings may change."""
        return {name: getattr(self, name) for name in LIVE_LIMITS}

    @property
    def budget(self) -> DiskBudget:
        """The parts of `max_bytes`."""
        return DiskBudget(self.max_bytes)

    @property
    def capacity_steps(self) -> int:
        """Steps that may exist or be under way: as many as can still be used before they are too stale."""
        wanted = -(-(self.max_staleness + 1) * self.steps_per_iteration // self.max_reuse)
        return min(max(self.steps_per_iteration, wanted), self.max_steps)

    @property
    def window_steps(self) -> int:
        """Steps that are used, each for the first time, from a version until what it acted is too stale."""
        return (self.max_staleness + 1) * self.steps_per_iteration // self.max_reuse

    def fresh_steps(self, lag: int) -> int:
        """Steps made by weights that are `lag` versions old which can be used before they are stale.

        Each iteration uses N steps and adds a version, so what has ⌊ahead / N⌋ iterations before it is used with
        staleness lag + ⌊ahead / N⌋.
        """
        return (self.max_staleness + 1 - lag) * self.steps_per_iteration


def limits_of(run: Run, shard: int = 0) -> Limits:
    """Reads them from a run's configuration: one shard's part of what is for all of them.

    Chunks are split like the chunks of an iteration, so a shard may hold at least those that it provides.
    """
    rollout, shards = run.config.rollout_config, len(run.shards)
    replay, fragment_steps = rollout.replay_buffer_config, rollout.fragment_length
    chunk_steps = replay.fragments_per_chunk * fragment_steps
    max_bytes = replay.max_bytes // shards
    records_kept = DiskBudget(max_bytes).records_kept
    return Limits(
        steps_per_iteration=fragments_per_iteration(run.config, shard) * fragment_steps,
        chunk_steps=chunk_steps,
        max_steps=share(replay.max_chunks, shards, shard) * chunk_steps,
        max_bytes=max_bytes,
        least_steps=run.config.least_steps,
        max_reuse=replay.max_reuse,
        max_staleness=replay.max_staleness,
        grant_timeout_s=replay.grant_timeout_s,
        steps_per_report=replay.fragments_per_report * fragment_steps,
        paced=replay.pacing == "grants",
        balance=replay.balance,
        task_weights=run.config.env.tasks | replay.task_weights,
        tasks=run.config.env.tasks,
        task_sampling=run.config.env.task_sampling,
        balance_limit=replay.balance_limit,
        syncs_appends=replay.durability == "host",
        schema_fingerprint=run.fragment_schema.fingerprint,
        shard=shard,
        shards=shards,
        episodes_kept=records_kept,
        drops_kept=records_kept,
        streams_kept=min(records_kept, MAX_STREAMS),
        follow=lambda settings: limits_of(run.with_settings(settings), shard),
    )

"""Which knobs to turn for a stage that limits, with their present values, and what there is to say of it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from minefleet.config import FleetConfig
from minefleet.limit import CLEAR_GAIN, Limit, Stage, Verdict, still

STAGE_WORDS: Mapping[str, str] = {
    "environment": "the environments limit",
    "inference": "the actors' inference limits",
    "replay": "replay limits",
    "learner": "the learner limits",
    "weights": "the way of the weights limits",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Knob:
    """A key of the configuration."""

    key: str
    turn: str
    """Where to."""
    needs_cores: bool = False
    """Whether it helps only where cores are idle."""
    counts: Callable[[Any], bool] = lambda _: True
    """Whether it can still be turned, by its present value."""

    def line(self, config: FleetConfig) -> str:
        """The key, its value, and where to turn it."""
        return f"{self.key} {attrgetter(self.key)(config)} -> {self.turn}"


def _more_than(least: int) -> Callable[[Any], bool]:
    return lambda value: bool(value > least)


def _is(*values: Any) -> Callable[[Any], bool]:
    return lambda value: value in values


WORKER, BUFFER = "rollout_config.worker_config", "rollout_config.replay_buffer_config"
ON_CPU = _is("cpu", "auto")
MORE_ACTORS = Knob(key="rollout_config.num_rollout_workers", turn="more", needs_cores=True)
KNOBS: Mapping[Stage, tuple[Knob, ...]] = {
    "environment": (
        Knob(key=f"{WORKER}.envs_per_process", turn="fewer", needs_cores=True, counts=_more_than(1)),
        Knob(key=f"{WORKER}.num_envs", turn="more", needs_cores=True),
        MORE_ACTORS,
    ),
    "inference": (
        Knob(key=f"{WORKER}.device", turn="a GPU", counts=ON_CPU),
        Knob(key=f"{WORKER}.batch_size", turn="larger, or 0", counts=_more_than(0)),
        Knob(key=f"{WORKER}.compile", turn="true", counts=_is(False)),
        Knob(key="rollout_config.num_cpus_per_worker", turn="more", needs_cores=True),
        MORE_ACTORS,
    ),
    "replay": (
        Knob(key=f"{BUFFER}.durability", turn="process", counts=_is("host")),
        Knob(key=f"{BUFFER}.compression", turn="zstd where the network is slow, lz4 or none where processors are"),
        Knob(key="rollout_config.to_send_queue_size", turn="larger, or 0", counts=_more_than(0)),
        Knob(key="train_config.prefetch_batches", turn="1", counts=_is(0)),
        Knob(key="train_config.num_readers", turn="more", needs_cores=True),
        Knob(key=f"{BUFFER}.database_config.num_shards", turn="more", needs_cores=True),
    ),
    "learner": (
        Knob(key="train_config.epochs_per_iteration", turn="fewer", counts=_more_than(1)),
        Knob(key="train_config.device", turn="a GPU", counts=ON_CPU),
        Knob(key="train_config.gae_values", turn="behaviour", counts=_is("recomputed")),
        Knob(key="train_config.torch_threads", turn="more", needs_cores=True),
        Knob(key="train_config.num_workers", turn="more", needs_cores=True),
    ),
    "weights": (
        Knob(key=f"{BUFFER}.max_staleness", turn="larger"),
        Knob(key="train_config.wire_dtype", turn="bfloat16", counts=_is("keep")),
    ),
}


def knobs(stage: Stage, config: FleetConfig, *, is_full: bool) -> list[str]:
    """What to turn; where all cores are busy, only what does not need idle ones."""
    return [
        knob.line(config)
        for knob in KNOBS[stage]
        if knob.counts(attrgetter(knob.key)(config)) and not (is_full and knob.needs_cores)
    ]


def advice(verdict: Verdict, config: FleetConfig, cores: Mapping[str, float]) -> list[str]:
    """What limits, by how much, and what to turn, in lines; none while that is unknown.

    Args:
        verdict: What limits.
        config: The run's.
        cores: How many each role uses, on average since it started.
    """
    limit = verdict.limit
    if limit is None:
        return []
    if limit.stage is None:
        return [_nothing(limit, config), *_machine(verdict, cores)]
    turn = knobs(limit.stage, config, is_full=verdict.is_full)
    return [
        f"{STAGE_WORDS[limit.stage]}: {_why(limit.stage, verdict)}; without, the run would be at most "
        f"{limit.gain:.3g} times as fast",
        *_machine(verdict, cores),
        *(f"  {line}" for line in turn),
    ]


def _nothing(limit: Limit, config: FleetConfig) -> str:
    if config.rollout_config.replay_buffer_config.pacing == "off":
        return "nothing waits; without pacing that does not say what limits, since more may be made than is used"
    return f"nothing limits by itself: without any one stage the run would be less than {CLEAR_GAIN} times as fast"


def _why(stage: Stage, verdict: Verdict) -> str:
    slots, loop = verdict.slots, verdict.loop
    if stage == "replay":
        return f"slots wait {slots.room:.0%} of their time for room, the learner {loop.replay:.0%} of its to read"
    if stage == "learner":
        return f"it trains {loop.training:.0%} of its time, slots wait {slots.grant:.0%} of theirs for a grant"
    if stage == "weights":
        old, out = slots.weights + still(slots, loop), loop.blocked + still(slots, loop)
        return f"slots wait {old:.0%} of their time for newer ones, the learner {out:.0%} of its until they are out"
    ours, waited = getattr(slots, stage), loop.fragments + loop.weights
    return f"slots wait {ours:.0%} of their time for it, the learner {waited:.0%} of its for fragments"


def _machine(verdict: Verdict, cores: Mapping[str, float]) -> list[str]:
    """Where all cores are busy: that they are, and who uses them."""
    if not verdict.is_full:
        return []
    busy = max(verdict.actors_busy, verdict.learner_busy)
    most = max(cores, key=lambda role: cores[role], default="")
    used = f", on average so far {sum(cores.values()):.1f} of them by the roles, most by {most}: {cores[most]:.1f}"
    return [
        f"all cores are busy ({busy:.0%}){used if most else ''}. What one stage gains others lose: more cores help, "
        "fewer other programs, or roles on other machines"
    ]

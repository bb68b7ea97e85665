"""What is said of a stage that limits."""

from dataclasses import replace
from operator import attrgetter

import pytest

from minefleet.config import FleetConfig, ReplayBufferConfig, RolloutConfig, TrainConfig, WorkerConfig
from minefleet.knobs import KNOBS, advice, knobs
from minefleet.limit import STAGES, LoopShares, SlotShares, Verdict

SLOW_ENVIRONMENTS = Verdict(
    slots=SlotShares(environment=0.8, inference=0.2), loop=LoopShares(training=0.4, fragments=0.6)
)


@pytest.mark.parametrize("stage", STAGES)
def test_every_stage_has_knobs_which_are_keys_with_their_values(stage: str) -> None:
    assert stage in KNOBS
    config = FleetConfig()
    for knob in KNOBS[stage]:  # type: ignore[index]
        assert knob.line(config).startswith(f"{knob.key} {attrgetter(knob.key)(config)} -> ")
    assert knobs(stage, config, is_full=False)  # type: ignore[arg-type]


def test_what_is_turned_already_is_not_named() -> None:
    config = FleetConfig(
        rollout_config=RolloutConfig(worker_config=WorkerConfig(envs_per_process=4, device="cuda", compile=True)),
        train_config=TrainConfig(epochs_per_iteration=3, gae_values="behaviour"),
    )
    assert "rollout_config.worker_config.envs_per_process 4 -> fewer" in knobs("environment", config, is_full=False)
    assert not any("envs_per_process" in line for line in knobs("environment", FleetConfig(), is_full=False))
    assert not any("worker_config" in line for line in knobs("inference", config, is_full=False))
    assert "train_config.epochs_per_iteration 3 -> fewer" in knobs("learner", config, is_full=False)
    assert not any("gae_values" in line for line in knobs("learner", config, is_full=False))


def test_advice_says_what_limits_by_how_much_and_what_to_turn() -> None:
    first, *turn = advice(SLOW_ENVIRONMENTS, FleetConfig(), {})
    assert first == (
        "the environments limit: slots wait 80% of their time for it, the learner 60% of its for fragments; "
        "without, the run would be at most 2.5 times as fast"
    )
    assert "  rollout_config.worker_config.num_envs 8 -> more" in turn


def test_where_all_cores_are_busy_that_is_said_with_the_role_that_uses_them_and_no_knob_that_needs_more() -> None:
    full = replace(SLOW_ENVIRONMENTS, actors_busy=0.99)
    lines = advice(full, FleetConfig(), {"actor-0": 3.0, "learner": 0.5})
    assert lines[1].startswith(
        "all cores are busy (99%), on average so far 3.5 of them by the roles, most by actor-0: 3.0"
    )
    assert lines[2:] == []


def test_balanced_loops_and_unknown_ones_are_told_apart() -> None:
    balanced = Verdict(slots=SlotShares(environment=1.0), loop=LoopShares(training=1.0))
    assert advice(balanced, FleetConfig(), {})[0].startswith("nothing limits by itself")
    unpaced = FleetConfig(rollout_config=RolloutConfig(replay_buffer_config=ReplayBufferConfig(pacing="off")))
    assert "without pacing" in advice(balanced, unpaced, {})[0]
    assert advice(Verdict(slots=SlotShares(), loop=LoopShares()), FleetConfig(), {}) == []

"""Live keys on top of a run's configuration."""

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minefleet.config import FleetConfig, ReplayBufferConfig, RolloutConfig, TrainConfig
from minefleet.config.key_docs import key_docs
from minefleet.config.live_settings import MAX_STALENESS, STALENESS, live_keys, settings_of, value_of, with_settings
from minefleet.core.errors import ConfigError
from minefleet_parameters.role import versions_to_keep

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)


def test_settings_replace_values_by_the_types_of_their_keys_and_leave_the_rest() -> None:
    config = FleetConfig(train_config=TrainConfig(discount=0.5))
    changed = with_settings(
        config,
        {
            "train_config.learning_rate": 1,
            "train_config.learning_rate_schedule": [[0, 1], [1, 0]],
            "stop.env_steps": 2e6,
            "stop.episode_return": None,
        },
    )
    assert changed.train_config.learning_rate == 1.0 and type(changed.train_config.learning_rate) is float
    assert changed.train_config.learning_rate_schedule == [[0.0, 1.0], [1.0, 0.0]]
    assert changed.stop.env_steps == 2_000_000 and type(changed.stop.env_steps) is int
    assert changed.train_config.discount == 0.5
    assert with_settings(config, {}) is config


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("train_config.learning_rate", "fast", "must be a number, got 'fast'"),
        ("train_config.learning_rate", -1, "must be > 0, got -1.0"),
        ("train_config.learning_rate", math.nan, "must be > 0 and finite"),
        ("train_config.lerning_rate", 1, "the nearest is train_config.learning_rate"),
        ("train_config.discount", 0.9, r"recorded already.*`minefleet train --resume RUN train_config.discount=VALUE`"),
        ("train_config.batch_size_per_gpu", 4, "the learner is built by it; stop the run"),
        ("train_config", 1, "cannot change while a run goes"),
        ("policy.gru_size", 8, "begin a new run$"),
        ("env.id", "CartPole-v1", "actors make their environments by it"),
        ("rollout_config.fragment_length", 8, "actors are built by it"),
        ("train_config.kl_divergence_coef_rho", 0.1, "keeps no reference, which a start makes"),
        ("train_config.record_video_interval", 5, "must stay 0, got 5: environments that show no pixels"),
        ("rollout_config.replay_buffer_config.max_staleness", 7, "must be <= 6 while this run goes, got 7"),
        ("rollout_config.replay_buffer_config.max_chunks", 7, "replay lays out its store by it"),
    ],
)
def test_settings_that_cannot_be_are_refused_with_key_and_reason(key: str, value: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said) as refusal:
        with_settings(FleetConfig(), {"train_config.ppo_clip": 0.1, key: value})
    assert key in str(refusal.value)


def test_the_weight_of_a_reference_may_change_where_the_run_keeps_one() -> None:
    config = FleetConfig(train_config=TrainConfig(kl_divergence_coef_rho=0.2))
    for value in (0.0, 0.5):
        settings = {"train_config.kl_divergence_coef_rho": value}
        assert with_settings(config, settings).train_config.kl_divergence_coef_rho == value


def test_a_run_that_leases_nothing_ahead_cannot_begin_to() -> None:
    rollout = RolloutConfig(replay_buffer_config=ReplayBufferConfig(max_staleness=0))
    with pytest.raises(ConfigError, match="must stay 0, got 1: this run leases nothing ahead"):
        with_settings(FleetConfig(rollout_config=rollout), {STALENESS: 1})


def test_parameters_keeps_versions_for_the_largest_staleness_that_can_be_set() -> None:
    for configured in (0, 1, MAX_STALENESS + 3):
        config = FleetConfig(
            rollout_config=RolloutConfig(replay_buffer_config=ReplayBufferConfig(max_staleness=configured))
        )
        assert versions_to_keep(config) >= max(configured, MAX_STALENESS) + 2


@settings(max_examples=50)
@given(st.sampled_from(sorted(live_keys())), VALUES)
def test_any_value_of_a_live_key_becomes_a_configuration_or_is_refused(key: str, value: Any) -> None:
    try:
        value_of(with_settings(FleetConfig(), {key: value}), key)
    except ConfigError as error:
        assert str(error)


def test_settings_of_nested_data_keep_the_value_of_a_key_whole() -> None:
    data = {"train_config": {"learning_rate": 1, "learning_rate_schedule": [[0, 1]]}, "seed": 3}
    flat = {"train_config.learning_rate": 1, "train_config.learning_rate_schedule": [[0, 1]], "seed": 3}
    assert settings_of(data) == flat


def test_live_keys_are_marked_in_the_documentation_of_keys() -> None:
    assert {key.path for key in key_docs() if key.is_live} == live_keys()
    assert {"train_config.learning_rate", "stop.env_steps"} <= live_keys()

"""Reading and checking the file of a sweep."""

from pathlib import Path

import pytest

from minefleet.core.errors import ConfigError
from minefleet.sweeps.spec import Range, SweepSpec, read_spec

SPACE = "space: {seed: [1, 2]}\n"


def spec_of(tmp_path: Path, text: str) -> SweepSpec:
    path = tmp_path / "sweep.yaml"
    path.write_text(text)
    return read_spec(path)


def test_read_spec_with_ranges_and_lists_keeps_types(tmp_path: Path) -> None:
    spec = spec_of(
        tmp_path,
        """
        space:
          train_config.learning_rate: {low: 1e-5, high: 1e-2, log: true}
          policy.hidden_size: {low: 16, high: 64}
          train_config.off_policy: [clip, vtrace]
        """,
    )
    rate, size = spec.space["train_config.learning_rate"], spec.space["policy.hidden_size"]
    assert rate == Range(low=1e-5, high=1e-2, log=True)
    assert isinstance(rate, Range) and not rate.is_whole
    assert isinstance(size, Range) and size.is_whole
    assert spec.space["train_config.off_policy"] == ["clip", "vtrace"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("space: 3", "space .* must have keys"),
        ("space: {seed: {low: 3, high: 1}}", "space.seed: low must be below high"),
        ("space: {seed: {lo: 3, high: 1}}", "space.seed must be a list"),
        ("space: {seed: {low: -1, high: 1, log: true}}", "space.seed: low must be > 0 with log"),
        ("space: {seed: {low: a, high: 1}}", "space.seed: low and high must be numbers"),
        ("space: {seed: {low: false, high: 1}}", "space.seed: low and high must be numbers"),
        ("space: {seed: {low: 1, high: 3, log: maybe}}", "space.seed: log must be true or false"),
        ("space: {seed: []}", "space.seed must be a list"),
        ("space: {seed: [[1], [2]]}", "space.seed must be a list of single values"),
        ("space: {}", "space must have a key"),
        (SPACE + "trial: 3", "unknown key trial"),
        (SPACE + "trials: 0", "trials must be >= 1"),
        (SPACE + "trials: 1.5", "trials .* must be a whole number"),
        (SPACE + "config: 3", "config .* must be a text"),
        (SPACE + "set: seed=1", "set .* must be a list of key=value"),
        (SPACE + "goal: up", "goal must be one of maximize, minimize"),
        (SPACE + "sampler: grid", "sampler must be one of"),
        (SPACE + "pruner: all", "pruner must be one of"),
    ],
)
def test_read_spec_with_a_wrong_key_or_value_names_it(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        spec_of(tmp_path, text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("config: CartPole-v1\nspace: {sed: [1]}", "unknown key sed"),
        ("config: CartPole-v1\nspace: {seed: [1, -3]}", "seed must be >= 0"),
        ("config: CartPole-v1\nspace: {train_config.discount: {low: 0.9, high: 1.5}}", "train_config.discount"),
        ("config: CartPole-v1\nspace: {policy.hidden_size: {low: 16, high: 1e3}}", "hidden_size .* must be an integer"),
        ("config: vectors\nset: [env.id=CartPole-v1]\nspace: {stop.env_steps: [9, 0]}", "a trial needs an end"),
        ("config: nothing-there\nspace: {seed: [1]}", "nothing-there"),
        ("config: vectors\nset: [env.id=CartPole-v1]\nspace: {seed: [1]}", "a trial needs an end"),
    ],
)
def test_check_of_a_sweep_whose_trials_cannot_work_refuses_it(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        spec_of(tmp_path, text).check()


def test_overrides_of_a_trial_stand_behind_those_of_all() -> None:
    spec = SweepSpec(space={"seed": [1, 2]}, set=["seed=7", "stop.env_steps=9"])
    own = {"seed": 2, "train_config.off_policy": "clip"}
    assert spec.overrides(own) == ["seed=7", "stop.env_steps=9", "seed=2", 'train_config.off_policy="clip"']

from typing import Any

import numpy as np
import pytest

from minefleet.envs.truncation_corridor import BACK, FORWARD, Corridor

DISCOUNT = 0.95


def rewards_of(env: Corridor, forward: float, rng: np.random.Generator, seed: int | None) -> list[float]:
    """The rewards of one episode under the policy that steps forward with that probability."""
    env.reset(seed=seed)
    rewards, truncated = [], False
    while not truncated:
        _, reward, terminated, truncated, _ = env.step(FORWARD if rng.random() < forward else BACK)
        assert not terminated
        rewards.append(reward)
    return rewards


def discounted(rewards: list[float]) -> float:
    return sum(DISCOUNT**k * reward for k, reward in enumerate(rewards))


@pytest.mark.parametrize(("forward", "tolerance"), [(1.0, 1e-9), (0.0, 1e-9), (0.5, 0.05), (0.8, 0.05)])
def test_episodes_bootstrapped_with_the_true_value_have_the_true_value(forward: float, tolerance: float) -> None:
    env, rng, value = Corridor(5, 10), np.random.default_rng(0), forward / (1 - DISCOUNT)
    episodes = [rewards_of(env, forward, rng, 0 if episode == 0 else None) for episode in range(500)]
    returns = [discounted(rewards) + DISCOUNT ** len(rewards) * value for rewards in episodes]
    assert np.mean(returns) == pytest.approx(value, rel=tolerance)


def test_taking_truncation_for_termination_gives_far_too_low_a_value() -> None:
    env, rng = Corridor(), np.random.default_rng(0)
    wrong = np.mean([discounted(rewards_of(env, 1.0, rng, seed)) for seed in range(200)])
    assert wrong < 0.6 / (1 - DISCOUNT)
    assert wrong < 0.2 / (1 - 0.99)


def test_episodes_last_from_one_step_to_twice_the_limit_and_the_limit_on_average() -> None:
    env, rng = Corridor(limit=6), np.random.default_rng(0)
    lengths = [len(rewards_of(env, 0.5, rng, seed)) for seed in range(1_000)]
    assert set(lengths) == set(range(1, 12))
    assert np.mean(lengths) == pytest.approx(6, rel=0.05)


def test_corridor_step_moves_the_cell_round_the_ring() -> None:
    env = Corridor(length=3, limit=50)
    obs, _ = env.reset(seed=1)
    start = int(obs.argmax())
    cells = [int(env.step(action)[0].argmax()) for action in (FORWARD, FORWARD, FORWARD, BACK)]
    assert cells == [(start + move) % 3 for move in (1, 2, 3, 2)]


def test_the_share_of_forward_steps_is_reported_at_the_end() -> None:
    env, truncated = Corridor(limit=8), False
    actions: list[int] = []
    infos: list[dict[str, Any]] = []
    env.reset(seed=5)
    while not truncated:
        actions.append(len(actions) % 3 % 2)
        _, _, _, truncated, info = env.step(actions[-1])
        infos.append(info)
    assert infos[:-1] == [{}] * (len(infos) - 1)
    assert infos[-1] == {"metrics": {"forward": np.mean(actions)}}


def test_corridor_of_an_impossible_size_is_refused() -> None:
    with pytest.raises(ValueError, match="length and limit must be >= 1, got 8 and 0"):
        Corridor(limit=0)

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from minefleet.envs.recall import NUM_CUES, Recall


def play(env: Recall, answer: int | None, seed: int | None = None) -> tuple[list[NDArray[np.float32]], float, Any]:
    """Plays an episode, naming the cue unless another answer is given."""
    obs, _ = env.reset(seed=seed)
    seen, rewards, terminated = [obs], 0.0, False
    while not terminated:
        asked = obs[NUM_CUES] == 1.0
        right = int(seen[0][:NUM_CUES].argmax())
        obs, reward, terminated, truncated, info = env.step((right if answer is None else answer) if asked else 0)
        assert not truncated
        rewards += reward
        seen.append(obs)
    return seen, rewards, info


@pytest.mark.parametrize("delay", [1, 2, 16])
def test_the_cue_is_shown_first_and_asked_for_after_the_delay_with_blanks_between(delay: int) -> None:
    seen, _, _ = play(Recall(delay), None, seed=3)
    assert len(seen) == delay + 2
    assert seen[0].sum() == 1.0
    assert seen[0][NUM_CUES] == 0.0
    assert all(not obs.any() for obs in seen[1:delay])
    assert seen[delay].tolist() == [0.0] * NUM_CUES + [1.0]


def test_recall_right_answer_pays_one_and_is_counted() -> None:
    env = Recall(4)
    for seed in range(20):
        _, rewards, info = play(env, None, seed)
        assert (rewards, info) == (1.0, {"metrics": {"success": 1.0}})


def test_recall_constant_answer_is_right_one_time_in_four() -> None:
    env = Recall(2)
    results = [play(env, 1, seed=0 if episode == 0 else None)[1:] for episode in range(2_000)]
    assert np.mean([rewards for rewards, _ in results]) == pytest.approx(0.25, abs=0.04)
    assert all(info["metrics"]["success"] == rewards for rewards, info in results)


def test_recall_delay_below_one_is_refused() -> None:
    with pytest.raises(ValueError, match="delay must be >= 1, got 0"):
        Recall(0)

"""Returns of episodes, against the sums over the environment's own steps."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from minefleet_actor.rollout.running_episodes import RunningEpisodes

ONE = np.array([0])
STEPS = st.lists(st.lists(st.floats(-10, 10, width=16), min_size=1, max_size=4), min_size=1, max_size=5)


@given(episodes=st.lists(STEPS, min_size=1, max_size=3), discount=st.floats(0, 1))
def test_discounted_returns_count_the_environments_steps_and_lengths_count_decisions(
    episodes: list[list[list[float]]], discount: float
) -> None:
    running = RunningEpisodes(1, discount)
    for steps in episodes:
        for rewards in steps:
            discounted = sum(discount**index * reward for index, reward in enumerate(rewards))
            running.add(ONE, np.array([sum(rewards)]), np.array([discounted]), np.array([len(rewards)], np.uint32))
        record = running.end(0, "s", version=1)
        everything = [reward for rewards in steps for reward in rewards]
        expected = sum(discount**index * reward for index, reward in enumerate(everything))
        np.testing.assert_allclose(record.discounted_return, expected, atol=1e-9)
        np.testing.assert_allclose(record.episode_return, sum(everything), atol=1e-9)
        assert record.length == len(steps)

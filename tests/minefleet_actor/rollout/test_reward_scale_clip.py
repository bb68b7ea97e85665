"""Rewards are scaled and clipped for training, and reported as they were."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from minefleet.config import WrappersConfig
from minefleet.core.schema import Leaf, Schema
from minefleet_actor.rollout.fragment_recorder import Recorder
from minefleet_actor.rollout.reward_scale_clip import shaping
from minefleet_actor.rollout.running_episodes import RunningEpisodes

SCHEMA = Schema(
    obs=Leaf(kind="box", shape=(1,), dtype="float32"),
    action=Leaf(kind="discrete", shape=(), dtype="int64", categories=(2,)),
)
SLOTS = np.array([0, 1])


@given(
    rewards=st.lists(st.floats(-1e3, 1e3, width=32, allow_subnormal=False), min_size=2, max_size=2),
    scale=st.floats(0.01, 100),
    clip=st.one_of(st.just(0.0), st.floats(0.01, 10)),
)
def test_fragments_hold_the_shaped_reward_and_records_the_environments(
    rewards: list[float], scale: float, clip: float
) -> None:
    wrappers = WrappersConfig(reward_scale=scale, reward_clip=clip)
    recorder, episodes = Recorder(SCHEMA, 2, 4, shaping(wrappers)), RunningEpisodes(2, 0.5)
    reward, nothing, no = np.array(rewards, np.float32), np.zeros(2, np.float32), np.zeros(2, np.bool_)
    for _ in range(2):
        recorder.act(SLOTS, np.zeros((2, 1)), np.zeros(2, np.int64), nothing, nothing, no, np.ones(2, np.uint32))
        recorder.result(SLOTS, reward, no, no)
        episodes.add(SLOTS, reward, reward, np.ones(2, np.uint32))
    for slot in range(2):
        fragment = recorder.close(slot, np.zeros(1))
        expected = rewards[slot] * scale
        assert fragment is not None
        np.testing.assert_allclose(
            fragment.reward, min(max(expected, -clip), clip) if clip else expected, rtol=1e-5, atol=1e-30
        )
        record = episodes.end(slot, "s", version=1)
        np.testing.assert_allclose(record.episode_return, 2 * rewards[slot])
        np.testing.assert_allclose(record.discounted_return, 1.5 * rewards[slot])

import numpy as np
import pytest
from numpy.typing import NDArray

from minefleet.core.fragment import Fragment
from minefleet.core.schema import Leaf, Schema
from minefleet_actor.rollout.fragment_recorder import Recorder

SCHEMA = Schema(
    obs=Leaf(kind="box", shape=(1,), dtype="float32"),
    action=Leaf(kind="discrete", shape=(), dtype="int64", categories=(4,)),
)
SLOT = np.array([0])
LENGTH = 4


def obs(number: float) -> NDArray[np.float32]:
    return np.array([number], np.float32)


def act(recorder: Recorder, number: int, *, value: float = 0.0, first: bool = False, version: int = 1) -> None:
    """The policy sees observation `number`, values it, and acts."""
    recorder.see(SLOT, np.array([value], np.float32))
    recorder.act(
        SLOT,
        obs(number)[None],
        np.array([number % 4]),
        np.array([-float(number)], np.float32),
        np.array([value], np.float32),
        np.array([first]),
        np.array([version], np.uint32),
    )


def step(recorder: Recorder, reward: float = 1.0, *, terminated: bool = False, truncated: bool = False) -> None:
    recorder.result(SLOT, np.array([reward], np.float32), np.array([terminated]), np.array([truncated]))


def test_a_fragment_has_durations_only_where_a_step_took_longer_than_one() -> None:
    recorder, no = Recorder(SCHEMA, 1, LENGTH), np.zeros(1, np.bool_)
    for durations in ([1, 3, 1], [1, 1]):
        for number, duration in enumerate(durations):
            act(recorder, number)
            recorder.result(SLOT, np.ones(1, np.float32), no, no, np.array([duration], np.uint32))
        found = closed(recorder, obs(9)).duration
        assert (None if found is None else found.tolist()) == (durations if max(durations) > 1 else None)


def closed(recorder: Recorder, after: NDArray[np.float32] | None = None) -> Fragment:
    fragment = recorder.close(0, after)
    assert fragment is not None
    return fragment


def test_a_full_fragment_takes_the_next_value_from_the_decision_after_it() -> None:
    recorder = Recorder(SCHEMA, 1, LENGTH)
    recorder.begin(0, {"gru": np.ones(3)})
    for number in range(LENGTH):
        act(recorder, number, value=10.0 * number, first=number == 0)
        step(recorder, reward=number)
    assert recorder.is_full(0)
    recorder.see(SLOT, np.array([40.0], np.float32))
    fragment = closed(recorder, obs(4))

    assert fragment.behaviour_value.tolist() == [0, 10, 20, 30]
    assert fragment.next_value.tolist() == [10, 20, 30, 40]
    assert fragment.reward.tolist() == [0, 1, 2, 3]
    assert fragment.first.tolist() == [True, False, False, False]
    assert fragment.cut_index.tolist() == [3]
    assert fragment.cut_obs.tolist() == [[4.0]]
    assert fragment.recurrent_state["gru"].tolist() == [1, 1, 1]


def test_fragment_has_next_value_0_after_a_terminated_step() -> None:
    recorder = Recorder(SCHEMA, 1, LENGTH)
    act(recorder, 0, value=5.0)
    step(recorder, terminated=True, truncated=True)
    act(recorder, 7, value=70.0, first=True)
    step(recorder, terminated=True)
    fragment = closed(recorder)

    assert fragment.next_value.tolist() == [0, 0]
    assert fragment.terminated.tolist() == [True, True]
    assert fragment.truncated.tolist() == [False, False]
    assert len(fragment.cut_index) == 0
    assert fragment.cut_obs.shape == (0, 1)


def test_a_truncated_step_bootstraps_from_the_observation_before_the_reset() -> None:
    recorder = Recorder(SCHEMA, 1, LENGTH)
    act(recorder, 0, value=1.0)
    step(recorder, truncated=True)
    recorder.cut(0, obs(1))
    recorder.see(SLOT, np.array([99.0], np.float32))
    act(recorder, 50, value=3.0, first=True)
    step(recorder, terminated=True)
    fragment = closed(recorder)

    assert fragment.next_value.tolist() == [99.0, 0.0]
    assert fragment.truncated.tolist() == [True, False]
    assert fragment.cut_index.tolist() == [0]
    assert fragment.cut_obs.tolist() == [[1.0]]


def test_a_failed_step_is_never_stored_and_the_last_good_one_is_cut() -> None:
    recorder = Recorder(SCHEMA, 1, LENGTH)
    act(recorder, 0, value=1.0)
    step(recorder)
    act(recorder, 1, value=2.0)
    recorder.fail(0)
    recorder.cut(0, recorder.acted_on(0))
    act(recorder, 30, value=9.0, first=True)
    step(recorder, terminated=True)
    fragment = closed(recorder)

    assert fragment.obs.ravel().tolist() == [0.0, 30.0]
    assert fragment.truncated.tolist() == [True, False]
    assert fragment.crash.tolist() == [True, False]
    assert fragment.next_value.tolist() == [2.0, 0.0]
    assert fragment.cut_obs.tolist() == [[1.0]]


def test_a_failure_on_the_first_step_of_an_episode_leaves_the_episode_before_as_it_was() -> None:
    recorder = Recorder(SCHEMA, 1, LENGTH)
    act(recorder, 0, value=1.0)
    step(recorder, terminated=True)
    act(recorder, 10, value=2.0, first=True)
    recorder.fail(0)
    recorder.cut(0, recorder.acted_on(0))
    fragment = closed(recorder)

    assert fragment.terminated.tolist() == [True]
    assert not fragment.crash.any()
    assert not fragment.truncated.any()


def test_a_drained_fragment_keeps_its_complete_steps() -> None:
    recorder = Recorder(SCHEMA, 1, LENGTH)
    act(recorder, 0, value=1.0)
    step(recorder)
    act(recorder, 1, value=2.0)
    fragment = closed(recorder, recorder.acted_on(0))

    assert len(fragment) == 1
    assert fragment.next_value.tolist() == [2.0]
    assert fragment.cut_obs.tolist() == [[1.0]]


def test_weights_swapped_inside_a_fragment_are_stamped_per_step() -> None:
    recorder = Recorder(SCHEMA, 1, LENGTH)
    for number, version in enumerate((3, 3, 4, 4)):
        act(recorder, number, version=version)
        step(recorder)
    fragment = closed(recorder, obs(9))
    assert fragment.policy_version.tolist() == [3, 3, 4, 4]


def test_fragment_shows_nothing_of_the_one_before_it() -> None:
    recorder = Recorder(SCHEMA, 1, LENGTH)
    act(recorder, 0)
    step(recorder, truncated=True)
    recorder.cut(0, obs(1))
    recorder.see(SLOT, np.array([5.0], np.float32))
    closed(recorder)
    recorder.begin(0, {})
    for number in range(LENGTH):
        act(recorder, number)
        step(recorder)
    fragment = closed(recorder, obs(4))
    assert not fragment.truncated.any()
    assert fragment.cut_index.tolist() == [LENGTH - 1]


def test_recorder_close_of_an_empty_fragment_returns_none() -> None:
    assert Recorder(SCHEMA, 1, LENGTH).close(0) is None


def test_closing_in_mid_episode_without_the_observation_after_it_is_refused() -> None:
    recorder = Recorder(SCHEMA, 1, LENGTH)
    act(recorder, 0)
    step(recorder)
    with pytest.raises(ValueError, match="observation after"):
        recorder.close(0)


def test_a_step_beyond_a_full_fragment_is_refused_and_the_next_slot_left_as_it_was() -> None:
    recorder = Recorder(SCHEMA, 2, LENGTH)
    for number in range(LENGTH):
        act(recorder, number)
        step(recorder)
    with pytest.raises(ValueError, match="invalid entry"):
        act(recorder, LENGTH)
    second = np.array([1])
    both, no, zero = obs(7)[None].repeat(2, axis=0), np.zeros(1, np.bool_), np.zeros(1, np.float32)
    recorder.act(second, both, np.array([1]), zero, zero, no, np.ones(1, np.uint32))
    recorder.result(second, np.ones(1, np.float32), ~no, no)
    fragment = recorder.close(1)
    assert fragment is not None
    assert fragment.obs.tolist() == [[7.0]]

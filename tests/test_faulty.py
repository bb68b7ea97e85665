import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.faulty import ACTIONS, NO_ACTION, Faulty, Mark, ending_of, read_mark, reward_of

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
U32 = st.integers(0, 2**32 - 1)
SMALL: dict[str, Any] = {"shape": (5, 4, 2), "episode_length": 6}
RAISED = "a fault, as requested"


def always(fault: str, **kwargs: Any) -> Faulty:
    return Faulty(faults={fault: 1.0}, **SMALL | kwargs)


def test_faulty_env_steps_are_distinguishable_and_follow_from_the_seed() -> None:
    env, seen, rewards = Faulty(**SMALL), list[Mark | None](), set[float]()
    for episode in range(30):
        obs, _ = env.reset(seed=7 if episode == 0 else None)
        seen.append(read_mark(obs["frame"]))
        assert seen[-1] == Mark(7, episode, 0, NO_ACTION)
        length, is_terminal = ending_of(7, episode, 6)
        for step in range(1, length + 1):
            obs, reward, terminated, truncated, info = env.step(step % ACTIONS)
            assert env.observation_space.contains(obs)
            assert (read_mark(obs["frame"]), info) == (Mark(7, episode, step, step % ACTIONS), {})
            assert reward == np.float32(reward) == reward_of(Mark(7, episode, step, step % ACTIONS))
            assert (terminated, truncated) == (step == length and is_terminal, step == length and not is_terminal)
            seen.append(read_mark(obs["frame"]))
            rewards.add(reward)
    assert len(set(seen)) == len(seen)
    assert len(rewards) > 0.9 * (len(seen) - 30)
    assert {ending_of(7, episode, 6)[1] for episode in range(30)} == {False, True}


def test_faulty_env_with_another_seed_begins_another_life() -> None:
    env = Faulty(**SMALL)
    marks = [read_mark(env.reset(seed=seed)[0]["frame"]) for seed in (1, None, 2)]
    assert marks == [Mark(1, 0, 0, NO_ACTION), Mark(1, 1, 0, NO_ACTION), Mark(2, 0, 0, NO_ACTION)]


@given(st.builds(Mark, U32, U32, U32, st.integers(-1, ACTIONS)), st.data())
def test_read_mark_of_a_poisoned_mark_or_a_flipped_bit_is_none(mark: Mark, data: Any) -> None:
    packed = np.frombuffer(mark.pack(), np.uint8).copy()
    assert read_mark(packed) == mark
    assert read_mark(np.frombuffer(mark.pack(poisoned=True), np.uint8)) is None
    bit = data.draw(st.integers(0, 8 * len(packed) - 1))
    packed[bit // 8] ^= 1 << bit % 8
    assert read_mark(packed) is None


@pytest.mark.parametrize("fault", ["error", "wrong_shape", "wrong_dtype", "nan_obs", "nan_reward"])
def test_faulty_env_poisons_its_frames_from_a_fault_on(fault: str) -> None:
    env = always(fault)
    assert read_mark(env.reset(seed=0)[0]["frame"]) is not None
    obs, reward, _, _, info = env.step(0)
    nonsense = [
        bool(info.get("error")),
        obs["pulse"].shape != (1,),
        obs["pulse"].dtype != np.float32,
        bool(np.isnan(obs["pulse"]).any()),
        bool(np.isnan(reward)),
    ]
    assert sum(nonsense) == 1
    assert read_mark(obs["frame"]) is None
    assert read_mark(env.reset()[0]["frame"]) is None


def test_faulty_env_raises_in_steps_and_resets() -> None:
    env = always("exception")
    env.reset(seed=0)
    with pytest.raises(RuntimeError, match=RAISED):
        env.step(0)
    assert read_mark(env.reset()[0]["frame"]) is None
    with pytest.raises(RuntimeError, match=RAISED):
        always("reset_exception").reset(seed=0)


@pytest.mark.parametrize(("fault", "code"), [("exit", 1), ("segfault", -11), ("hang", None), ("reset_hang", None)])
def test_faulty_env_makes_its_process_die_or_hang(fault: str, code: int | None) -> None:
    program = (
        "from harness.faulty import Faulty\n"
        f"env = Faulty(faults={{{fault!r}: 1.0}}, shape=(20,))\n"
        "print('made', flush=True); env.reset(seed=0); env.step(0); print('stepped')"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, cwd=BENCHMARKS
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "made\n"
        if code is None:
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(1.0)
            process.kill()
        assert process.stdout.read() == ""
    assert process.returncode == (-9 if code is None else code)


def test_faulty_env_leaks_memory_with_every_step() -> None:
    env = always("leak", leak_bytes=1000, episode_length=100)
    env.reset(seed=0)
    for _ in range(10):
        env.step(0)
    assert sum(map(len, env._leaked)) == 10_000


def test_faulty_env_fails_to_start_only_while_its_arming_file_is_there(tmp_path: Path) -> None:
    armed_by = tmp_path / "armed"
    always("start_exception", armed_by=str(armed_by))
    armed_by.touch()
    with pytest.raises(RuntimeError, match="cannot be made"):
        always("start_exception", armed_by=str(armed_by))


def test_faulty_env_fails_as_often_as_asked_and_alike_for_a_seed() -> None:
    rates = {"error": 0.2, "nan_reward": 0.05}

    def faults(seed: int) -> list[str]:
        found = []
        env = Faulty(faults=rates, **SMALL)
        env.reset(seed=seed)
        for _ in range(2000):
            _, reward, _, _, info = env.step(0)
            found.append("error" if info else "nan_reward" if np.isnan(reward) else "")
        return found

    first = faults(1)
    assert [first.count(fault) / 2000 for fault in rates] == pytest.approx(list(rates.values()), abs=0.03)
    assert first == faults(1)
    assert first != faults(2)


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"faults": {"hangs": 0.1}}, "faults must be among exception.*got hangs"),
        ({"faults": {"hang": 1.5}}, r"the probability of hang must lie in \[0, 1\], got 1.5"),
        ({"faults": {"hang": 0.6, "exit": 0.6}}, "at most one fault happens in a step"),
        ({"shape": (19,)}, r"a frame must have at least 20 bytes, got shape \(19,\)"),
        ({"episode_length": 0}, "episode_length must be >= 1, got 0"),
    ],
)
def test_faulty_env_refuses_impossible_arguments(kwargs: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Faulty(**kwargs)

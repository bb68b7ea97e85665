"""Environments and processes that fail: a slot says so once, is replaced, and nothing is left over."""

import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from minefleet.config import EnvConfig, WorkerConfig
from minefleet.core.schema import Schema
from minefleet.envs import make, schema_of
from minefleet_actor.pool import EnvGaveUpError, EnvPool, EnvStartError, InlinePool, Kind, Pool, Ready
from minefleet_actor.pool.episode_seed import episode_seed

FAULTY = Path(__file__).with_name("faulty_env.py")
PATIENCE_S = 60.0
GO_ON, END, CUT, RAISE, HANG, EXIT = range(6)
SYS_EXIT = 24
BREAK_RESET, DAWDLE = 13, 14
NONSENSE = {
    RAISE: "ZeroDivisionError: the sky falls",
    6: "the reward must be a finite float32, got nan",
    7: "the reward must be a finite float32, got 1e+39",
    8: "observation 'count' must have shape (2,), got (3,)",
    9: "observation 'mode' must be int64, got float64",
    10: "observation 'mode' must count categories below (3,), got 3",
    11: "observation 'count' must be finite, got [nan  1.]",
    12: "the environment reports an error: the engine died",
}


def config_of(directory: Path, **kwargs: Any) -> EnvConfig:
    return EnvConfig(generator=f"{FAULTY}:Faulty", kwargs={"directory": str(directory)} | kwargs)


def started(config: EnvConfig, kind: type[EnvPool] | type[InlinePool] = EnvPool, **worker: Any) -> Any:
    env = make(EnvConfig(generator=config.generator, kwargs=config.kwargs | {"has_child": False}))
    pool = kind(config, schema_of(env), WorkerConfig(**worker), seed=0, actor_index=0)
    pool.start()
    return pool


@pytest.fixture
def pools(tmp_path: Path) -> Iterator[Any]:
    """Makes pools of faulty environments and closes them."""
    opened: list[Pool] = []

    def open_pool(kind: type[EnvPool] | type[InlinePool] = EnvPool, **worker: Any) -> Any:
        opened.append(started(config_of(tmp_path), kind, **worker))
        return opened[-1]

    yield open_pool
    for pool in opened:
        pool.close()


def command(pool: Pool, *actions: int | None) -> dict[int, Ready]:
    """Steps the slots that have an action and waits for their results; without actions, resets all slots."""
    slots = np.array([slot for slot, action in enumerate(actions) if action is not None] or range(pool.num_slots))
    if actions:
        pool.step(slots, np.array([action for action in actions if action is not None]))
    else:
        pool.reset(slots)
    return results(pool, set(slots.tolist()))


def results(pool: Pool, slots: set[int]) -> dict[int, Ready]:
    """Waits until each of the slots has had its say, once."""
    said: dict[int, Ready] = {}
    while set(said) != slots:
        ready = pool.wait(PATIENCE_S)
        assert len(ready.slots), "nothing happened"
        assert not set(ready.slots.tolist()) & set(said)
        said |= dict.fromkeys(ready.slots.tolist(), ready)
    return said


def kinds(said: dict[int, Ready]) -> dict[int, int]:
    return {slot: int(ready.kind[ready.slots == slot][0]) for slot, ready in sorted(said.items())}


def wait_for_death(*pids: int) -> None:
    """Returns when none of the processes runs any more."""
    for pid in pids:
        try:
            descriptor = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        assert select.select([descriptor], [], [], PATIENCE_S)[0], f"{pid} still runs"
        os.close(descriptor)


@pytest.mark.parametrize(("kind", "action"), [(InlinePool, act) for act in NONSENSE] + [(EnvPool, RAISE)])
def test_nonsense_fails_its_own_slot_only_and_the_environment_is_made_anew(pools: Any, kind: Any, action: int) -> None:
    pool = pools(kind, num_envs=2, envs_per_process=2)
    command(pool)
    said = command(pool, action, GO_ON)
    assert kinds(said) == {0: Kind.FAILED, 1: Kind.STEP}
    text = said[0].failures[0].text
    assert text.startswith("Traceback") if action == RAISE else text.startswith(NONSENSE[action])
    assert NONSENSE[action] in text
    assert said[0].reward[said[0].slots == 0] == 0.0
    pool.reset(np.array([0]))
    assert kinds(results(pool, {0})) == {0: Kind.RESET}
    command(pool, GO_ON, GO_ON)
    np.testing.assert_array_equal(pool.obs["count"], [[1, 1], [1, 2]])


def test_a_lone_environment_is_replaced_with_its_process(pools: Any) -> None:
    pool = pools(num_envs=2)
    command(pool)
    before = pool.pids
    said = command(pool, RAISE, GO_ON)
    assert kinds(said) == {0: Kind.FAILED, 1: Kind.STEP}
    assert "the sky falls" in said[0].failures[0].text
    pool.reset(np.array([0]))
    assert kinds(results(pool, {0})) == {0: Kind.RESET}
    assert pool.pids[0] != before[0]
    assert pool.pids[1] == before[1]
    wait_for_death(before[0])


@pytest.mark.parametrize("kind", [EnvPool, InlinePool])
def test_a_failing_reset_is_a_failure_of_the_slot(pools: Any, kind: Any) -> None:
    pool = pools(kind, num_envs=2, envs_per_process=2)
    command(pool)
    command(pool, BREAK_RESET, CUT)
    said = command(pool)
    assert kinds(said) == {0: Kind.FAILED, 1: Kind.RESET}
    assert "no way back" in said[0].failures[0].text
    pool.reset(np.array([0]))
    assert kinds(results(pool, {0})) == {0: Kind.RESET}


def test_a_killed_process_fails_each_of_its_slots_once_and_is_replaced(pools: Any) -> None:
    pool = pools(num_envs=4, envs_per_process=2)
    command(pool)
    command(pool, GO_ON, END, GO_ON, GO_ON)
    pool.step(np.array([0]), np.array([GO_ON]))
    results(pool, {0})
    victim, survivor = pool.pids
    os.kill(victim, signal.SIGKILL)
    said = results(pool, {0, 1})
    assert kinds(said) == {0: Kind.FAILED, 1: Kind.FAILED}
    assert f"environment process {victim}, slots 0-1: it was ended by SIGKILL" in said[1].failures[1].text
    np.testing.assert_array_equal(pool.obs["count"], [[1, 2], [1, 1], [1, 1], [1, 1]])
    pool.reset(np.array([0, 1]))
    pool.step(np.array([2, 3]), np.array([GO_ON, GO_ON]))
    assert kinds(results(pool, {0, 1, 2, 3})) == {0: Kind.RESET, 1: Kind.RESET, 2: Kind.STEP, 3: Kind.STEP}
    np.testing.assert_array_equal(pool.obs["count"], [[1, 0], [1, 0], [1, 2], [1, 2]])
    assert pool.pids[1] == survivor
    assert pool.pids[0] != victim


def test_a_step_given_to_a_process_that_has_just_died_fails(pools: Any) -> None:
    pool = pools(num_envs=1)
    command(pool)
    victim = os.pidfd_open(pool.pids[0])
    signal.pidfd_send_signal(victim, signal.SIGKILL)
    select.select([victim], [], [])
    os.close(victim)
    assert kinds(command(pool, GO_ON)) == {0: Kind.FAILED}
    assert kinds(command(pool)) == {0: Kind.RESET}


def test_a_process_that_exits_by_itself_is_replaced_and_its_exit_code_reported(pools: Any) -> None:
    pool = pools(num_envs=1)
    command(pool)
    said = command(pool, EXIT)
    assert "it exited with code 7" in said[0].failures[0].text
    assert kinds(command(pool)) == {0: Kind.RESET}


def test_pool_step_in_which_an_environment_calls_exit_fails_and_names_the_line(pools: Any) -> None:
    pool = pools(num_envs=1)
    command(pool)
    said = command(pool, SYS_EXIT)
    assert kinds(said) == {0: Kind.FAILED}
    assert all(part in said[0].failures[0].text for part in ("in _misbehave", "SystemExit: the engine is gone"))
    assert kinds(command(pool)) == {0: Kind.RESET}


def test_a_hanging_step_is_killed_at_its_deadline_and_others_go_on(pools: Any) -> None:
    pool = pools(num_envs=2, step_timeout_s=0.5)
    command(pool)
    pool.step(np.array([0, 1]), np.array([HANG, GO_ON]))
    assert kinds(results(pool, {1})) == {1: Kind.STEP}
    said = results(pool, {0})
    assert kinds(said) == {0: Kind.FAILED}
    assert "STEP took longer than 0.5 s" in said[0].failures[0].text
    pool.reset(np.array([0]))
    assert kinds(results(pool, {0})) == {0: Kind.RESET}


def test_pool_step_deadline_is_for_each_environment_and_not_for_its_process(pools: Any) -> None:
    pool = pools(num_envs=4, envs_per_process=4, step_timeout_s=1.8)
    command(pool)
    assert set(kinds(command(pool, *[DAWDLE] * 4)).values()) == {Kind.STEP}


def test_a_new_environment_is_seeded_for_the_episode_it_begins_with(tmp_path: Path) -> None:
    config = EnvConfig(id="CartPole-v1", kwargs={"max_episode_steps": 1})
    env = make(config)
    pool = EnvPool(config, schema_of(env), WorkerConfig(num_envs=1), seed=5, actor_index=1)
    pool.start()
    for episode, is_new in enumerate((True, False, True)):
        command(pool)
        expected, _ = env.reset(seed=episode_seed(5, 1, 0, episode) if is_new else None)
        np.testing.assert_array_equal(pool.obs[0], expected)
        command(pool, 0)
        env.step(0)
        if episode == 1:
            os.kill(pool.pids[0], signal.SIGKILL)
            results(pool, {0})
    pool.close()


@pytest.mark.parametrize("kind", [InlinePool, EnvPool])
def test_the_pool_gives_up_after_failures_in_a_row_but_not_when_episodes_end_between(pools: Any, kind: Any) -> None:
    pool = pools(kind, num_envs=1, max_consecutive_failures=2)
    command(pool)
    for _ in range(2):
        command(pool, RAISE)
        command(pool)
        command(pool, END)
        command(pool)
    command(pool, RAISE)
    command(pool)
    with pytest.raises(EnvGaveUpError, match=r"(?s)slot 0 failed 2 times.*the sky falls"):
        command(pool, RAISE)


@pytest.mark.parametrize("worker", [{}, {"envs_per_process": 2}])
def test_a_slot_that_fails_again_and_again_rests_while_the_others_go_on(pools: Any, worker: Any) -> None:
    pool = pools(num_envs=2, max_consecutive_failures=2, circuit_breaker_cooldown_s=1000.0, **worker)
    command(pool)
    for _ in range(2):
        assert pool.cooling_down == 0
        command(pool, RAISE, GO_ON)
        pool.reset(np.array([0]))
        said = results(pool, {0}) if pool.cooling_down == 0 else {}
    assert pool.cooling_down == 1
    assert not said
    for _ in range(50):
        assert kinds(command(pool, None, GO_ON)) == {1: Kind.STEP}


def test_a_slot_that_has_rested_is_tried_once_and_a_good_episode_forgives_it(pools: Any) -> None:
    pool = pools(num_envs=2, max_consecutive_failures=2, circuit_breaker_cooldown_s=0.01)
    command(pool)
    for _ in range(4):
        command(pool, RAISE, GO_ON)
        pool.reset(np.array([0]))
        assert kinds(results(pool, {0})) == {0: Kind.RESET}
    command(pool, END, GO_ON)
    pool.reset(np.array([0]))
    results(pool, {0})
    command(pool, RAISE, GO_ON)
    assert pool.cooling_down == 0


def test_the_pool_gives_up_when_all_its_slots_rest(pools: Any) -> None:
    pool = pools(num_envs=2, max_consecutive_failures=1)
    command(pool)
    command(pool, RAISE, GO_ON)
    with pytest.raises(EnvGaveUpError, match=r"(?s)all 2 slots fail; slot 1 failed 1 times.*the sky falls"):
        command(pool, None, RAISE)


def test_a_process_that_cannot_start_again_is_tried_until_the_pool_gives_up(pools: Any, tmp_path: Path) -> None:
    pool = pools(num_envs=1, max_consecutive_failures=3)
    command(pool)
    (tmp_path / "unmakable").touch()
    command(pool, EXIT)
    pool.reset(np.array([0]))
    with pytest.raises(EnvGaveUpError, match=r"(?s)slot 0 failed 3 times.*this machine is cursed"):
        pool.wait(PATIENCE_S)


def test_pool_reset_asked_for_while_a_process_is_down_is_done_when_it_is_up(pools: Any, tmp_path: Path) -> None:
    pool = pools(num_envs=1)
    command(pool)
    (tmp_path / "unmakable").touch()
    command(pool, EXIT)
    assert pool.pids == [0]
    pool.reset(np.array([0]))
    pool.wait(0.2)
    (tmp_path / "unmakable").unlink()
    assert kinds(results(pool, {0})) == {0: Kind.RESET}


@pytest.mark.parametrize("kind", [EnvPool, InlinePool])
def test_an_environment_that_cannot_be_made_at_all_fails_the_start_with_its_traceback(
    kind: Any, tmp_path: Path
) -> None:
    (tmp_path / "unmakable").touch()
    pool = kind(config_of(tmp_path), schema_of_faulty(), WorkerConfig(num_envs=2), seed=0, actor_index=0)
    with pytest.raises(EnvStartError, match=r"(?s)faulty_env.py.*RuntimeError: this machine is cursed"):
        pool.start()
    assert not children()


@pytest.mark.parametrize("kind", [EnvPool, InlinePool])
def test_an_environment_with_other_spaces_than_the_runs_fails_the_start(kind: Any, tmp_path: Path) -> None:
    pool = kind(EnvConfig(id="CartPole-v1"), schema_of_faulty(), WorkerConfig(num_envs=1), seed=0, actor_index=0)
    with pytest.raises(EnvStartError, match=r"the environment's spaces are"):
        pool.start()


def test_pool_close_leaves_no_process_or_file_after_kills_and_hangs(tmp_path: Path) -> None:
    before = open_files()
    pool = started(config_of(tmp_path, has_child=True), num_envs=3)
    obs = pool.obs["count"]
    command(pool)
    assert all(pool.pids)
    os.kill(pool.pids[0], signal.SIGKILL)
    results(pool, {0})
    pool.reset(np.array([0]))
    results(pool, {0})
    pool.step(np.array([1]), np.array([HANG]))
    pids = pool.pids
    pool.close()
    assert pool.pids == [0, 0, 0]
    assert obs.tolist() == [[1, 0]] * 3
    del obs
    assert not children()
    assert open_files() == before
    wait_for_death(*pids)


def test_children_of_an_environment_die_with_it(tmp_path: Path) -> None:
    pool = started(config_of(tmp_path, has_child=True), num_envs=1)
    command(pool)
    killed = int((tmp_path / "child").read_text())
    os.kill(pool.pids[0], signal.SIGKILL)
    results(pool, {0})
    wait_for_death(killed)
    command(pool)
    closed = int((tmp_path / "child").read_text())
    pool.close()
    assert closed != killed
    wait_for_death(closed)


@pytest.mark.parametrize("last", ["pool.wait(0)", "pool.step(t.np.array([0]), t.np.array([t.HANG]))"])
def test_processes_and_their_children_die_with_the_pools_process(last: str, tmp_path: Path) -> None:
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); from pathlib import Path; import test_pool_faults as t\n"
        "pool = t.started(t.config_of(Path(sys.argv[2]), has_child=True), num_envs=1)\n"
        f"t.command(pool); {last}; print(pool.pids[0], flush=True); input()"
    )
    arguments = [sys.executable, "-c", code, str(Path(__file__).parent), str(tmp_path)]
    with subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        worker, child = int(owner.stdout.readline()), int((tmp_path / "child").read_text())
        owner.kill()
    wait_for_death(worker, child)


def schema_of_faulty() -> Schema:
    return schema_of(make(EnvConfig(generator=f"{FAULTY}:Faulty", kwargs={"directory": "nowhere"})))


def children() -> list[str]:
    return Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()


def open_files() -> dict[str, str]:
    """The targets of this process's descriptors."""
    listing = Path("/proc/self/fd")
    return {path.name: str(path.readlink()) for path in listing.iterdir() if path.is_symlink()}


@pytest.mark.parametrize("action", [RAISE, EXIT, END])
def test_the_task_of_an_episode_is_known_also_when_it_fails(pools: Any, action: int) -> None:
    pool = pools(num_envs=2)
    command(pool)
    said = command(pool, action, GO_ON)
    assert said[0].endings[0].task == {RAISE: "begun", EXIT: "begun", END: "ended"}[action]
    assert 1 not in said[1].endings

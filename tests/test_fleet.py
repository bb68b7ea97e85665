"""Whole fleets: real processes, real sockets, real disk, real kills."""

import json
import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import av
import pytest
from tests.conftest import COMMAND, Fleet, assert_counters_never_go_back
from tests.films import pictures

from minefleet.config.replay_partitioning import NUM_SHARDS
from minefleet.monitoring.status import read_status
from minefleet.runs.checkpoint_files import read_state
from minefleet.runs.episode_table import read_episodes
from minefleet.runs.run_yaml import Run, Shard, read_run
from minefleet.watch.watched_runs import marks
from minefleet_replay.engine import memory_state
from minefleet_replay.state.limits import limits_of
from minefleet_replay.storage.open_rocksdb import open_store

EXAMPLE = Path(__file__).parent.parent / "examples" / "custom.py"
pytestmark = pytest.mark.fleet

Train = Callable[..., Fleet]
Evaluate = Callable[..., dict[str, Any]]


def test_fleet_reaches_its_end_although_each_role_was_killed(train: Train) -> None:
    fleet = train("cartpole", "stop.env_steps=12000", "seed=4")
    for env_steps, role in ((2_000, "actor-0"), (4_000, "replay"), (6_000, "learner"), (8_000, "parameters")):
        fleet.wait_for_env_steps(env_steps)
        os.kill(fleet.pid(role), signal.SIGKILL)
    result = fleet.finish()

    assert result["stopped_by"] == "env_steps"
    assert result["episode_return_mean"] > 40
    assert_counters_never_go_back(fleet.rows())


def test_a_fleet_with_two_shards_and_an_evaluator_adds_up_though_a_shard_is_killed(train: Train) -> None:
    fleet = train("cartpole", "stop.env_steps=8000", "seed=5", f"{NUM_SHARDS}=2", "eval_interval=5", "eval_episodes=2")
    fleet.wait_for_env_steps(3_000)
    os.kill(fleet.pid("replay-1"), signal.SIGKILL)
    result = fleet.finish()
    rows, run = fleet.rows(), read_run(fleet.directory)

    assert result["stopped_by"] == "env_steps"
    assert_counters_never_go_back(rows)
    assert rows[-1]["trained_steps"] > 0.9 * rows[-1]["env_steps"]
    books = [replay_state_of(run, shard) for shard in run.shards]
    assert all(one.ledger.fragments.trained >= 4 * len(rows) for one in books)
    assert sum(one.progress.total.env_steps for one in books) >= rows[-1]["env_steps"]
    state = read_state(run.checkpoints / "latest")
    assert all(0 < cursor <= one.next_episode for cursor, one in zip(state.episode_cursors, books, strict=True))
    played = read_episodes(run.episodes)
    assert len(played) == len({(row["stream"], row["episode"]) for row in played})
    evaluations = [row for row in played if row["evaluation"]]
    assert evaluations and all(row["policy_version"] > 0 for row in evaluations)
    assert sum(not row["evaluation"] and not row["failure"] for row in played) == rows[-1]["episodes"]


def test_a_fleet_whose_store_breaks_goes_on_with_an_empty_one_and_its_counters(train: Train) -> None:
    fleet = train("cartpole", "stop.env_steps=8000", "seed=5")
    fleet.wait_for_env_steps(3_000)
    os.kill(fleet.pid("replay"), signal.SIGKILL)
    (shard,) = read_run(fleet.directory).shards
    (shard.store / "db" / "CURRENT").write_text("garbage")
    result = fleet.finish()

    assert result["stopped_by"] == "env_steps"
    assert_counters_never_go_back(fleet.rows())
    (restart, *_) = marks(fleet.directory)["restarts"]
    assert restart["what"] == "replay started again (killed by SIGKILL)" and restart["env_steps"] >= 3_000
    (aside,) = shard.store.glob("broken-*")
    assert (aside / "db" / "CURRENT").read_text() == "garbage"
    assert replay_state_of(read_run(fleet.directory), shard).progress.total.env_steps >= 8000


def test_actors_pause_while_parameters_hangs_and_go_on_with_it(train: Train) -> None:
    fleet = train("cartpole", "stop.env_steps=6000", "seed=6")
    fleet.wait_for_env_steps(2_000)
    pids = [fleet.pid(role) for role in ("parameters", "actor-0", "learner")]
    os.kill(pids[0], signal.SIGSTOP)
    try:
        fleet.wait_for(lambda: states(fleet)["actor-0"] == "paused" and states(fleet)["learner"] == "waiting")
        before = fleet.rows()[-1]["policy_version"]
    finally:
        os.kill(pids[0], signal.SIGCONT)
    fleet.wait_for(lambda: bool(fleet.rows()[-1]["policy_version"] > before + 2))
    assert [fleet.pid(role) for role in ("parameters", "actor-0", "learner")] == pids
    assert fleet.finish()["stopped_by"] == "env_steps"
    assert max(row["staleness_max"] for row in fleet.rows()) <= 1
    assert_counters_never_go_back(fleet.rows())


def states(fleet: Fleet) -> dict[str, str]:
    """The state of each role by its own word."""
    return {role.name: role.state for role in read_status(fleet.directory).roles}


def replay_state_of(run: Run, shard: Shard) -> memory_state.ReplayState:
    """The contents of a shard's store."""
    limits = limits_of(run, shard.index)
    store = open_store(shard.store, max_bytes=limits.max_bytes, fresh=False)
    try:
        return memory_state.read_state(store, limits)
    finally:
        store.close()


def test_actors_run_what_the_probe_expects_also_when_a_run_goes_on_with_rounded_weights(train: Train) -> None:
    first = train("recall", "stop.env_steps=2000")
    first.finish()
    exact = first.rows()
    assert rounded_tensors(first) == set()
    second = train(
        "train_config.wire_dtype=bfloat16",
        "stop.env_steps=8000",  # The first two rounds may begin before the learner has published anew.
        "--resume",
        str(first.directory),
        directory=first.directory,
    )
    second.finish()
    rounded = second.rows()[len(exact) :]
    for rows in (exact, rounded):
        assert sum(row["parity_steps"] for row in rows) > 0
        probed = [row for row in rows if row["parity_steps"]]
        assert max(max(row["parity_logp"], row["parity_value"]) for row in probed) < 1e-4
    assert rounded_tensors(second) > {"value_head.weight"}
    assert not any(name.startswith("value_norm.") for name in rounded_tensors(second))


def rounded_tensors(fleet: Fleet) -> set[str]:
    """Names of the tensors that the newest version holds as bfloat16."""
    newest = max((fleet.directory / "parameters" / "versions").iterdir(), key=lambda path: int(path.stem))
    tensors = json.loads(newest.read_text())["manifest"]["tensors"]
    return {tensor["name"] for tensor in tensors if tensor.get("wire_dtype") == "DTYPE_BFLOAT16"}


def frames_per_second(path: Path) -> float:
    with av.open(str(path)) as film:
        # Not the average: frames that the encoder had no time for leave gaps.
        return float(film.streams.video[0].base_rate or 0)


def test_a_run_films_every_so_often_and_says_where(train: Train) -> None:
    keys = [f"rollout_config.worker_config.{key}" for key in ("video_fps=7", "video_output_dir=films")]
    fleet = train("cartpole", "stop.env_steps=6000", "train_config.record_video_interval=2", "seed=7", *keys)
    fleet.finish()
    films = sorted((fleet.directory / "films").glob("version-*.mp4"), key=lambda path: path.stat().st_mtime)
    assert films and all(len(list(pictures(path))) > 5 for path in films)
    assert {frames_per_second(path) for path in films} == {7}
    said = (fleet.directory / "logs" / "learner.log").read_text()
    assert all(f"was filmed: {path}" in said for path in films[:-1])


def filming(fleet: Fleet) -> set[str]:
    """The actors that have filmed."""
    logs = (fleet.directory / "logs").glob("actor-*.log")
    return {log.stem for log in logs if "filmed an episode" in log.read_text()}


def test_another_actor_films_when_the_filming_one_is_killed(train: Train) -> None:
    keys = ("train_config.record_video_interval=4", "rollout_config.num_rollout_workers=3")
    fleet = train("cartpole", "stop.env_steps=1000000", "seed=7", *keys)
    fleet.wait_for(lambda: bool(filming(fleet)))
    (first,) = filming(fleet)
    os.kill(fleet.pid(first), signal.SIGKILL)
    fleet.wait_for(lambda: len(filming(fleet)) == 2)
    fleet.process.send_signal(signal.SIGINT)
    fleet.process.communicate()
    assert all(len(list(pictures(path))) > 5 for path in (fleet.directory / "videos").glob("version-*.mp4"))


def test_a_serial_run_turns_the_ring_in_order_and_repeats_itself(train: Train, tmp_path: Path) -> None:
    runs = [train("cartpole", "stop.env_steps=3000", "--serial", directory=tmp_path / name) for name in "ab"]
    for run in runs:
        assert run.finish()["env_steps"] >= 3_000
        assert max(row["staleness_max"] for row in run.rows()) == 0
        assert_counters_never_go_back(run.rows())
    a, b = ([(row["policy_loss"], row["grad_norm"], row["episode_return_mean"]) for row in run.rows()] for run in runs)
    assert len(a) > 5
    assert a == b
    assert list((runs[0].directory / "roles").iterdir()) == []
    again = train("--resume", str(runs[0].directory), directory=runs[0].directory)
    out, errors = again.process.communicate()
    assert json.loads(out)["stopped_by"] == "env_steps"
    assert "has trained to its stop.env_steps=3000" in errors
    changed = ("train_config.learning_rate=0.002", "stop.env_steps=3500")
    train(*changed, "--serial", "--resume", str(runs[0].directory), directory=runs[0].directory).finish()
    found = marks(runs[0].directory)
    (change,) = found["config_changes"]
    assert {key["key"] for key in change["keys"]} == {"train_config.learning_rate", "stop.env_steps"}
    assert [restart["iteration"] for restart in found["restarts"]] == [change["iteration"]] == [len(a)]


def test_a_serial_run_with_more_environments_than_replay_has_room_for_goes_on(train: Train) -> None:
    fleet = train("recall", "train_config.num_iterations=2", "--serial")
    fleet.finish()
    assert [row["trained_steps"] for row in fleet.rows()] == [1024, 2048]


def test_readme_example_learns(train: Train, evaluate: Evaluate) -> None:
    fleet = train(str(EXAMPLE))
    fleet.finish()
    assert evaluate(fleet.directory, 20)["return_mean"] > 15
    assert EXAMPLE.read_text().strip() in (EXAMPLE.parent.parent / "README.md").read_text()


def test_trainer_example_imitates_while_it_trains(train: Train) -> None:
    fleet = train(str(EXAMPLE.with_name("behaviour_cloning.py")), "stop.env_steps=4000", "seed=1")
    fleet.finish()
    losses = [row["auxiliary"]["behaviour_cloning"] for row in fleet.rows()]
    assert losses[-1] < 0.95 * losses[0]


def test_a_run_without_actors_of_its_own_trains_on_those_that_are_started_by_hand(train: Train, tmp_path: Path) -> None:
    settings = ("cartpole", "stop.env_steps=1000", "rollout_config.num_rollout_workers=0")
    fleet = train(*settings)
    fleet.wait_for(lambda: bool(fleet.pid("replay")))
    assert not fleet.pid("actor-0")
    by_hand = []
    for index in range(2):
        command = [*COMMAND, "serve", "actor", *settings, "--run-dir", str(fleet.directory), "--index", str(index)]
        with (tmp_path / f"actor-{index}.log").open("wb") as log:
            by_hand.append(subprocess.Popen(command, stderr=log))
    try:
        fleet.wait_for(lambda: all(fleet.pid(f"actor-{index}") == actor.pid for index, actor in enumerate(by_hand)))
        assert fleet.finish()["env_steps"] >= 1_000
    finally:
        for actor in by_hand:
            actor.terminate()
        codes = [actor.wait() for actor in by_hand]
    assert codes == [0, 0]

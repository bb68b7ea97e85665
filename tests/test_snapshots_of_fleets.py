"""Fleets whose machine is lost go on from a store: learners, snapshots and stores are killed in an upload."""

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.conftest import COMMAND, Fleet, assert_counters_never_go_back
from tests.object_stores import StoreServer, object_store
from tests.proxy import Proxy
from tests.role_process import wait_for

from minefleet.monitoring.journal import read_journal
from minefleet.monitoring.status import read_status
from minefleet.runs.checkpoint_files import read, read_state
from minefleet.runs.remote_snapshot_store import SnapshotStore

pytestmark = pytest.mark.fleet
Train = Callable[..., Fleet]
SLOW = 2e4
"""Bytes per second at which an upload lasts for seconds."""


def iteration_in(store: StoreServer) -> int:
    """Of the newest snapshot; -1 for none."""
    return int(SnapshotStore(store.target).newest().get("position", [-1])[-1])


def wait_for_an_upload_under_way(fleet: Fleet, store: StoreServer) -> None:
    """Waits until something is there that no snapshot names."""

    def is_under_way() -> bool:
        named = SnapshotStore(store.target).newest().get("files", {}).values()
        return any(name.startswith("file-") and name not in named for name in store.names())

    fleet.wait_for(is_under_way)


def restore(source: str, directory: Path) -> None:
    subprocess.run([*COMMAND, "restore", source, str(directory)], check=True, capture_output=True)


def lose(fleet: Fleet) -> None:
    """Takes the machine away."""
    fleet.process.kill()
    fleet.process.communicate()
    wait_for(
        lambda: not any(Path(f"/proc/{fleet.pid(role)}").exists() for role in ("learner", "replay") if fleet.pid(role))
    )
    shutil.rmtree(fleet.directory)


def test_fleet_goes_on_elsewhere_though_learner_store_and_machine_were_lost_in_uploads(
    train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with object_store("s3", tmp_path / "store") as store, Proxy(store.address) as network:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{network.address}")
        keys = (f"upload_config.target={store.target}", "upload_config.min_interval_s=0.5", "seed=3")
        fleet = train("cartpole", "stop.env_steps=200000", *keys)
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{store.address}")
        fleet.wait_for(lambda: iteration_in(store) > 0)
        network.bytes_per_s = SLOW
        wait_for_an_upload_under_way(fleet, store)
        killed, before = fleet.pid("learner"), iteration_in(store)
        os.kill(killed, signal.SIGKILL)
        SnapshotStore(store.target).restore(tmp_path / "looked-at")
        assert read_state(tmp_path / "looked-at" / "checkpoints" / "latest").iteration >= before
        network.bytes_per_s = 0
        fleet.wait_for(lambda: fleet.pid("learner") not in (0, killed) and iteration_in(store) > before)

        network.bytes_per_s = SLOW
        wait_for_an_upload_under_way(fleet, store)
        store.kill()
        trained = fleet.rows()[-1]["iteration"]
        fleet.wait_for(lambda: fleet.rows()[-1].get("snapshot_lag", 0) > 8)
        (learner,) = [role for role in read_status(fleet.directory).roles if role.name == "learner"]
        assert learner.stats["snapshot_lag"] > 4
        network.bytes_per_s = 0
        store.start()
        fleet.wait_for(lambda: iteration_in(store) > trained and fleet.rows()[-1]["snapshot_lag"] < 8)
        said = (fleet.directory / "logs" / "learner.log").read_text()
        assert said.count("no snapshot; training goes on: cannot use s3://bucket/run") < 20
        lose(fleet)

        restore(store.target, tmp_path / "elsewhere")
        lines = (tmp_path / "elsewhere" / "metrics.jsonl").read_text().splitlines(keepends=True)
        kept = [json.loads(line) for line in lines if line.endswith("\n")][: iteration_in(store)]
        place = tmp_path / "elsewhere"
        bound = read_state(place / "checkpoints" / "latest").env_steps + 5000
        again = train(f"stop.env_steps={bound}", "--resume", str(place), directory=place)
        result, rows = again.finish(), again.rows()
        assert result["stopped_by"] == "env_steps" and result["episode_return_mean"] > 50
        assert_counters_never_go_back(rows)
        assert rows[: len(kept)] == kept and len(kept) >= trained
        assert bound <= result["env_steps"] < bound + 1500
        assert [line["event"] for line in read_journal(again.directory)] == ["start", "restart", "resume", "resume"]
        assert (
            iteration_in(store)
            == rows[-1]["iteration"]
            == read_state(again.directory / "checkpoints" / "latest").iteration
        )


def test_spot_notice_ends_a_fleet_in_order_and_it_goes_on_elsewhere_from_its_last_step(
    train: Train, tmp_path: Path
) -> None:
    with object_store("ftp", tmp_path / "store") as store:
        # Nothing is due for an hour: what is there was sent between the notice and the end.
        keys = (f"upload_config.target={store.target}", "upload_config.min_interval_s=3600", "seed=4")
        fleet = train("cartpole", "stop.env_steps=40000", "train_config.record_video_interval=5", *keys)
        fleet.wait_for(lambda: iteration_in(store) >= 0)
        first = iteration_in(store)
        fleet.wait_for_env_steps(4_000)
        assert iteration_in(store) == first
        fleet.process.send_signal(signal.SIGTERM)
        out, errors = fleet.process.communicate()
        assert fleet.process.returncode == 130 and json.loads(out)["stopped_by"] == "signal", errors
        assert "killing" not in errors
        last = read_state(fleet.directory / "checkpoints" / "latest")
        before, journal = fleet.rows(), (fleet.directory / "journal.jsonl").read_text()
        films = sorted(path.name for path in (fleet.directory / "videos").glob("version-*.mp4"))
        shutil.rmtree(fleet.directory)

        restore(store.target, tmp_path / "elsewhere")
        assert read_state(tmp_path / "elsewhere" / "checkpoints" / "latest") == last
        assert (tmp_path / "elsewhere" / "journal.jsonl").read_text() == journal
        sent = {path.name for path in (tmp_path / "elsewhere" / "videos").iterdir()}
        assert sent and sent <= set(films)  # The last one may be done after the learner.
        place, bound = tmp_path / "elsewhere", last.env_steps + 3000
        again = train(f"stop.env_steps={bound}", "--resume", str(place), directory=place)
        result, rows = again.finish(), again.rows()
        assert rows[: len(before)] == before
        assert_counters_never_go_back(rows)
        assert rows[len(before)]["env_steps"] > before[-1]["env_steps"]
        assert bound <= result["env_steps"] < bound + 1500


def test_snapshot_that_is_killed_leaves_the_one_before_and_the_run_goes_on(train: Train, tmp_path: Path) -> None:
    with object_store("ftp", tmp_path / "store") as store, Proxy(store.address) as network:
        fleet = train("cartpole", "stop.env_steps=1000000", "seed=5")
        fleet.wait_for_env_steps(1_000)
        command = [*COMMAND, "snapshot", str(fleet.directory), store.target]
        subprocess.run(command, check=True, capture_output=True)
        before = iteration_in(store)
        fleet.wait_for_env_steps(3_000)
        network.bytes_per_s = SLOW / 4
        command[-1] = store.target.replace(store.address, network.address)
        with subprocess.Popen(command) as dying:
            wait_for_an_upload_under_way(fleet, store)
            dying.kill()
        SnapshotStore(store.target).restore(tmp_path / "before")
        assert read_state(tmp_path / "before" / "checkpoints" / "latest").iteration == before
        subprocess.run([*COMMAND, "snapshot", str(fleet.directory), store.target], check=True, capture_output=True)
        assert iteration_in(store) > before
        named = SnapshotStore(store.target).newest()["files"].values()
        assert len(store.names()) == len(set(named)) + 1
        reached = fleet.rows()[-1]["iteration"]
        fleet.wait_for(lambda: fleet.rows()[-1]["iteration"] > reached + 2)
        assert [line["event"] for line in read_journal(fleet.directory)] == ["start"]


def test_serial_run_that_goes_on_elsewhere_ends_as_its_twin_that_stayed(train: Train, tmp_path: Path) -> None:
    keys = ("--serial", "rollout_config.worker_config.deterministic=true", "stop.env_steps=2000", "seed=6")
    train("cartpole", *keys, directory=tmp_path / "here").finish()
    subprocess.run([*COMMAND, "snapshot", str(tmp_path / "here"), f"file://{tmp_path}/store"], check=True)
    restore(f"file://{tmp_path}/store", tmp_path / "elsewhere")
    ends = {}
    for name in ("here", "elsewhere"):
        more = ("stop.env_steps=4000", "--serial", "--resume", str(tmp_path / name))
        train(*more, directory=tmp_path / name).finish()
        ends[name] = read(tmp_path / name / "checkpoints" / "latest")
    here, elsewhere = ends["here"], ends["elsewhere"]
    assert here.state.iteration > 10 and here.state.version == elsewhere.state.version
    for part in ("policy", "optimizer", "rng"):
        ours, theirs = getattr(here, part), getattr(elsewhere, part)
        assert {key: value.tobytes() for key, value in ours.items()} == {k: v.tobytes() for k, v in theirs.items()}

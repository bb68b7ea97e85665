"""Snapshots in real stores: what is in them, and what is left when somebody dies or the store fails."""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from tests.conftest import COMMAND
from tests.minefleet.runs.test_checkpoint_files import make
from tests.object_stores import KINDS, StoreServer, object_store
from tests.role_process import small_disk

from minefleet.config.load import load
from minefleet.core.errors import ConfigError, FencedError, UnavailableError
from minefleet.core.schema import Schema
from minefleet.runs.checkpoint_files import newest, read, write
from minefleet.runs.checkpoint_retention import prune
from minefleet.runs.remote_snapshot_store import SnapshotStore
from minefleet.runs.run_yaml import Run


@pytest.fixture(params=KINDS)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[StoreServer]:
    with object_store(request.param, tmp_path / "store") as server:
        yield server


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[StoreServer]:
    with object_store("file", tmp_path / "store") as server:
        yield server


def run_in(directory: Path, iteration: int = 7, run_id: str = "a", epoch: int = 1) -> Run:
    """A run with everything of which a snapshot takes something."""
    run = Run(directory=directory, config=load("CartPole-v1"), schema=Schema(obs={}, action={}), architecture="a")
    directory.mkdir(exist_ok=True)
    run.write()
    go_on(run, iteration, run_id, epoch)
    for name, text in {
        "metrics.jsonl": f'{{"iteration": {iteration}}}\n',
        "journal.jsonl": '{"event": "start"}\n',
        "rollout.pid": "1",
        "videos/version-1.mp4": "a film",
        "videos/.recording-2.mp4": "half a film",
        "replay/counters.json": "{}",
        "replay/db/CURRENT": "a database",
        "parameters/identity.json": json.dumps({"run_id": run_id, "newest_version": 3, "pinned": [2]}),
        "parameters/versions/9.json": "{}",
        "logs/learner.log": "words",
    }.items():
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_text(text)
    return run


def go_on(run: Run, iteration: int, run_id: str = "a", epoch: int = 1) -> None:
    made = make(iteration, run_id, epoch=epoch)
    write(run.checkpoints, replace(made, state=replace(made.state, best_return=1.0, best_iteration=3)))


def files_of(directory: Path) -> dict[str, bytes]:
    paths = [path for path in directory.rglob("*") if path.is_file() and not path.parent.is_symlink()]
    return {str(path.relative_to(directory)): path.read_bytes() for path in paths if "latest" not in path.parts}


def test_snapshot_restores_what_a_run_goes_on_from_and_nothing_else(store: StoreServer, tmp_path: Path) -> None:
    run = run_in(tmp_path / "run", iteration=3)
    go_on(run, 7)
    taken = SnapshotStore(store.target).upload(run)
    assert SnapshotStore(store.target).restore(tmp_path / "again") == taken
    before, after = files_of(run.directory), files_of(tmp_path / "again")
    identity = json.loads(after.pop("parameters/identity.json"))
    assert identity == {"run_id": "a", "newest_version": 9, "pinned": []}
    left = {"rollout.pid", "videos/.recording-2.mp4", "replay/db/CURRENT", "logs/learner.log"}
    left |= {"parameters/identity.json", "parameters/versions/9.json"}
    assert after == {name: data for name, data in before.items() if name not in left}
    checkpoints = tmp_path / "again" / "checkpoints"
    assert newest(checkpoints) == (checkpoints / "00000007").resolve()
    assert (checkpoints / "best").resolve() == (checkpoints / "00000003").resolve()
    assert read(checkpoints / "latest").state.iteration == 7


def test_store_keeps_what_the_run_keeps_and_is_sent_only_what_has_changed(
    store: StoreServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, uploads = run_in(tmp_path / "run", iteration=2), SnapshotStore(store.target)
    uploads.upload(run)
    before = set(store.names())
    go_on(run, 7)
    prune(run.checkpoints, save_interval=0, keep_interval=0)
    sent: list[str] = []
    write_object = uploads._fs.pipe_file

    def send(path: str, data: bytes) -> None:
        sent.append(path)
        write_object(path, data)

    monkeypatch.setattr(uploads._fs, "pipe_file", send)
    taken = uploads.upload(run)
    assert set(store.names()) == {*taken["files"].values(), *(Path(path).name for path in sent)}
    assert len(sent) == len(set(store.names()) - before)
    assert not any(name.startswith("checkpoints/00000002") for name in taken["files"])


class DeathError(BaseException):
    """Nobody catches it."""


def test_whoever_dies_in_a_snapshot_leaves_the_old_one_or_the_new_one(
    folder: StoreServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, left = run_in(tmp_path / "run", iteration=2), 0
    SnapshotStore(folder.target).upload(run)
    seen = []
    for iteration in range(3, 100):
        go_on(run, iteration)
        prune(run.checkpoints, save_interval=0, keep_interval=0)
        dying = SnapshotStore(folder.target)
        left = iteration - 3

        def die(path: str, data: bytes = b"", system: object = dying._fs) -> None:
            nonlocal left
            if not left:
                if data:
                    Path(path).write_bytes(data[: len(data) // 2])
                raise DeathError
            left -= 1
            Path(path).write_bytes(data) if data else Path(path).unlink()

        with monkeypatch.context() as patch, suppress(DeathError):
            patch.setattr(dying._fs, "pipe_file", die)
            patch.setattr(dying._fs, "rm_file", die)
            dying.upload(run)
            break
        target = tmp_path / f"again-{iteration}"
        seen.append(SnapshotStore(folder.target).restore(target)["position"][-1])
        assert read(target / "checkpoints" / "latest").state.iteration == seen[-1]
        SnapshotStore(folder.target).upload(run)
    assert len(seen) > 5
    assert {then - now for now, then in zip(seen, range(3, 100), strict=False)} == {0, 1}


@pytest.mark.parametrize("damage", ["flipped", "cut", "gone"])
def test_damaged_snapshot_is_refused_by_the_files_name_and_leaves_nothing(
    folder: StoreServer, tmp_path: Path, damage: str
) -> None:
    taken = SnapshotStore(folder.target).upload(run_in(tmp_path / "run"))
    place = Path(folder.target.removeprefix("file://")) / taken["files"]["checkpoints/00000007/policy.safetensors"]
    data = bytearray(place.read_bytes())
    data[len(data) // 2] ^= 1
    place.write_bytes(data[:-1] if damage == "cut" else data)
    if damage == "gone":
        place.unlink()
    with pytest.raises(
        ConfigError, match=r"is damaged: checkpoints/00000007/policy.safetensors is not what was written"
    ):
        SnapshotStore(folder.target).restore(tmp_path / "again")
    assert [path.name for path in tmp_path.iterdir() if "again" in path.name] == []


def test_snapshot_whose_paths_lead_elsewhere_is_refused(folder: StoreServer, tmp_path: Path) -> None:
    uploads = SnapshotStore(folder.target)
    taken = uploads.upload(run_in(tmp_path / "run"))
    for name in ("../run.yaml", "/run.yaml"):
        uploads._commit(taken | {"files": {name: taken["files"]["run.yaml"]}})
        with pytest.raises(ConfigError, match="is not what was written"):
            uploads.restore(tmp_path / "again")
    assert not (tmp_path / "run.yaml").exists()


def test_older_learner_and_another_run_do_not_touch_a_snapshot(folder: StoreServer, tmp_path: Path) -> None:
    SnapshotStore(folder.target).upload(run_in(tmp_path / "newer", iteration=5, epoch=2))
    before = folder.names()
    for name, run_id in (("older", "a"), ("other", "b")):
        with pytest.raises(FencedError, match=r"another run than .*, or a newer snapshot"):
            SnapshotStore(folder.target).upload(run_in(tmp_path / name, iteration=9, run_id=run_id))
    assert folder.names() == before


def test_run_without_a_checkpoint_or_with_one_elsewhere_has_no_snapshot(folder: StoreServer, tmp_path: Path) -> None:
    run = run_in(tmp_path / "run")
    away = replace(run.config, train_config=replace(run.config.train_config, save_path=str(tmp_path / "elsewhere")))
    with pytest.raises(ConfigError, match=r"save_path=.*elsewhere is not in it"):
        SnapshotStore(folder.target).upload(replace(run, config=away))
    shutil.rmtree(run.checkpoints)
    with pytest.raises(ConfigError, match="no checkpoint yet"):
        SnapshotStore(folder.target).upload(run)
    assert SnapshotStore(folder.target).restore(tmp_path / "again") == {}
    assert not (tmp_path / "again").exists()


def test_checkpoint_that_is_about_to_be_removed_stays_until_it_is_uploaded(
    folder: StoreServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, uploads = run_in(tmp_path / "run", iteration=2), SnapshotStore(folder.target)
    write_object = uploads._fs.pipe_file

    def write_late(path: str, data: bytes) -> None:
        if newest(run.checkpoints) == (run.checkpoints / "00000002").resolve():
            go_on(run, 7)
            prune(run.checkpoints, save_interval=0, keep_interval=0)
        write_object(path, data)

    monkeypatch.setattr(uploads._fs, "pipe_file", write_late)
    uploads.upload(run)
    uploads.restore(tmp_path / "again")
    assert read(tmp_path / "again" / "checkpoints" / "latest").state.iteration == 2
    prune(run.checkpoints, save_interval=0, keep_interval=0)
    assert not (run.checkpoints / "00000002").exists()


@pytest.mark.parametrize("kind", ["s3", "ftp"])
def test_store_that_was_away_gets_the_next_snapshot(kind: str, tmp_path: Path) -> None:
    run = run_in(tmp_path / "run")
    with object_store(kind, tmp_path / "store") as server:
        SnapshotStore(server.target).upload(run)
        go_on(run, 9)
        server.kill()
        with pytest.raises(UnavailableError, match=r"cannot use \w+://\S+: .*") as raised:
            SnapshotStore(server.target).upload(run)
        assert "\n" not in str(raised.value)
        server.start()
        SnapshotStore(server.target).upload(run)
        assert SnapshotStore(server.target).restore(tmp_path / "again")["position"] == [0, 1, 9]


def test_wrong_credentials_and_missing_buckets_are_said_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = run_in(tmp_path / "run")
    with object_store("s3", tmp_path / "store") as server:
        with pytest.raises(UnavailableError, match=r"cannot use s3://other/run: .*bucket does not exist"):
            SnapshotStore("s3://other/run").upload(run)
        server.kill()
        server.start(INITIAL_NO_AUTH_ACTION_COUNT="3")  # To make the bucket.
        command = [*COMMAND, "snapshot", str(run.directory), server.target]
        for name, words in (("wrong", "PermissionError"), ("", "NoCredentialsError")):
            monkeypatch.setenv("AWS_ACCESS_KEY_ID", name) if name else monkeypatch.delenv("AWS_ACCESS_KEY_ID")
            refused = subprocess.run(command, capture_output=True, text=True, check=False)
            assert (refused.returncode, refused.stdout) == (1, "")
            assert re.fullmatch(rf"minefleet: cannot use s3://bucket/run: {words}: .+\n", refused.stderr)


def test_full_store_keeps_the_snapshot_before_and_a_full_disk_gets_no_directory(tmp_path: Path) -> None:
    run = run_in(tmp_path / "run")
    with small_disk(tmp_path / "small", 2**20) as small:
        (small / "run").mkdir()
        target = f"file://{small}/run"
        SnapshotStore(target).upload(run)
        go_on(run, 9)
        (run.directory / "metrics.jsonl").write_bytes(os.urandom(2**20))
        with pytest.raises(UnavailableError, match="No space left on device"):
            SnapshotStore(target).upload(run)
        assert SnapshotStore(target).restore(tmp_path / "again")["position"] == [0, 1, 7]
        (run.directory / "metrics.jsonl").write_bytes(b"")
        assert SnapshotStore(target).upload(run)["position"] == [0, 1, 9]
        (small / "others").write_bytes(bytes(shutil.disk_usage(small).free - 2**14))
        with pytest.raises(ConfigError, match=r"cannot write .*No space left on device"):
            SnapshotStore(target).restore(small / "again")
        assert not (small / "again").exists()

"""Snapshots of a run where fsspec reaches, as `s3://BUCKET/RUN` or `file:///DIR`: the newest one, whole or not at all.

    snapshot-ROLLBACKS-EPOCH-ITERATION-TIME-DIGEST   where the run stood, and the object of each file of its directory
    file-DIGEST

Names hold the digest of the bytes, so that nothing is ever changed, a torn object shows, and what is there is not sent
again. A snapshot is written when its files are there; then what it does not name is removed. The stores of replay and
parameters stay behind, except for their counts: the learner publishes its weights as the next version, and steps that
were not trained on are played again.
"""

import json
import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, TypeAlias

import xxhash

from minefleet.core.atomic_files import appearing, write_durably
from minefleet.core.errors import ConfigError, FencedError, UnavailableError
from minefleet.runs.checkpoint_files import BEST, LATEST, numbered, read_state
from minefleet.runs.checkpoint_retention import hold
from minefleet.runs.run_yaml import JOURNAL_FILE, Run
from minefleet.runs.trained_policy_files import hold_checkpoint

OBJECTS = ("snapshot-", "file-")
LEFT_BEHIND = ("rollout.pid", "targets.json", JOURNAL_FILE)
"""Files that are true on their machine only, and one that is read before all others."""
EVENT = b'"event": "%b"'
"""In a line of the journal."""
Snapshot: TypeAlias = dict[str, Any]
Names: TypeAlias = dict[tuple[Path, int, int], str]
"""Of objects, by path, time and size of their files: nothing is read again that has not changed."""


class SnapshotStore:
    """The objects at a target. Each call raises `UnavailableError` where the store fails."""

    def __init__(self, target: str, names: Names | None = None) -> None:
        """Connects; `names` are those of objects that an earlier one has written."""
        self._target, self._names = target, {} if names is None else names
        with self._reaching():
            from fsspec.core import url_to_fs

            self._fs, self._root = url_to_fs(target.rstrip("/"), use_listings_cache=False)

    def upload(self, run: Run) -> Snapshot:
        """Makes the run, as it is now, the newest snapshot; the run may go on meanwhile.

        Raises:
            ConfigError: If there is nothing to go on from, or it is damaged.
            FencedError: If there is a newer snapshot, or another run's.
        """
        known, journal = self.newest(), run.directory / JOURNAL_FILE
        # Before the checkpoints: a rollback that comes meanwhile must not stand beside checkpoints that it undoes.
        lines = journal.read_bytes() if journal.exists() else b""
        with ExitStack() as stack:
            checkpoints = _hold_checkpoints(run, stack)
            state = read_state(checkpoints[0])
            position = [_rollbacks(lines), state.epoch, state.iteration]
            if known and (known["run_id"] != state.run_id or known["position"] > position):
                held = f"run {known['run_id']}; rollbacks, epoch and iteration {known['position']}"
                raise FencedError(f"{self._target} holds another run than {state.run_id}, or a newer snapshot: {held}")
            paths = _files(run, checkpoints)
            for gone in self._names.keys() - map(_key, paths):
                del self._names[gone]
            # Before anything is sent, for which a full store may have no room otherwise.
            self._sweep(*known.get("files", {}).values(), *self._snapshots(), *self._names.values())
            if not (there := self._listed()):
                self._make_root()
            files = {
                str(path.relative_to(run.directory)): self._put(path, there)
                for path in paths
                if path.parent in checkpoints or path.exists()  # The oldest video goes when there is a new one.
            }
            if lines:
                files[JOURNAL_FILE] = self._write("file-", lines, there)
            if (identity := run.parameters / "identity.json").exists():
                files["parameters/identity.json"] = self._write("file-", _without_versions(identity), there)
            best = run.checkpoints / (run.checkpoints / BEST).resolve().name
        links = {LATEST: checkpoints[0]} | dict([(BEST, best)] * (best in checkpoints))
        places = {name: str(place.relative_to(run.directory)) for name, place in links.items()}
        stood = {"run_id": state.run_id, "position": position, "env_steps": state.env_steps}
        return self._commit(stood | {"files": files, "links": places})

    def restore(self, directory: Path) -> Snapshot:
        """Makes the run directory of the newest snapshot, whole or not at all; returns the snapshot, {} for none.

        Raises:
            ConfigError: If a file is damaged, or the directory is not empty or cannot be written.
        """
        if not (snapshot := self.newest()):
            return snapshot
        with appearing(directory) as aside:
            for name, stored in snapshot["files"].items():
                data, path = self._read(stored), aside / name
                if _digest(data) not in stored or not path.resolve().is_relative_to(aside):
                    raise ConfigError(f"{self._target} is damaged: {name} is not what was written")
                path.parent.mkdir(parents=True, exist_ok=True)
                write_durably(path, data)
            links = [each for each in snapshot["links"].items() if (aside / each[1]).resolve().is_relative_to(aside)]
            for name, place in links:
                (aside / place).with_name(Path(name).name).symlink_to(Path(place).name)
        return snapshot

    def newest(self) -> Snapshot:
        """The newest snapshot that is whole; {} where there is none."""
        names = self._snapshots()
        found: Snapshot = json.loads(next((data for name in names if _digest(data := self._read(name)) in name), b"{}"))
        # One that is listed may be gone by now: then there is a newer one.
        return found if found or set(names) <= self._listed().keys() else self.newest()

    def _commit(self, snapshot: Snapshot) -> Snapshot:
        """Makes a snapshot the newest, and removes what it does not name."""
        needed = set(snapshot["files"].values())
        if needed <= self._listed().keys():
            prefix = "-".join(["snapshot", *(f"{number:010}" for number in snapshot["position"]), f"{time.time_ns()}-"])
            needed.add(self._write(prefix, json.dumps(snapshot).encode(), {}))
        if self.newest() != snapshot:
            raise FencedError(f"somebody else changes {self._target}")
        self._sweep(*needed)
        return snapshot

    def _sweep(self, *needed: str) -> None:
        """Removes all objects but those."""
        for surplus in self._listed().keys() - needed:
            with self._reaching():
                self._fs.rm_file(f"{self._root}/{surplus}")

    def _snapshots(self) -> list[str]:
        """The names of all snapshots, the newest first."""
        return sorted((name for name in self._listed() if name.startswith("snapshot-")), reverse=True)

    def _put(self, path: Path, there: dict[str, bool]) -> str:
        """Writes a file that is not there whole; returns the name of its object."""
        if not there.get(self._names.get(key := _key(path), "")):
            self._names[key] = self._write("file-", path.read_bytes(), there)
        return self._names[key]

    def _write(self, prefix: str, data: bytes, there: dict[str, bool]) -> str:
        if not there.get(name := f"{prefix}{_digest(data)}"):
            with self._reaching():
                self._fs.pipe_file(f"{self._root}/{name}", data)
            there[name] = True
        return name

    def _read(self, name: str) -> bytes:
        """The bytes of an object; none where it is gone."""
        with self._reaching(), suppress(FileNotFoundError):
            return bytes(self._fs.cat_file(f"{self._root}/{name}"))
        return b""

    def _listed(self) -> dict[str, bool]:
        """Our objects, and whether each has all its bytes."""
        with self._reaching(), suppress(FileNotFoundError):
            sizes = {Path(each["name"]).name: each["size"] for each in self._fs.ls(self._root, detail=True)}
            return {name: name.endswith(f"-{size}") for name, size in sizes.items() if name.startswith(OBJECTS)}
        return {}

    def _make_root(self) -> None:
        """Makes the folder, in stores that have some; a bucket is nothing to be made in passing."""
        with self._reaching():
            if not self._fs.exists(self._root):
                self._fs.mkdir(self._root, create_parents=False)

    @contextmanager
    def _reaching(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # Each store has errors of its own.
            reason = " ".join(str(error).split())
            raise UnavailableError(f"cannot use {self._target}: {type(error).__name__}: {reason}") from error


def _hold_checkpoints(run: Run, stack: ExitStack) -> list[Path]:
    """The checkpoints of a run, the newest first; none is removed until the stack is closed."""
    if not run.checkpoints.is_relative_to(run.directory):
        raise ConfigError(
            f"a snapshot has the run directory only: train_config.save_path={run.checkpoints} is not in it"
        )
    newest, descriptor = hold_checkpoint(run.directory)
    held = {run.checkpoints / newest.name: descriptor}
    held |= {path: hold(path) for path in numbered(run.checkpoints).values() if path not in held}
    found = {path: descriptor for path, descriptor in held.items() if descriptor is not None}
    for descriptor in found.values():
        stack.callback(os.close, descriptor)
    return list(found)


def _files(run: Run, checkpoints: list[Path]) -> list[Path]:
    """The files of a snapshot. The counts of replay come before those of parameters, which must not be behind."""
    videos = run.directory / run.config.rollout_config.worker_config.video_output_dir
    paths = [shard.store / "counters.json" for shard in run.shards]
    for folder in (*checkpoints, videos, run.directory / "tensorboard", run.directory):
        paths += sorted(folder.glob("[!.]*"))
    return [p for p in paths if p.is_file() and p.is_relative_to(run.directory) and p.name not in LEFT_BEHIND]


def _rollbacks(journal: bytes) -> int:
    """The rollbacks that a learner has started after; what one that is open undoes is still there."""
    rollback = EVENT % b"rollback"
    is_open = journal.rfind(rollback) > max(journal.rfind(EVENT % start) for start in (b"start", b"resume"))
    return journal.count(rollback) - is_open


def _without_versions(identity: Path) -> bytes:
    """The identity of parameters that hold no version, and issue none that was issued before."""
    content = json.loads(identity.read_text())
    issued = [int(path.stem) for path in (identity.parent / "versions").glob("*.json") if path.stem.isdigit()]
    return json.dumps(content | {"newest_version": max([content["newest_version"], *issued]), "pinned": []}).encode()


def _key(path: Path) -> tuple[Path, int, int]:
    return (path, (stat := path.stat()).st_mtime_ns, stat.st_size)


def _digest(data: bytes) -> str:
    return f"{xxhash.xxh3_128_hexdigest(data)}-{len(data)}"

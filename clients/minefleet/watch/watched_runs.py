"""Finds the runs that are watched, and reads what their files say."""

import re
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from functools import lru_cache, partial
from itertools import chain
from pathlib import Path
from typing import Any

import yaml

from minefleet.core.errors import FleetError, NotFoundError
from minefleet.core.surrogate_replacement import readable
from minefleet.core.tree import flatten
from minefleet.launch.torchrun_variables import LEARNER, is_rank
from minefleet.monitoring.journal import Line, differing_keys, read_journal
from minefleet.monitoring.jsonl_tail import AXES, last_row
from minefleet.monitoring.learner_requests_in_journal import ROLLBACK
from minefleet.monitoring.plot import evaluations_in
from minefleet.monitoring.slot_queries import SlotStatus, StreamSteps, count_steps, get_frame, list_slots
from minefleet.monitoring.status import is_of_this_machine, read_cards, read_status
from minefleet.rpc.credentials import OPERATOR, Credentials, read_credentials
from minefleet.runs.checkpoint_files import numbered, read_state
from minefleet.runs.episode_table import read_last_episodes
from minefleet.runs.run_yaml import METRICS_FILE, RUN_FILE, Run, read_run, run_directories, to_dict
from minefleet.watch.thinned_metrics_reader import Row, has_place, numbers, read_curves

MARKED_POINTS = 2000
"""Rows in which evaluations are looked for: each stands in all rows until the next one."""
MAX_RESTARTS, FAILED_EPISODES = 500, 50
MAX_CALLS = 64
"""Actors that are asked at once."""
PROGRESS_S = 120.0
"""A run on other machines that has written nothing for so long is taken for one that is over."""
LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
ACTOR, REPLAY = "ROLE_ACTOR", "ROLE_REPLAY"
STEP_KEYS = ("trained_steps", "dropped_steps", "trained_share")
EVALUATOR = "evaluator"
"""The name of the actor that only evaluates: it shows no slots."""
VIDEO_VERSION = re.compile(r"version-(\d{1,15})-")


def find_runs(places: Sequence[Path]) -> dict[str, Path]:
    """The run directories in and among these, the newest first, by names that no two share."""
    runs: dict[str, Path] = {}
    for directory in sorted(
        {path.absolute() for path in run_directories(places)}, key=lambda run: _changed_s(run / RUN_FILE), reverse=True
    ):
        name, number = readable(directory.name), 1
        while name in runs:
            number += 1
            name = f"{readable(directory.name)}~{number}"
        runs[name] = directory
    return runs


def _changed_s(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def summary(name: str, directory: Path) -> dict[str, Any]:
    """A run's newest numbers, and whether a process of it lives on this machine."""
    metrics = directory / METRICS_FILE
    row = dict(numbers(last_row(metrics)))
    shown = {key: row.get(key) for key in ("iteration", "env_steps", "episode_return_mean", "wall_s")}
    updated_s = _changed_s(metrics) or _changed_s(directory / RUN_FILE)
    is_live = any(_lives(card, updated_s) for card in read_cards(directory))
    return {
        "id": name,
        "directory": str(directory),
        "is_live": is_live,
        "updated_s": updated_s,
        **shown,
        "env": _env(directory, _changed_s(directory / RUN_FILE)),
    }


@lru_cache(maxsize=1024)
def _env(directory: Path, _changed_s: float) -> str:
    """The environment of a run, also of one whose keys are no longer known."""
    try:
        env = yaml.load((directory / RUN_FILE).read_bytes(), LOADER)["config"]["env"]
        return str(env.get("id") or env.get("generator", ""))
    except (OSError, yaml.YAMLError, AttributeError, LookupError, RecursionError, TypeError, ValueError):
        return ""


def _lives(card: Row, updated_s: float) -> bool:
    """Whether a role lives, as far as can be known without a call: on other machines, while the run makes progress."""
    if is_of_this_machine(card["address"] or card["metrics_address"]):
        return Path(f"/proc/{card['pid']}").exists()
    return time.time() - updated_s < PROGRESS_S


def open_run(directory: Path) -> Run:
    """A run, read again only where its file has changed.

    Raises:
        ConfigError: If it cannot be read.
    """
    try:
        changed = (directory / RUN_FILE).stat().st_mtime_ns
    except OSError as error:
        raise NotFoundError(f"the run in {directory} has gone") from error
    return _open_run(directory, changed)


@lru_cache(maxsize=256)
def _open_run(directory: Path, _changed: int) -> Run:
    return read_run(directory)


def details(name: str, directory: Path) -> dict[str, Any]:
    """The configuration, the spaces, and the names of what can be drawn."""
    run, row = open_run(directory), last_row(directory / METRICS_FILE)
    places = {"metrics": run.metrics, "episodes": run.episodes, "logs": run.logs, "checkpoints": run.checkpoints}
    return {
        "id": name,
        "directory": str(directory),
        "config": to_dict(run.config),
        "schema": run.schema.to_dict(),
        "has_pictures": run.frame_shape is not None or any(leaf.is_pixels for leaf in flatten(run.schema.obs).values()),
        "tasks": sorted(row.get("tasks", {})),
        "keys": sorted(key for key, _ in numbers(row)),
        "files": {kind: str(path) for kind, path in places.items()},
    }


def marks(directory: Path) -> dict[str, Any]:
    """Evaluations, the checkpoints that are kept, and what the journal says."""
    run = open_run(directory)
    rows = read_curves(run.metrics, points=MARKED_POINTS).rows
    by_steps = {row["env_steps"]: row for row in rows}
    lines = [line for line in read_journal(directory) if has_place(line)]
    return {
        "evaluations": [_evaluation(by_steps[steps], mean) for steps, mean in evaluations_in(rows)],
        "checkpoints": list(_checkpoints(run)),
        "restarts": list(_restarts(lines))[-MAX_RESTARTS:],
        "config_changes": [_place(line) | {"keys": keys} for line in lines if (keys := _keys(line))],
    }


def _evaluation(row: Row, mean: float) -> Row:
    return _place(row) | {"policy_version": row["eval_policy_version"], "return_mean": mean}


def _place(row: Row) -> Row:
    return {axis: row[axis] for axis in AXES}


def _restarts(lines: Sequence[Line]) -> Iterator[Row]:
    """The restarts. A learner's stands where it goes on: what it had trained after that is trained again."""
    death = ""
    for line in lines:
        name, how = line.get("name", LEARNER), f" ({line.get('how')})"
        if line.get("event") == "resume":
            yield _place(line) | {"what": f"{LEARNER} started again{death}"}
            death = ""
        elif line.get("event") == ROLLBACK:
            death = f" (rolled back{f': {why}' if (why := line.get('why')) else ''})"
        elif line.get("event") == "restart" and is_rank(str(name)):
            death = how
        elif line.get("event") == "restart":
            yield _place(line) | {"what": f"{name} started again{how}"}


def _keys(line: Line) -> list[Row]:
    """The keys that have changed by a line of the journal."""
    keys = line.get("keys")
    known = [change for change in keys if isinstance(change, dict)] if isinstance(keys, list) else []
    return [{"key": str(change.get("key")), "old": change.get("old"), "new": change.get("new")} for change in known]


def _checkpoints(run: Run) -> Iterator[Row]:
    for (iteration, _), path in sorted(numbered(run.checkpoints).items()) if run.checkpoints.is_dir() else ():
        try:
            steps, size = read_state(path).env_steps, sum(file.stat().st_size for file in path.iterdir())
        except (FleetError, OSError, ValueError, TypeError):
            continue  # The learner has removed it meanwhile.
        yield {"name": path.name, "iteration": iteration, "env_steps": steps, "bytes": size}


def status(directory: Path) -> dict[str, Any]:
    """As `minefleet status --json`."""
    return read_status(directory, _credentials(directory)).to_dict()


def _credentials(directory: Path) -> Credentials:
    return read_credentials(open_run(directory).config.services.security, OPERATOR)


def slots(directory: Path) -> dict[str, Any]:
    """The slots of each actor, or the reason why they are not known."""
    cards = read_cards(directory)
    if not _actors(cards):
        return {"actors": []}  # Where no actor is in sight there need not be a certificate either.
    with ThreadPoolExecutor(min(len(cards), MAX_CALLS)) as pool:
        actors = list(pool.map(partial(_slots_of, credentials := _credentials(directory)), _actors(cards)))
        streams = [slot["stream"] for actor in actors for slot in actor["slots"]]
        shards = [card for card in cards if card["role"] == REPLAY] if streams else []
        steps = dict(chain.from_iterable(pool.map(partial(_steps_of, credentials, streams), shards)))
    for slot in (slot for actor in actors for slot in actor["slots"]):
        found = steps.get(slot["stream"])
        slot |= {key: getattr(found, key, None) for key in STEP_KEYS}
    return {"actors": actors}


def _actors(cards: list[Row]) -> list[Row]:
    return [card for card in cards if card["role"] == ACTOR and card["name"] != EVALUATOR]


def _steps_of(credentials: Credentials, streams: list[str], card: Row) -> Iterable[tuple[str, StreamSteps]]:
    try:
        return count_steps(card, credentials, streams).items()
    except FleetError:
        return ()  # The status says so of replay itself.


def _slots_of(credentials: Credentials, card: Row) -> Row:
    error, found = None, list[SlotStatus]()
    try:
        found = list_slots(card, credentials)
    except FleetError as refusal:
        error = str(refusal)
    return {"name": card["name"], "error": error, "slots": [asdict(slot) for slot in found]}


def frame(directory: Path, actor: str, slot: int, *, before_failure: bool) -> Any:
    """The picture that an actor's slot shows, or the last one before its last failure, [H, W, 3] uint8.

    Raises:
        FleetError: If there is no such actor, slot or picture.
    """
    for card in _actors(read_cards(directory)):
        if card["name"] == actor:
            return get_frame(card, _credentials(directory), slot, before_failure=before_failure)
    raise NotFoundError(f"there is no actor {actor}")


def failures(directory: Path, actors: list[Row]) -> dict[str, Any]:
    """Failed episodes by kind, the last ones, and the last failure of each slot of these actors."""
    row = last_row(directory / METRICS_FILE)
    failed = [
        {"actor": actor["name"], "slot": slot["slot"], "failures": slot["failures"], **slot["last_failure"]}
        for actor in actors
        for slot in actor["slots"]
        if slot["last_failure"]
    ]
    shown = ("iteration", "task", "failure", "stream", "length", "episode_return")
    episodes = [episode for episode in read_last_episodes(open_run(directory).episodes) if episode["failure"]]
    return {
        "by_kind": row.get("episode_failures_by_kind", {}),
        "episodes": [{key: episode[key] for key in shown} for episode in episodes[: -FAILED_EPISODES - 1 : -1]],
        "slots": sorted(failed, key=lambda slot: slot["age_s"]),
    }


def difference(one: Path, other: Path) -> list[dict[str, Any]]:
    """The keys in which two runs' configurations differ, but for addresses."""
    keys = differing_keys(open_run(one), open_run(other))
    return [{"key": key["key"], "this": key["old"], "other": key["new"]} for key in keys]


def videos(directory: Path) -> list[Row]:
    """The videos of a run, newest first, with the return of those whose episode is among the last ones."""
    episodes = read_last_episodes(open_run(directory).episodes)
    returns = {Path(episode["video"]).name: episode["episode_return"] for episode in episodes if episode["video"]}
    found = [(path.stat(), name) for name, path in video_files(directory).items()]
    return [
        {"name": name, "bytes": file.st_size, "written_s": file.st_mtime}
        | ({"version": int(version[1])} if (version := VIDEO_VERSION.match(name)) else {})
        | ({"episode_return": returns[name]} if name in returns else {})
        for file, name in sorted(found, key=lambda video: video[0].st_mtime, reverse=True)
    ]


def video_files(directory: Path) -> dict[str, Path]:
    """The videos of a run, by name."""
    worker = open_run(directory).config.rollout_config.worker_config
    return files_in(directory, worker.video_output_dir, "[!.]*.mp4")  # Those under way begin with a dot.


def log_files(directory: Path) -> dict[str, Path]:
    """The logs of a run, by name."""
    return files_in(directory, "logs", "*.log")


def files_in(directory: Path, below: str, pattern: str) -> dict[str, Path]:
    """The files in a folder of a run, by name; none that lies outside the run, be it by the folder or by a link."""
    root, folder = directory.resolve(), directory / below
    found = sorted(folder.glob(pattern)) if folder.is_dir() else []
    return {readable(path.name): path for path in found if path.is_file() and path.resolve().is_relative_to(root)}

"""The run directory and `run.yaml`: the configuration, resolved once, that every role reads.

RUN_DIR/
├── run.yaml          every key, the schema, fingerprints, the run's addresses
├── whole_config.txt  the configuration as its author wrote it, where a run is started from Python
├── rollout.pid       who keeps replay, parameters and actors alive, likewise
├── metrics.jsonl     one object per iteration, written by the learner
├── journal.jsonl     starts of the learner, restarts of roles, requests to change keys and their answers
├── episodes.csv      one line per episode, evaluations included, written by the learner
├── curve.png         drawn by the launcher
├── checkpoints/      latest/ and numbered ones
├── replay/           replay's store; with several shards, theirs: 0/, 1/, ...
├── parameters/       the versions
├── roles/            where each role serves, and with which pid: one file per role
├── targets.json      where Prometheus finds their metrics, written by the launcher
├── monitor/          of `minefleet monitor`
├── videos/           of whole episodes
└── logs/             one per role
"""

import json
import os
import socket
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Any, cast

from omegaconf import OmegaConf

from minefleet.config import EndpointConfig, FleetConfig
from minefleet.config.live_settings import with_settings
from minefleet.config.load import from_data, read
from minefleet.core.atomic_files import write_whole
from minefleet.core.errors import ConfigError
from minefleet.core.schema import Schema
from minefleet.rpc.handshake import WIRE_VERSION
from minefleet.runs.checkpoint_files import STATE_FILE
from minefleet.v1 import status_service_pb2

RUN_FILE = "run.yaml"
METRICS_FILE, JOURNAL_FILE = "metrics.jsonl", "journal.jsonl"
VERSION_FILE = "version.json"
"""Only in the directory of an exported version."""
WHOLE_CONFIG_FILE = "whole_config.txt"
"""The configuration given to `start_trainer`, as its author wrote it."""
MAX_NAMED = 5
"""Runs that are named where somebody gives the directory that holds them."""
LOCAL_KEYS = (
    "services",
    "logger_config",
    "upload_config",
    "stop",
    "eval_interval",
    "eval_episodes",
    "eval_sample",
    "detach_rollout_manager",
    "path_map",
)
"""Sections that may differ between roles: where they run and what they print, not what they compute."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Shard:
    """One process of replay."""

    index: int
    name: str
    """Its role's: "replay" where it is alone, else "replay-0", "replay-1", ..."""
    store: Path
    """Directory of its store."""
    endpoint: EndpointConfig


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """The contents of `run.yaml`."""

    directory: Path
    """The run directory, absolute."""
    config: FleetConfig
    schema: Schema
    architecture: str
    """Fingerprint of the policy's architecture."""
    stored: Schema | None = None
    """The schema of fragments, where a frozen encoder's outputs are stored in the place of pictures; None for
    `schema`."""
    frame_shape: tuple[int, ...] | None = None
    """[height, width, 3] of the frames that environments render for videos; None where they show pixels anyway, or no
    videos are wanted."""
    configured: FleetConfig | None = None
    """The configuration in `run.yaml`, where live settings are on top of it in `config`."""

    def with_settings(self, settings: str) -> "Run":
        """The run under live settings, JSON by key, whatever it is under now; empty for those of `run.yaml`.

        Raises:
            ConfigError: If they are no settings of this run.
        """
        configured, values = self.configured or self.config, None
        with suppress(ValueError, RecursionError):
            values = json.loads(settings or "{}")
        if not isinstance(values, dict):
            raise ConfigError(f"settings must be a JSON object, got {settings[:80]!r}")
        return replace(self, config=with_settings(configured, values), configured=configured)

    @property
    def fragment_schema(self) -> Schema:
        """The schema of fragments: the environment's, unless something else is stored."""
        return self.stored or self.schema

    @property
    def checkpoints(self) -> Path:
        """The directory of checkpoints."""
        return self.directory / (self.config.train_config.save_path or "checkpoints")

    @property
    def replay(self) -> Path:
        """The directory of replay's store, or of its shards' stores."""
        return self.directory / self.config.rollout_config.replay_buffer_config.database_config.path

    @property
    def shards(self) -> tuple[Shard, ...]:
        """The processes of replay, in order."""
        endpoints = self.config.services.replay
        if len(endpoints) == 1:
            return (Shard(index=0, name="replay", store=self.replay, endpoint=endpoints[0]),)
        return tuple(
            Shard(index=index, name=f"replay-{index}", store=self.replay / str(index), endpoint=endpoint)
            for index, endpoint in enumerate(endpoints)
        )

    @property
    def parameters(self) -> Path:
        """The directory of the versions that parameters keeps."""
        return self.directory / "parameters"

    @property
    def metrics(self) -> Path:
        """The learner's metrics, one JSON object per line."""
        return self.directory / METRICS_FILE

    @property
    def episodes(self) -> Path:
        """The table of episodes, with a header."""
        return self.directory / "episodes.csv"

    @property
    def logs(self) -> Path:
        """One log per role."""
        return self.directory / "logs"

    def contract(self) -> dict[str, str]:
        """The keys on which all roles must agree, with their values as canonical JSON: those of `run.yaml`."""
        values = {key: value for key, value in to_dict(self.configured or self.config).items() if key not in LOCAL_KEYS}
        flat = {key: json.dumps(value, sort_keys=True) for key, value in flat_keys(values).items()}
        return flat | {"schema": self.fragment_schema.fingerprint, "architecture": self.architecture}

    def identity(self, role: status_service_pb2.Role.ValueType) -> status_service_pb2.Identity:
        """This process's identity in `role`."""
        return status_service_pb2.Identity(
            role=role,
            wire_version=WIRE_VERSION,
            package_version=metadata.version("minefleet"),
            contract=self.contract(),
            instance=f"{socket.gethostname()}:{os.getpid()}",
        )

    def write(self) -> None:
        """Writes `run.yaml` whole."""
        data = {
            "config": to_dict(self.config),
            "schema": self.schema.to_dict(),
            "architecture": self.architecture,
            "stored": None if self.stored is None else self.stored.to_dict(),
            "frame_shape": list(self.frame_shape) if self.frame_shape else None,
        }
        write_whole(self.directory / RUN_FILE, OmegaConf.to_yaml(OmegaConf.create(data)))


def read_run(directory: Path, copy: str = "") -> Run:
    """Reads a run directory's `run.yaml`; or the copy of it that a checkpoint or an exported version has, by its name.

    Raises:
        ConfigError: If there is none, or it is not a whole one, or it is a copy that was not asked for.
    """
    if not copy and (directory / STATE_FILE).exists():
        raise ConfigError(f"there is no run in {directory}: {_found_in(directory.absolute())}")
    data = _read_file(directory, copy or RUN_FILE)
    return Run(
        directory=directory.absolute(),
        config=from_data(data["config"], str(directory.absolute() / (copy or RUN_FILE))),
        schema=Schema.from_dict(data["schema"]),
        architecture=str(data["architecture"]),
        stored=Schema.from_dict(data["stored"]) if data.get("stored") else None,
        frame_shape=tuple(data["frame_shape"]) if data.get("frame_shape") else None,
    )


def run_directories(places: Iterable[Path]) -> set[Path]:
    """The run directories in and among these."""
    found = (path for place in places for path in (place / RUN_FILE, *place.glob(f"*/{RUN_FILE}")))
    return {path.parent for path in found if path.is_file()}


def read_architecture(directory: Path, name: str = RUN_FILE) -> str:
    """Reads the policy's fingerprint where `read_run` would, also of a configuration whose keys are no longer known.

    Raises:
        ConfigError: If there is no such file, or it is not a whole one.
    """
    return str(_read_file(directory, name)["architecture"])


def to_dict(config: FleetConfig) -> dict[str, Any]:
    """The configuration as nested plain data."""
    return cast(dict[str, Any], OmegaConf.to_container(OmegaConf.structured(config)))


def from_dict(data: Mapping[str, Any]) -> FleetConfig:
    """Inverts `to_dict`; missing keys take their defaults.

    Raises:
        ConfigError: If a key is unknown or a value impossible.
    """
    return from_data(data, "plain data")


def _read_file(directory: Path, name: str) -> dict[str, Any]:
    path = directory.absolute() / name
    if not path.is_file():
        raise ConfigError(f"there is no run in {directory}: {_found_in(directory.absolute())}")
    data = read(str(path))
    if not {"config", "schema", "architecture"} <= set(data):
        raise ConfigError(f"{path} is not a whole run file")
    return data


def _found_in(directory: Path) -> str:
    """A directory that is no run, in words, and what to do with it."""
    for file, kind in ((STATE_FILE, "a checkpoint"), (VERSION_FILE, "an exported version")):
        if (directory / file).exists():
            return f"it is {kind}; `minefleet eval` and `minefleet.load` take it, and train_config.resume trains on"
    for parent in directory.parents:
        if (parent / RUN_FILE).exists() and not (parent / STATE_FILE).exists():
            return f"it lies in the run {parent}"
    if not directory.exists():
        return "it does not exist"
    runs = sorted(path.parent.name for path in directory.glob(f"*/{RUN_FILE}"))
    return (
        f"it holds {', '.join(runs[:MAX_NAMED])}{', ...' * (len(runs) > MAX_NAMED)}"
        if runs
        else f"it has no {RUN_FILE}"
    )


def flat_keys(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested plain data by dotted keys."""
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, Mapping) and value:
            flat |= flat_keys(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat

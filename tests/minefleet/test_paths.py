"""`path_map`: files that a configuration names where they lie on another machine."""

from pathlib import Path

import pytest

from minefleet.cli.config_arguments import split
from minefleet.config.load import from_settings, load
from minefleet.config.paths import mapped, there
from minefleet.core.errors import ConfigError
from minefleet.runs.run_yaml import LOCAL_KEYS

MAP = {"/nfs": "/data", "/nfs/models": "/models"}


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/nfs/a/b", "/data/a/b"),
        ("/nfs/models/2x.model", "/models/2x.model"),
        ("/nfs", "/data"),
        ("/nfs-shared/a", "/nfs-shared/a"),
        ("output/a", "output/a"),
    ],
)
def test_path_map_replaces_the_longest_prefix_of_whole_parts(path: str, expected: str) -> None:
    assert mapped(path, MAP) == expected


def test_mapped_path_that_is_not_there_is_refused_with_the_place_that_was_looked_at(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=rf"there is no {tmp_path}/x; --map-path OLD=NEW names another place"):
        there("/nfs/x", {"/nfs": str(tmp_path)})


def test_results_and_what_is_resumed_from_follow_the_map(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("train_config: {save_path: /nfs/out, resume: /nfs/models/10}\npath_map: {/nfs: /data}\n")
    config = load(str(path), split([str(path)], [("/nfs/models", "/models")])[1])
    assert config.path_map == {"/nfs": "/data", "/nfs/models": "/models"}
    assert (config.train_config.save_path, config.train_config.resume) == ("/data/out", "/models/10")


def test_relative_paths_are_mapped_before_they_are_made_absolute(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(
        "policy: {generator: 'somewhere:make', kwargs: {model_path: pretrained/2x.model}}\npath_map: {output: kept}\n"
    )
    config = load(str(path), split([str(path)], [("pretrained", "/data")])[1])
    assert config.policy.kwargs["model_path"] == "/data/2x.model"
    assert config.path_map == {"output": str(tmp_path / "kept"), "pretrained": "/data"}


def test_paths_in_settings_of_a_python_program_are_mapped() -> None:
    settings = {"train_config": {"save_path": "/nfs/out"}, "path_map": {"/nfs": "/data"}}
    assert from_settings(settings, "cfg", {}).train_config.save_path == "/data/out"


def test_paths_of_the_command_line_are_not_mapped() -> None:
    config = load("cartpole", ["path_map={/nfs: /data}", "train_config.save_path=/nfs/out"])
    assert config.train_config.save_path == "/nfs/out"


def test_path_map_may_differ_between_machines_of_one_run() -> None:
    assert "path_map" in LOCAL_KEYS

"""Trackers are found by name."""

import pytest

from minefleet.config import LoggerConfig
from minefleet.core.errors import ConfigError
from minefleet.launch import tracker_check
from minefleet_learner.trackers import tracker
from minefleet_learner.trackers.tensorboard_tracker import TensorBoardTracker


def test_tracker_names_join_flags_and_the_list_without_duplicates() -> None:
    config = LoggerConfig(wandb=True, mlflow=True, trackers=["mine", "wandb"])
    assert config.tracker_names == ["wandb", "mlflow", "mine"]


def test_find_of_one_of_ours_makes_it() -> None:
    assert isinstance(tracker.find("tensorboard")(), TensorBoardTracker)


@pytest.mark.usefixtures("odd_trackers")
def test_find_of_an_entry_point_makes_what_the_package_offers() -> None:
    assert type(tracker.find("writing")()).__name__ == "Writing"


@pytest.mark.usefixtures("odd_trackers")
def test_find_of_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"mlflow, tensorboard, unmade, wandb, writing, got 'comet'.*entry points"):
        tracker.find("comet")


def test_find_without_the_package_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracker_check, "OUR_TRACKERS", ("no_such_package",))
    with pytest.raises(ConfigError, match=r"pip install 'minefleet\[no_such_package\]'"):
        tracker.find("no_such_package")

"""Whole fleets with trackers that hang, fail, or have no network; and TensorBoard after a killed learner."""

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from tests import tracker_package
from tests.conftest import Fleet, assert_counters_never_go_back

pytestmark = pytest.mark.fleet

Train = Callable[..., Fleet]


def learner_log(fleet: Fleet) -> str:
    return (fleet.directory / "logs" / "learner.log").read_text()


def test_trackers_that_hang_fail_or_have_no_network_leave_the_run_alone(
    train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed = tracker_package.write(tmp_path / "installed")
    monkeypatch.setenv("PYTHONPATH", f"{installed}:{os.environ.get('PYTHONPATH', '')}")
    monkeypatch.setenv("WANDB_API_KEY", 40 * "a")
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    trackers = "logger_config.trackers=[hanging,failing,unmade]"
    fleet = train("cartpole", "stop.env_steps=3000", "logger_config.wandb=true", trackers)
    result, log = fleet.finish(), learner_log(fleet)

    assert result["stopped_by"] == "env_steps"
    entries = len(fleet.rows())
    for name in ("hanging", "failing", "unmade"):
        assert f"tracker {name} was not given {entries} of {entries} rows and videos" in log
    assert "tracker hanging did not end in time and is left behind" in log
    assert log.count("tracker failing failed: SystemExit: out of order") == 1
    assert "wandb: http://127.0.0.1:9 does not answer: [Errno 111] Connection refused; training goes on" in log
    assert f"to send it afterwards: wandb sync {fleet.directory}/wandb/offline-run-" in log
    assert "tracker wandb" not in log
    assert len(list(fleet.directory.glob("wandb/offline-run-*/run-*.wandb"))) == 1


def iterations_shown(fleet: Fleet) -> list[tuple[int, int]]:
    """The iterations that TensorBoard shows, each with its environment steps."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(fleet.directory / "tensorboard"), size_guidance={"scalars": 0})
    events.Reload()
    is_there = "iteration" in events.Tags()["scalars"]
    return [(int(event.value), event.step) for event in events.Scalars("iteration")] if is_there else []


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_tensorboard_of_a_run_whose_learner_was_killed_never_goes_back(train: Train) -> None:
    rare = ("train_config.latest_min_interval_s=1000", "train_config.save_interval=15")
    fleet = train("cartpole", "stop.env_steps=16000", "logger_config.tensorboard=true", *rare)
    fleet.wait_for(lambda: len(fleet.rows()) > 40 and len(iterations_shown(fleet)) > 40)
    os.kill(fleet.pid("learner"), signal.SIGKILL)
    fleet.finish()

    assert_counters_never_go_back(fleet.rows())
    assert len(list((fleet.directory / "tensorboard").iterdir())) == 2
    assert iterations_shown(fleet) == [(row["iteration"], row["env_steps"]) for row in fleet.rows()]

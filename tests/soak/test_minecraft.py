"""The real MineStudio and the real MineRL through the whole ring, while their engines are killed and frozen.

Every picture carries a mark of the engine that drew it and of its tick, so that what was trained on shows by itself
that each observation came from an engine, once and in its place: `tests/engine/marks.py`, `marked_trainer.py`.
"""

import contextlib
import json
import math
import random
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml
from tests.conftest import Fleet
from tests.engine.prepared import Prepared

pytestmark = [pytest.mark.soak, pytest.mark.timeout(7200)]

Train = Callable[..., Fleet]
ENGINE = Path(__file__).parents[1] / "engine"
ENV_STEPS = 20_000
HURT_EVERY_S = 4.0
FAILURES = 10
"""Episodes that must at least have been cut; what strikes starts and resets cuts none."""
GONE_S = 60.0


def test_minestudio_trains_while_its_engines_are_killed_and_frozen(
    minestudio_engine: Prepared, train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    env = {"generator": f"{ENGINE / 'seed_task.py'}:make", "kwargs": {"time_limit": 200}}
    survive(minestudio_engine, env, train, tmp_path, monkeypatch)


def test_minerl_trains_while_its_engines_are_killed_and_frozen(
    minerl_engine: Prepared, train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kwargs = {"id": "MineRLBasaltFindCave-v0", "time_limit": 200}
    env = {"generator": "minefleet_env.minecraft.minerl_env:make", "kwargs": kwargs}
    survive(minerl_engine, env, train, tmp_path, monkeypatch)


def survive(
    prepared: Prepared, env: dict[str, Any], train: Train, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Trains to the end over engines that are hurt, and looks at all that was trained on."""
    for variable, value in {**prepared.variables, "ENGINE_MARK": "yes"}.items():
        monkeypatch.setenv(variable, value)
    fleet = train(str(configure(directory, prepared, env)))
    fleet.wait_for_env_steps(1)
    hurt_until_the_end(fleet.process, prepared)
    fleet.finish()
    last = fleet.rows()[-1]
    fragments = [json.loads(line) for line in (fleet.directory / "marks.jsonl").read_text().splitlines()]
    assert last["env_steps"] >= ENV_STEPS
    assert last["episode_failures"] >= FAILURES
    assert all(math.isfinite(value) for value in last.values() if isinstance(value, float))
    assert sum(fragment["steps"] for fragment in fragments) == last["trained_steps"] > ENV_STEPS / 2
    assert list(faults_of(fragments)) == []
    psutil.wait_procs(prepared.processes(), timeout=GONE_S)
    assert prepared.processes() == []


def configure(directory: Path, prepared: Prepared, env: dict[str, Any]) -> Path:
    """Writes the configuration: a small network, all that is made is trained on."""
    config = {
        "env": env | {"python": prepared.python},
        "policy": {"conv_channels": [8, 16, 16], "hidden_size": 64},
        "trainer_name": f"{ENGINE / 'marked_trainer.py'}:MarkedTrainer",
        "rollout_config": {
            "fragment_length": 64,
            "worker_config": {"num_envs": 4, "step_timeout_s": 15.0, "max_consecutive_failures": 50},
            "replay_buffer_config": {"max_staleness": 8},
        },
        "train_config": {"batch_size_per_gpu": 4, "batches_per_iteration": 2, "context_length": 64},
        "stop": {"env_steps": ENV_STEPS},
    }
    path = directory / "config.yaml"
    path.write_text(yaml.safe_dump(config))
    return path


def hurt_until_the_end(run: subprocess.Popen[str], prepared: Prepared) -> None:
    """Kills or freezes an engine now and then until the run ends."""
    chance = random.Random(0)
    while run.poll() is None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            run.wait(chance.expovariate(1 / HURT_EVERY_S))
        with contextlib.suppress(psutil.NoSuchProcess):
            if well := [engine for engine in prepared.engines() if engine.status() != psutil.STATUS_STOPPED]:
                chance.choice(well).send_signal(chance.choice((signal.SIGKILL, signal.SIGSTOP)))


def faults_of(fragments: list[dict[str, Any]]) -> Iterator[str]:
    """The faults: a picture that no engine drew, one out of place, an end that only a failure can have made."""
    begun: set[tuple[int, int]] = set()
    for fragment in fragments:
        if fragment["terminated"]:
            yield f"{fragment['name']}: an episode was terminated, though nothing in these worlds does that"
        before: list[int] | None = None
        for number, (first, mark) in enumerate(fragment["seen"]):
            place = f"{fragment['name']} observation {number}"
            if mark is None:
                yield f"{place}: no engine drew it"
            elif before is not None and not first and mark != [before[0], before[1] + 1]:
                yield f"{place}: {mark} follows {before}"
            elif first and tuple(mark) in begun:
                yield f"{place}: a second episode begins with {mark}"
            if first and mark is not None:
                begun.add(tuple(mark))
            before = mark

"""Assumptions of the benchmarks of whole training: keys that exist, steps of one window, all processes of a command."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.scaling_model import Costs, fit_actor, predict
from harness.tracing import Row, Trace
from harness.training_stages import STAGES, WAITS
from harness.watching import Watch, family, look, pss_bytes
from harness.whole_cases import BATCH, BATCHES, CASES, ROLLOUT
from harness.whole_ours import config_of
from minefleet.config.load import from_data

ROOT = Path(__file__).parents[1]
NOT_OURS = ("torch/", "grpc/", "concurrent/", "(threading.py", "(selectors.py", "backward (", "clip_grad_norm")
CHILD = "print('up', flush=True); input()"
PARENT = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {CHILD!r}])"


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if not case.python])
def test_benchmark_configuration_of_ours_trains_on_each_step_once(name: str) -> None:
    config = from_data(config_of(CASES[name]), "the benchmark")
    train, buffer = config.train_config, config.rollout_config.replay_buffer_config
    assert train.fragments_per_iteration * config.rollout_config.fragment_length == BATCH * BATCHES
    assert train.batch_size_per_gpu * ROLLOUT == BATCH
    assert (train.epochs_per_iteration, buffer.max_reuse) == (1, 1)


def test_benchmark_rate_is_that_of_the_iterations_within_its_window(tmp_path: Path) -> None:
    ends = ((5, 100), (14, 900), (15, 1000), (20, 1500), (25, 2000), (26, 9000))
    rows = [Row(at_s, steps, None) for at_s, steps in ends]
    trace = Trace(parameters=1, rows=rows, watch=Watch(command=[], directory=tmp_path))
    assert trace.rate(10.0, 10.0) == 100.0
    with pytest.raises(ValueError, match="1 of 6 iterations end in them"):
        trace.rate(10.0, 4.0)


def test_benchmark_counts_a_process_with_its_children_under_its_role() -> None:
    command = [sys.executable, "-c", PARENT, "minefleet_learner"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == "up\n"
        assert list(family(parent.pid).values()) == ["learner", "learner"]
        sample, alone_bytes = look(parent.pid), pss_bytes(parent.pid)
        parent.communicate("\n")
    assert set(sample.cpu_s) == {"learner"}
    assert sample.pss_bytes > 1.5 * alone_bytes


def test_benchmark_command_that_fails_says_what_it_has_printed(tmp_path: Path) -> None:
    watch = Watch(command=[sys.executable, "-c", "print('why'); exit(3)"], directory=tmp_path)
    with pytest.raises(SystemExit, match="why"):
        watch.run()


def functions() -> Iterator[str]:
    """All functions of the product, as a profile writes them."""
    for path in (*ROOT.glob("services/**/*.py"), *ROOT.glob("clients/**/*.py")):
        file = path.relative_to(ROOT).as_posix().partition("/")[2]
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef):
                yield f"{node.name} ({file}"
            if isinstance(node, ast.ClassDef):
                yield from (f"{node.name}.{of.name} ({file}" for of in node.body if isinstance(of, ast.FunctionDef))


def test_benchmark_budget_looks_for_functions_that_exist() -> None:
    ours = set(functions())
    marks = {mark for _, marks in (*STAGES, ("", WAITS)) for mark in marks}
    missing = [mark for mark in marks if not any(mark in function for function in ours)]
    assert all(any(other in mark for other in NOT_OURS) for mark in missing), missing


COSTS = Costs(decision=900.0, step=100.0, environments=20.0, learner=200.0, replay=30.0, rest=10.0)


def test_fit_actor_finds_the_costs_that_made_the_times() -> None:
    times = [(envs, COSTS.actor(envs)) for envs in (2, 32)]
    assert fit_actor(*times) == pytest.approx((COSTS.decision, COSTS.step))


@pytest.mark.parametrize(
    ("envs", "actors", "cores", "us_per_step", "limit"),
    [
        (1, 1, 8, 1020.0, "the actors"),
        (9, 2, 8, 200.0, "the learner"),
        (9, 2, 2, 230.0, "all cores"),
        (9, 1, 1, 460.0, "all cores"),
    ],
)
def test_predicted_rate_is_that_of_the_lowest_limit(
    envs: int, actors: int, cores: int, us_per_step: float, limit: str
) -> None:
    rate, decisive = predict(COSTS, envs=envs, actors=actors, cores=cores)
    assert rate == pytest.approx(1e6 / us_per_step)
    assert decisive == limit


def test_replay_limits_where_all_else_is_plenty() -> None:
    cheap = Costs(decision=0.0, step=10.0, environments=0.0, learner=10.0, replay=30.0, rest=0.0)
    rate, decisive = predict(cheap, envs=16, actors=8, cores=64)
    assert rate == pytest.approx(1e6 / 30)
    assert decisive == "replay"

"""Assumptions of the benchmarks of whole training: keys that exist, steps of one window, all processes of a command."""

import subprocess
import sys
from pathlib import Path

import pytest

from harness.tracing import Row, Trace
from harness.watching import Watch, family, look, pss_bytes
from harness.whole_cases import BATCH, BATCHES, CASES, ROLLOUT
from harness.whole_ours import config_of
from minefleet.config.load import from_data

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

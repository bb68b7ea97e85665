"""The sides of `benchmarks/training.py` beside ours, which is `harness.whole_ours.train`."""

import json
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from harness.peers import PEERS, install
from harness.replaying import scratch
from harness.tracing import Row, Trace
from harness.watching import Watch

FOREVER = 10**12


@dataclass(frozen=True, kw_only=True)
class Limit:
    """The results of the bare loop."""

    parameters: int
    eager: float
    """Steps per second of all cores."""
    compiled: float
    """The same by `torch.compile`."""
    forward_s: float
    """Seconds of a forward pass over all environments."""
    peak_mb: float

    @property
    def best(self) -> float:
        """Steps per second of the faster one."""
        return max(self.eager, self.compiled)


def train_peer(name: str, options: Sequence[str] = (), *, seed: int, seconds: float, steps: float = math.inf) -> Trace:
    """Trains Sample Factory until so many seconds after its first iteration, or so many steps."""
    python = install("sample_factory", constrained=False)
    with scratch() as directory:
        words = [name, str(seed), str(min(seconds, FOREVER)), str(int(min(steps, FOREVER))), *options]
        return _trace(
            Watch(
                command=[str(python), str(PEERS / "sample_factory_training.py"), *words],
                directory=directory,
                environ={"OMP_NUM_THREADS": "1"},
            )
        )


def train_other(peer: str, name: str, *, seed: int, seconds: float) -> Trace:
    """Trains PufferLib, RLlib or TorchRL until so many seconds after its first iteration."""
    python = install(peer, constrained=False)
    with scratch() as directory:
        command = [str(python), str(PEERS / f"{peer}_training.py"), name, str(seed), str(seconds)]
        return _trace(Watch(command=command, directory=directory))


def _trace(watch: Watch) -> Trace:
    """Runs a side that ends with a JSON line of its parameters and rows."""
    watch.run()
    said = json.loads(watch.output.read_text().splitlines()[-1])
    return Trace(parameters=said["parameters"], rows=[Row(*row) for row in said["rows"]], watch=watch)


def limit(name: str, seconds: float) -> Limit:
    """Measures the bare loop."""
    with scratch() as directory:
        watch = Watch(command=[sys.executable, "-m", "harness.whole_limit", name, str(seconds)], directory=directory)
        watch.run()
        said = json.loads(watch.output.read_text().splitlines()[-1])
    return Limit(**said, peak_mb=watch.peak_mb)

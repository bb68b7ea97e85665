"""The forward pass of an actor's policy: as it is, compiled, or replayed as a CUDA graph.

Compiled code and graphs are made for a few sizes, once, before the first batch; a batch is padded to the next of them,
and what comes of the padding is thrown away. Where either cannot be had, the policy runs as it is, and a log line says
so.

Shape legend: n = rows of a batch, padding included.
"""

import logging
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from minefleet.config import WorkerConfig
from minefleet.core.tree import Tree, tree_map
from minefleet.policies import Policy, PolicyOutput
from minefleet.policies.precision import DTYPES, compute, exact_float32
from minefleet.policies.torch_compile import compiled, headline

logger = logging.getLogger(__name__)

SIZES = 4
"""Padded sizes at most."""
WARM_UPS = 3
"""Passes before a graph is captured: libraries choose their algorithms and take their memory in the first ones."""
Pass = Callable[[Tree, Tree, Tensor], tuple[PolicyOutput, Tree]]
"""obs, a tree of [n, 1, ...], state, a tree of [n, ...], and first, [n, 1], to outputs and the state after."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ForwardOptions:
    """Options of computing a policy."""

    dtype: torch.dtype = torch.float32
    """Of the layers below the heads."""
    compile: bool = False
    cuda_graphs: bool = False
    whole: bool = False
    """Compute all slots each time, so that what comes of one does not depend on which others are wanted."""


def options_of(config: WorkerConfig) -> ForwardOptions:
    """The options of a configuration."""
    return ForwardOptions(
        dtype=DTYPES[config.dtype], compile=config.compile, cuda_graphs=config.cuda_graphs, whole=config.deterministic
    )


def padded_sizes(largest: int) -> list[int]:
    """The sizes that batches are padded to, rising: `largest`, and it halved, rounded up, again and again."""
    return sorted({-(-largest // 2**halvings) for halvings in range(SIZES)})


class Forward:
    """Computes batches of at most `largest` rows."""

    def __init__(
        self, policy: Policy, obs: Tree, largest: int, *, device: torch.device, options: ForwardOptions
    ) -> None:
        """Compiles and captures what is asked for.

        Args:
            policy: On the device.
            obs: One row of the observation, a tree of [1, 1, ...] on the device.
            largest: Rows of the largest batch.
            device: Where to compute.
            options: How.
        """
        self._policy = policy
        self._device = device
        self._dtype = options.dtype
        self._example = obs
        self._sizes = [largest] if options.whole else padded_sizes(largest)
        self._pads = options.whole
        self._evaluate: Pass = self._plain
        self._graphs: dict[int, Pass] = {}
        with exact_float32():
            if options.compile:
                self._compile()
            if options.cuda_graphs:
                self._capture()

    def size(self, rows: int) -> int:
        """The rows that a batch of so many is padded to."""
        return self._sizes[bisect_left(self._sizes, rows)] if self._pads else rows

    def __call__(self, obs: Tree, state: Tree, first: Tensor) -> tuple[PolicyOutput, Tree]:
        """Computes a batch of a `size`. The next call may overwrite what this one returns."""
        with exact_float32():
            return self._graphs.get(len(first), self._evaluate)(obs, state, first)

    def _plain(self, obs: Tree, state: Tree, first: Tensor) -> tuple[PolicyOutput, Tree]:
        return compute(self._policy, obs, state, first, self._dtype)

    def _compile(self) -> None:
        @torch.inference_mode()
        def try_out(outcome: Pass) -> None:
            for size in self._sizes:
                outcome(*self._inputs(size))

        outcome = compiled(self._plain, try_out, dynamic=False)
        if outcome is not None:
            self._evaluate, self._pads = outcome, True

    def _capture(self) -> None:
        if self._device.type != "cuda":
            logger.warning("the policy runs without CUDA graphs: it is on the device %r", self._device.type)
            return
        try:
            self._graphs = {size: captured(self._evaluate, *self._inputs(size)) for size in self._sizes}
        except Exception as error:  # noqa: BLE001  # What cannot be captured may say so in any way.
            logger.warning("the policy runs without CUDA graphs, capturing it failed: %s", headline(error))
        else:
            self._pads = True

    @torch.inference_mode()
    def _inputs(self, size: int) -> tuple[Tree, Tree, Tensor]:
        """A batch of one row repeated."""
        obs = tree_map(lambda leaf: leaf.repeat(size, *[1] * (leaf.ndim - 1)), self._example)
        state = tree_map(torch.clone, self._policy.initial_state(size))
        return obs, state, torch.ones(size, 1, dtype=torch.bool, device=self._device)


@torch.inference_mode()
def captured(evaluate: Pass, obs: Tree, state: Tree, first: Tensor) -> Pass:
    """Records a pass over inputs of these shapes as a CUDA graph.

    The inputs become the graph's own: a replay copies into them first. Weights are read where they lie, so new ones
    must be copied into the old ones' place.
    """
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(WARM_UPS):
            evaluate(obs, state, first)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        evaluated = evaluate(obs, state, first)

    def replay(new_obs: Tree, new_state: Tree, new_first: Tensor) -> tuple[PolicyOutput, Tree]:
        for own, new in ((obs, new_obs), (state, new_state), (first, new_first)):
            tree_map(lambda target, source: target.copy_(source, non_blocking=True), own, new)
        graph.replay()
        return evaluated

    return replay

"""The bare limit of `benchmarks/training.py`: a process per core that does only what no side can leave out.

    python -m harness.whole_limit CASE SECONDS

Each acts and trains by itself. Acting: forward passes in batches of all environments, a sample of the actions and its
log-probability. Training: forward and backward passes of PPO's loss over `BATCH` steps, as large as the learner's, the
norm of the gradient, and a step of fused Adam. The frames are those of the other sides, made once; there are no
environments, advantages or episode ends, and nothing is stored or sent. Weights and frames are in channels-last memory.
Measured as it is and with `torch.compile`, which needs a C++ compiler.

Prints a JSON line: parameters, steps per second of all cores as it is and compiled, seconds of a forward pass.
"""

import json
import multiprocessing
import os
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing.synchronize import Barrier
from typing import Any

import numpy as np
import torch
from torch import Tensor

from harness.acting_envs import BANKS
from harness.whole_cases import (
    ADAM_EPS,
    BATCH,
    CASES,
    CLIP,
    ENTROPY,
    LEARNING_RATE,
    MAX_GRAD_NORM,
    ROLLOUT,
    VALUE,
    Case,
    share_cores,
)
from harness.whole_ours import policy_of
from minefleet.config import PolicyConfig
from minefleet.core.schema import Leaf, Schema
from minefleet.policies import build
from minefleet_learner.targets.forward_passes import PASS_STEPS
from minefleet_runtime.process_setup import keep_freed_memory

WARM_UP_S = 2.0
KINDS = ("eager", "compiled")
Rates = dict[str, float]
LONGEST_WAIT_S = 600.0
"""For another process that compiles."""
together: Barrier


class Loop:
    """One process's policy, optimizer and tensors; `kind` is one of `KINDS`."""

    def __init__(self, case: Case, kind: str) -> None:
        self._policy = build(PolicyConfig(**policy_of(case)), schema_of(case))
        self._policy.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # Not in its annotations.
        self.parameters = sum(parameter.numel() for parameter in self._policy.parameters())
        self._optimizer = torch.optim.Adam(self._policy.parameters(), lr=LEARNING_RATE, eps=ADAM_EPS, fused=True)
        self._acts_per_batch = BATCH // case.envs
        self._seen, obs = frames(case, case.envs, 1), frames(case, BATCH // ROLLOUT, ROLLOUT)
        drawn = torch.randn(2, BATCH // ROLLOUT, ROLLOUT)
        wrap: Callable[[Any], Any] = torch.compile if kind == "compiled" else lambda function: function
        self._decide, self._loss = wrap(self._decide_once), wrap(self._loss_of)
        with torch.no_grad():
            params = self._policy(obs, *start(self._policy, obs))[0].params
            action = self._policy.action_head.sample(params)
            logp = self._policy.action_head.logp(params, action)
        rows = BATCH // ROLLOUT if case.gru else PASS_STEPS // ROLLOUT
        self._passes = list(zip(*(whole.split(rows) for whole in (obs, action, logp, *drawn)), strict=True))

    def turn(self) -> None:
        """Acts and trains on `BATCH` steps."""
        for _ in range(self._acts_per_batch):
            self.act()
        self._optimizer.zero_grad()
        for part in self._passes:
            (self._loss(*part) / len(self._passes)).backward()
        torch.nn.utils.clip_grad_norm_(self._policy.parameters(), MAX_GRAD_NORM)
        self._optimizer.step()

    @torch.inference_mode()
    def act(self) -> None:
        """One step of all environments."""
        self._decide()

    def _decide_once(self) -> Any:
        output, state = self._policy(self._seen, *start(self._policy, self._seen))
        action = self._policy.action_head.sample(output.params)
        return action, self._policy.action_head.logp(output.params, action), output.value, state

    def _loss_of(self, obs: Tensor, action: Tensor, logp: Tensor, advantage: Tensor, target: Tensor) -> Tensor:
        output, _ = self._policy(obs, *start(self._policy, obs))
        head = self._policy.action_head
        ratio = (head.logp(output.params, action) - logp).exp()
        policy_loss = -torch.min(ratio * advantage, ratio.clamp(1 - CLIP, 1 + CLIP) * advantage).mean()
        value_loss = (output.value - target).square().mean()
        loss: Tensor = policy_loss + VALUE * value_loss - ENTROPY * head.entropy(output.params).mean()
        return loss


def main() -> None:
    name, seconds = sys.argv[1], float(sys.argv[2])
    cores, context = share_cores(), multiprocessing.get_context("spawn")
    barrier = context.Barrier(len(cores), timeout=LONGEST_WAIT_S)
    with ProcessPoolExecutor(len(cores), context, initializer=meet, initargs=(barrier,)) as pool:
        each = list(pool.map(partial(measure, CASES[name], seconds), cores))
    print(json.dumps(each[0] | {kind: sum(rates[kind] for rates in each) for kind in KINDS}))


def meet(barrier: Barrier) -> None:
    """Keeps what all processes wait at before they are measured."""
    global together  # noqa: PLW0603  # A barrier reaches a process only when it starts.
    together = barrier


def measure(case: Case, seconds: float, core: int) -> Rates:
    """Rates of one core, while the others are measured as well."""
    os.sched_setaffinity(0, {core})
    torch.set_num_threads(1)
    keep_freed_memory()
    done: Rates = {}
    for kind in KINDS:
        loop = Loop(case, kind)
        for action, figure in ((loop.turn, kind), (loop.act, f"{kind}_acts")):
            rate(action, WARM_UP_S)
            together.wait()
            done[figure] = rate(action, seconds)
    passes = max(done.pop(f"{kind}_acts") for kind in KINDS)
    steps = {kind: per_s * BATCH for kind, per_s in done.items()}
    return {"parameters": loop.parameters, "forward_s": 1 / passes, **steps}


def rate(action: Callable[[], None], seconds: float) -> float:
    """Calls per second."""
    action()
    done, began_s = 0, time.monotonic()
    while (taken_s := time.monotonic() - began_s) < seconds:
        action()
        done += 1
    return done / taken_s


def schema_of(case: Case) -> Schema:
    """The schema of a case's environments."""
    shape, dtype = ((64, 64, 3), "uint8") if case.has_frames else ((4,), "float32")
    obs = Leaf(kind="box", shape=shape, dtype=dtype)
    action = Leaf(kind="discrete", shape=(), dtype="int64", categories=(case.actions,))
    return Schema(obs=obs, action=action)


def frames(case: Case, slots: int, steps: int) -> Tensor:
    """[slots, steps, ...]: what environments show."""
    if case.has_frames:
        bank = torch.from_numpy(np.load(BANKS["hwc"])[: slots * steps])
        return bank.view(slots, steps, *bank.shape[1:])
    return torch.randn(slots, steps, 4)


def start(policy: Any, obs: Tensor) -> tuple[Any, Tensor]:
    """A state, and no step before which it is reset."""
    return policy.initial_state(len(obs)), torch.zeros(obs.shape[:2], dtype=torch.bool)


if __name__ == "__main__":
    main()

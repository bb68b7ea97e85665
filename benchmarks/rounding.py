"""Measures how far the learner's policy is from the rounded one that acts under `train_config.wire_dtype=bfloat16`.

python benchmarks/rounding.py [CHECKPOINT ...] [--steps 8192]

The rounded policy plays; the exact one evaluates the same steps, in pieces of `context_length` from the recurrent state
that the actor had: what stands between the two is the log-ratio of PPO before its first update. With `keep` it is
0 but for the order of sums. Without a checkpoint the weights are those of the crafter preset with a GRU and Atari's
convolutions, before any training.
"""

import argparse
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from harness.report import Round, aligned, line
from harness.training import NETWORK
from minefleet.config import FleetConfig, WorkerConfig
from minefleet.config.load import load
from minefleet.core.schema import Schema
from minefleet.core.tree import Tree, tree_map
from minefleet.launch.env_policy_check import describe_environment
from minefleet.policies import Policy, build
from minefleet.policies.weight_arrays import load_numpy, rounded_tensors, to_numpy
from minefleet.rpc.weights.bfloat16 import as_fetched
from minefleet.runs.checkpoint_files import read_policy
from minefleet.runs.run_yaml import read_run
from minefleet_actor.inference.policy_outputs import PolicyStep
from minefleet_actor.inference.policy_runner import PolicyRunner
from minefleet_actor.pool import InlinePool, Ready

ENVS = 8
SLOTS = np.arange(ENVS)
PRESET = "crafter"
SEED = 0
COLUMNS = ("mean |Δ ln π|", "99 %", "largest", "beyond the clip range", "mean |ΔV|, normalised")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoints", nargs="*", type=Path)
    parser.add_argument("--steps", type=int, default=8192, help="steps over all environments")
    arguments = parser.parse_args()
    with ExitStack() as stack:
        rounds = {
            f"{name} {wire_dtype}": measure(stack, config, weights, wire_dtype, arguments.steps)
            for name, config, weights in subjects(arguments.checkpoints)
            for wire_dtype in ("keep", "bfloat16")
        }
    rows = [[name, *(f"{each[column]:.2g}" for column in COLUMNS)] for name, each in rounds.items()]
    print(aligned([[f"of {arguments.steps} steps", *COLUMNS], *rows]))
    for name, each in rounds.items():
        print(line("rounding", name.replace(" ", "-"), "nats", each[COLUMNS[0]]))


def subjects(checkpoints: list[Path]) -> Iterator[tuple[str, FleetConfig, dict[str, NDArray[Any]] | None]]:
    """Names, configurations and weights; None for fresh ones."""
    if not checkpoints:
        yield f"{PRESET} untrained", load(PRESET, NETWORK), None
    for path in checkpoints:
        yield path.name, read_run(path).config, read_policy(path)


def measure(
    stack: ExitStack, config: FleetConfig, weights: dict[str, NDArray[Any]] | None, wire_dtype: str, steps: int
) -> Round:
    """Lets the policy as it was sent play, and the exact one evaluate."""
    schema = Schema.from_dict(describe_environment(config)["schema"])
    worker = WorkerConfig(num_envs=ENVS)
    pool = stack.enter_context(closing(InlinePool(config.env, schema, worker, seed=SEED, actor_index=0)))
    torch.manual_seed(SEED)
    exact = build(config.policy, schema).eval()
    if weights is not None:
        load_numpy(exact, weights)
    cpu = torch.device("cpu")
    acting = PolicyRunner(build(config.policy, schema), schema, ENVS, device=cpu, seed=SEED, greedy=False)
    sent = as_fetched(to_numpy(exact), rounded_tensors(exact, wire_dtype))
    acting.swap(sent, 1)
    played = Game(pool, acting)
    context = config.train_config.context_length
    pairs = [differences(exact, *played.piece(context)) for _ in range(steps // (ENVS * context))]
    logp, value = (np.abs(np.concatenate(each)) for each in zip(*pairs, strict=True))
    beyond = float((logp > np.log1p(config.train_config.ppo_clip)).mean())
    figures = (logp.mean(), np.quantile(logp, 0.99), logp.max(), beyond, value.mean())
    return dict(zip(COLUMNS, map(float, figures), strict=True))


class Game:
    """Environments in step with each other, and who plays in them."""

    def __init__(self, pool: InlinePool, acting: PolicyRunner) -> None:
        self._pool = pool
        self._acting = acting
        pool.start()
        self._done(pool.reset, SLOTS)

    def piece(self, length: int) -> tuple[Tree, list[Tree], list[PolicyStep]]:
        """Plays on; returns the states before it, and observations and decisions of each step."""
        every = np.arange(ENVS)
        seen, decisions = [], list[PolicyStep]()
        for _ in range(length):
            seen.append(tree_map(np.copy, self._pool.obs))
            decisions.append(self._acting.decide(every, seen[-1], begins=np.full(ENVS, not decisions)))
            self._step(decisions[-1])
        states = [decisions[0].before[slot] for slot in range(ENVS)]
        return tree_map(lambda *leaves: torch.from_numpy(np.stack(leaves)), states[0], *states[1:]), seen, decisions

    def _step(self, decision: PolicyStep) -> None:
        ready = self._done(self._pool.step, SLOTS, decision.action)
        over = ready.slots[ready.terminated | ready.truncated]
        self._acting.reset(over)
        self._done(self._pool.reset, over)

    def _done(self, command: Callable[..., None], *arguments: Any) -> Ready:
        """Gives a command and waits until it is done, in all slots."""
        command(*arguments)
        return self._pool.wait(0.0)


@torch.no_grad()
def differences(
    policy: Policy, state: Tree, seen: list[Tree], decisions: list[PolicyStep]
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """[B * T] each: what the policy says of log-probabilities and normalised values, less what was recorded."""

    def of(leaves: list[NDArray[Any]]) -> torch.Tensor:
        return torch.from_numpy(np.stack(leaves, axis=1))

    output, _ = policy(
        tree_map(lambda *leaves: of(list(leaves)), seen[0], *seen[1:]), state, of([each.first for each in decisions])
    )
    actions = [each.action for each in decisions]
    logp = policy.action_head.logp(output.params, tree_map(lambda *leaves: of(list(leaves)), actions[0], *actions[1:]))
    value = policy.value_norm.normalize(of([each.value for each in decisions]))
    recorded = of([each.logp for each in decisions])
    return (logp - recorded).flatten().numpy(), (output.value - value).float().flatten().numpy()


if __name__ == "__main__":
    main()

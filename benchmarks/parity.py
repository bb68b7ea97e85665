"""Measures how far actors' records differ from the learner's computation, by the dtype of inference.

    python benchmarks/parity.py [--iterations 50] [--presets cartpole recall crafter]

Trains each preset on what a float32 actor makes; in every iteration actors of all dtypes act by the newest weights, and
the learner's probe compares. Prints the largest differences so far, each as often as it grows. The bounds in
`minefleet_learner/diagnostics/parity.py` come from here.
"""

import argparse
import math
from contextlib import ExitStack, closing

import torch

from harness.playing import Player, schema_of_env
from harness.report import aligned
from minefleet.config import FleetConfig
from minefleet.config.load import load
from minefleet.policies import build
from minefleet.policies.precision import DTYPES
from minefleet.policies.weight_arrays import to_numpy
from minefleet_actor.inference.compiled_forward import ForwardOptions
from minefleet_actor.inference.policy_runner import PolicyRunner
from minefleet_learner.build import build_optimizer
from minefleet_learner.data.batch import collate
from minefleet_learner.diagnostics.parity import BOUNDS, ParityProbe
from minefleet_learner.training.rng_state import seed_everything
from minefleet_learner.training.schedules import rates
from minefleet_learner.training.updater import Updater


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--iterations", type=int, default=50)
    parser.add_argument("--presets", nargs="+", default=["cartpole", "recall", "crafter"])
    arguments = parser.parse_args()
    rows = [["preset", "actor", "steps", "largest |Δ ln π|", "largest |ΔV|", "bound"]]
    for preset in arguments.presets:
        for dtype, (steps, logp, value) in measure(load(preset), arguments.iterations).items():
            rows.append([preset, dtype, str(steps), f"{logp:.2g}", f"{value:.2g}", f"{BOUNDS[dtype]:g}"])
    print(aligned(rows))


def measure(config: FleetConfig, iterations: int) -> dict[str, tuple[int, float, float]]:
    """Steps compared and the largest differences, by dtype."""
    train, largest = config.train_config, dict.fromkeys(BOUNDS, (0, 0.0, 0.0))
    seed_everything(config.seed)
    policy = build(config.policy, schema_of_env(config.env))
    updater = Updater(policy, build_optimizer(policy, train), train, None)
    probe = ParityProbe(policy, max_staleness=0, context_length=train.context_length, rounded=(), bound=math.inf)
    with ExitStack() as stack:
        players = {dtype: stack.enter_context(closing(player_of(config, dtype))) for dtype in BOUNDS}
        for iteration in range(iterations):
            weights = to_numpy(policy)
            probe.remember(iteration, weights)
            for dtype, player in players.items():
                player.swap(weights, iteration)
                batch = collate(player.play())
                found, (steps, logp, value) = probe.compare(batch), largest[dtype]
                largest[dtype] = steps + found.steps, max(logp, found.logp), max(value, found.value)
                if dtype == "float32":
                    mine = batch
            print(iteration, largest, flush=True)
            updater.update(mine, rates(train, iteration, 0.0))
    return largest


def player_of(config: FleetConfig, dtype: str) -> Player:
    """An actor that computes in this dtype."""
    schema, slots = schema_of_env(config.env), config.rollout_config.worker_config.num_envs
    inference = PolicyRunner(
        build(config.policy, schema),
        schema,
        slots,
        device=torch.device("cpu"),
        seed=config.seed,
        greedy=False,
        options=ForwardOptions(dtype=DTYPES[dtype]),
    )
    length = config.rollout_config.fragment_length
    return Player(config.env, schema, inference, slots=slots, length=length, seed=config.seed)


if __name__ == "__main__":
    main()

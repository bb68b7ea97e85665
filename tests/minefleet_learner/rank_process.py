"""One rank of a learner in float64, as a process: `python rank_process.py DIRECTORY`, with torchrun's variables.

It trains the same weights on its part of the same fragments, case by case, and leaves in DIRECTORY what came of them:
`SIZE-RANK.npz` with the weights of every case and `SIZE-RANK.json` with all that was reported.
"""

import copy
import dataclasses
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from conftest import SCHEMA, SIZE, random_fragment  # type: ignore[import-not-found]  # Lies beside the script.
from torch import Tensor, nn

from minefleet.config import TrainConfig
from minefleet.core.tree import Tree, tree_map
from minefleet.policies import Policy, PolicyOutput
from minefleet.policies.layers.gru import GRUCore
from minefleet.policies.layers.heads import action_head
from minefleet.policies.layers.obs_norm import ObsNorm
from minefleet.policies.layers.value_norm import ValueNorm
from minefleet_learner.build import build_optimizer
from minefleet_learner.data.batch import Batch, collate
from minefleet_learner.distributed.ranks import Ranks, join
from minefleet_learner.training.optimizer_step import NonFiniteError
from minefleet_learner.training.schedules import rates
from minefleet_learner.training.updater import Updater

FRAGMENTS = 12
WORST = 10
"""Bad steps in a row that are too many."""
CASES: dict[str, dict[str, Any]] = {
    "evenly": {"kl_divergence_coef_rho": 0.1, "clip_vloss": True},
    "unevenly": {"part": 9, "normalize_advantage_full_batch": False, "use_normalized_vf": False},
    "all on one": {"part": FRAGMENTS},
    "memory": {"gru": 5, "part": 3},
    "warm-up": {"vf_warmup": 1},
    "KL stop": {"target_kl": 0.01, "epochs_per_iteration": 16},
}
"""Settings; `part` is how many fragments the first of two ranks has."""


class Double(Policy):
    """A policy that rounds nothing to float32."""

    def __init__(self, gru: int) -> None:
        super().__init__()
        torch.manual_seed(7)
        self.encoder = nn.Linear(SIZE, 8)
        self.core = GRUCore(8, gru) if gru else None
        self.action_head = action_head(SCHEMA.action, gru or 8)
        self.value_head = nn.Linear(gru or 8, 1)
        self.value_norm = ValueNorm()
        self.obs_norm = ObsNorm(SCHEMA.obs)
        self.gru = gru
        self.double()

    def initial_state(self, batch: int) -> Tree:
        return {"gru": torch.zeros(batch, self.gru, dtype=torch.float64)} if self.gru else {}

    def forward(self, obs: Tree, state: Tree, first: Tensor) -> tuple[PolicyOutput, Tree]:
        assert self.obs_norm is not None
        mean, variance = (self.obs_norm.get_buffer(f"moments.0.{name}") for name in ("mean", "variance"))
        hidden = torch.tanh(self.encoder((obs["vector"] - mean) / (variance + 1e-8).sqrt()))
        if self.core is not None:
            hidden, memory = self.core(hidden, state["gru"], first)
            state = {"gru": memory}
        return PolicyOutput(self.action_head(hidden), self.value_head(hidden).squeeze(-1)), state


def fragments_of(ranks: Ranks, part: int) -> list[int]:
    """The fragments of this rank, streams kept whole."""
    return list(range(FRAGMENTS)) if ranks.is_alone else [list(range(part)), list(range(part, FRAGMENTS))][ranks.rank]


def make_batch(numbers: list[int], iteration: int, gru: int) -> Batch | None:
    """The fragments in float64; None of none."""
    named = [
        (
            (f"s{number // 3}", number % 3),
            random_fragment(
                100 * iteration + number,
                6 + number,
                truncated=(2,),
                terminated=(4,),
                state={"gru": np.zeros(gru)} if gru else {},
            ),
        )
        for number in numbers
    ]
    return _double(collate(named)) if named else None


def _double(batch: Batch) -> Batch:
    def widen(leaf: Tensor) -> Tensor:
        return leaf.double() if leaf.is_floating_point() else leaf

    return batch.sent(lambda tensors: tree_map(widen, tensors))


def make_updater(ranks: Ranks, gru: int, **settings: Any) -> Updater:
    """One optimizer step per epoch and six micro-batches in it, so that the shuffle does not matter."""
    config = TrainConfig(
        **{
            "batch_size_per_gpu": 2,
            "batches_per_iteration": FRAGMENTS // 2 // ranks.size,
            "gradient_accumulation": FRAGMENTS // 2 // ranks.size,
            "epochs_per_iteration": 2,
            "context_length": 4,
            "entropy_bonus_coef": 0.01,
            "weight_decay": 0.01,
            "learning_rate": 1e-2,
            "max_bad_steps": WORST,
            **settings,
        }
    )
    policy = Double(gru)
    policy.value_norm.enabled = config.use_normalized_vf
    reference = copy.deepcopy(policy).requires_grad_(False) if config.kl_divergence_coef_rho else None
    return Updater(policy, build_optimizer(policy, config), config, reference, ranks=ranks)


def equal_to_one(ranks: Ranks) -> tuple[dict[str, Any], dict[str, Any]]:
    """Trains for two iterations in every case; the weights and the reports."""
    weights, reports = dict[str, Any](), dict[str, Any]()
    for name, case in CASES.items():
        settings = {"part": FRAGMENTS // 2, "gru": 0, **case}
        part, gru = settings.pop("part"), settings.pop("gru")
        updater = make_updater(ranks, gru, **settings)
        for iteration in range(2):
            torch.manual_seed(1000 * ranks.rank + iteration)
            batch = make_batch(fragments_of(ranks, part), iteration, gru)
            report = updater.update(batch, rates(TrainConfig(**settings, learning_rate=1e-2), iteration, 0.0))
            reports[f"{name} {iteration}"] = dataclasses.asdict(report)
        weights |= {f"{name}/{key}": tensor.numpy() for key, tensor in updater.policy.state_dict().items()}
    return weights, reports


def poisoned(ranks: Ranks) -> dict[str, Any]:
    """The result of poison in the last fragment, which only the last rank has."""

    def batch_with(where: str, iteration: int) -> Batch:
        batch = make_batch(fragments_of(ranks, FRAGMENTS // 2), iteration, 0)
        assert batch is not None
        if where and ranks.rank == ranks.size - 1:
            (batch.seen["vector"] if where == "obs" else batch.reward)[-1, 1] = float("nan")
        return batch

    def history(updater: Updater, poisons: list[str]) -> Iterator[dict[str, Any]]:
        for iteration, where in enumerate(poisons):
            before = copy.deepcopy(updater.policy.state_dict())
            report = updater.update(batch_with(where, iteration), rates(TrainConfig(), 1, 0.0))
            after = updater.policy.state_dict()
            trained = {key.split(".")[0] for key in before if not torch.equal(before[key], after[key])}
            yield {"skipped": report.skipped_steps, "trained": sorted(trained)}

    left_out = list(history(make_updater(ranks, 0), ["", "reward", ""]))
    gradients = list(history(make_updater(ranks, 0, gae_values="behaviour"), ["", "obs", ""]))
    try:
        list(history(make_updater(ranks, 0), ["reward"] * (WORST + 1)))
        end = ""
    except NonFiniteError as error:
        end = str(error)
    return {"left out": left_out, "gradients": gradients, "end": end}


def as_ddp_would(ranks: Ranks) -> float:
    """Largest difference between summed gradients and those of DistributedDataParallel, which averages."""
    models = [nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)).double() for _ in range(2)]
    for parameter in models[0].parameters():
        nn.init.constant_(parameter, 0.1)
    models[1].load_state_dict(models[0].state_dict())
    rows = torch.randn(5, 3, generator=torch.Generator().manual_seed(ranks.rank), dtype=torch.float64)
    wrapped = nn.parallel.DistributedDataParallel(models[0])
    (wrapped(rows).square().sum() / 10 * ranks.size).backward()
    (models[1](rows).square().sum() / 10).backward()
    ours, theirs = ([p.grad for p in model.parameters() if p.grad is not None] for model in reversed(models))
    ranks.sum(ours)
    return max(float((one - other).abs().max()) for one, other in zip(ours, theirs, strict=True))


def main() -> None:
    directory = Path(sys.argv[1])
    torch.set_num_threads(1)
    size = int(sys.argv[2])
    ranks = join(size, 60.0, torch.device("cpu"))
    weights, reports = equal_to_one(ranks)
    said = {"reports": reports, "poisoned": poisoned(ranks), "ddp": 0.0 if ranks.is_alone else as_ddp_would(ranks)}
    np.savez(directory / f"{size}-{ranks.rank}.npz", **weights)
    (directory / f"{size}-{ranks.rank}.json").write_text(json.dumps(said))
    ranks.exit_barrier()
    ranks.close()


if __name__ == "__main__":
    main()

"""Training on a GPU: as on the CPU but for rounding, and a checkpoint goes from either to the other."""

from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.updates import make_updater, weights
from torch import Tensor

from minefleet.config import TrainConfig
from minefleet.core.fragment import Fragment
from minefleet.policies import Policy
from minefleet.rpc.codec import decode_half, encode
from minefleet.runs.checkpoint_files import CheckpointState, read, write
from minefleet.v1 import fragment_pb2
from minefleet_learner.checkpoints.host_copy import Copier
from minefleet_learner.checkpoints.restore import load_snapshot, take_snapshot
from minefleet_learner.data.batch import Batch
from minefleet_learner.data.collate import Collator
from minefleet_learner.training.rng_state import seed_everything
from minefleet_learner.training.schedules import rates
from minefleet_learner.training.updater import Updater

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no GPU")

Make = Callable[..., Fragment]
MakePolicy = Callable[..., Policy]
GRU = 8
CONFIG = TrainConfig(
    batch_size_per_gpu=2,
    batches_per_iteration=3,
    epochs_per_iteration=2,
    context_length=4,
    learning_rate=1e-3,
    kl_divergence_coef_rho=0.1,
    entropy_bonus_coef=0.01,
)
STATE = CheckpointState(run_id="r", iteration=2)


def batch_of(make: Make, seed: int, collator: Collator) -> Batch:
    fragments = []
    for index in range(6):
        fragment = make(100 * seed + index, 6 + index, truncated=(2,), terminated=(4,), state={"gru": np.zeros(GRU)})
        header = fragment_pb2.FragmentHeader(name=fragment_pb2.FragmentName(stream=f"s{index}"))
        fragments.append(decode_half(*encode(header, fragment)))
    return collator.collate(fragments)


def train(
    make: Make, updater: Updater, device: str, config: TrainConfig, numbers: range, decode_cache_bytes: int = 2**20
) -> None:
    with closing(
        Collator(torch.device(device), decode_cache_bytes=decode_cache_bytes, threads=2, least_rows=6)
    ) as collator:
        for number in numbers:
            report = updater.update(batch_of(make, number, collator), rates(config, number, 0.0))
            assert not report.skipped_steps


def trained(make: Make, policy: Policy, device: str, config: TrainConfig, decode_cache_bytes: int = 2**20) -> Updater:
    seed_everything(1)
    updater = make_updater(policy.to(device), config)
    train(make, updater, device, config, range(2), decode_cache_bytes)
    return updater


def moved(policy: Policy, since: dict[str, Tensor]) -> Tensor:
    return torch.cat([(tensor.cpu() - since[name]).flatten() for name, tensor in policy.named_parameters()]).detach()


@pytest.mark.parametrize(("dtype", "bound"), [("float32", 0.01), ("bfloat16", 0.3), ("float16", 0.1)])
@pytest.mark.parametrize("decode_cache_bytes", [2**20, 0])
def test_update_on_a_gpu_moves_weights_as_on_the_cpu(
    make_fragment: Make, make_policy: MakePolicy, dtype: str, bound: float, decode_cache_bytes: int
) -> None:
    config, before = CONFIG, weights(make_policy(GRU))
    if dtype != "float32":
        config = replace(config, use_amp=True, amp_dtype=dtype)  # type: ignore[arg-type]  # The parameters name it.
    ours = moved(trained(make_fragment, make_policy(GRU), "cuda", config, decode_cache_bytes).policy, before)
    reference = moved(trained(make_fragment, make_policy(GRU), "cpu", CONFIG, decode_cache_bytes).policy, before)
    assert (ours - reference).norm() < bound * reference.norm()


@pytest.mark.parametrize("start", ["cuda", "cpu"])
@pytest.mark.parametrize("end", ["cuda", "cpu"])
def test_a_checkpoint_goes_from_one_device_to_the_other(
    tmp_path: Path, make_fragment: Make, make_policy: MakePolicy, start: str, end: str
) -> None:
    straight = trained(make_fragment, make_policy(GRU), start, CONFIG)
    place = write(tmp_path, take_snapshot(straight, STATE, "config: {}\n"))
    resumed = make_updater(make_policy(GRU, seed=7).to(end), CONFIG)
    load_snapshot(resumed, read(place))
    before = weights(straight.policy.cpu())
    assert all(torch.equal(tensor.cpu(), before[name]) for name, tensor in resumed.policy.state_dict().items())
    straight.policy.to(start)
    for updater, device in ((straight, start), (resumed, end)):
        seed_everything(3)
        train(make_fragment, updater, device, CONFIG, range(2, 3))
    ours, theirs = moved(resumed.policy, before), moved(straight.policy, before)
    assert (ours - theirs).norm() <= (0 if start == end == "cpu" else 0.01) * theirs.norm()


def test_weights_are_copied_while_kernels_that_change_them_are_queued() -> None:
    copier, weight = Copier(), torch.zeros(2**22, device="cuda")
    for number in range(1, 20):
        weight.add_(1)
        arrays = copier.copy({"weight": weight})
        weight.mul_(1)
        assert (arrays["weight"] == number).all()

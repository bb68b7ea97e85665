"""VPT on a GPU: an actor's decisions and a learner's update, each against a bare loop of the same network.

    python benchmarks/vpt_gpu.py [--sizes 1x 2x 3x] [--batches 1 8 32 128] [--device cuda] [--seconds 1]

    acting    frames per second of `PolicyRunner.decide`, from frames in memory to actions in memory, by the options of
              `rollout_config.worker_config`; the limit is the bare forward pass over frames that lie on the GPU, in
              bfloat16 replayed as a graph
    learning  frames per second of one update of `Updater` (values, one epoch, fragments of 256 frames, sequences of
              64), and the most memory that it took; the limit is a bare loop of as many forward and backward passes

TFLOP/s are those that the network needs for so many frames, by the figures of `vpt_costs.py`.
"""

import argparse
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from minefleet.config import TrainConfig
from minefleet.core.fragment import Fragment
from minefleet.core.schema import Leaf, Schema
from minefleet.core.tree import Tree, tree_map
from minefleet.policies.precision import DTYPES, compute
from minefleet.policies.vpt import PRESETS, VPTPolicy
from minefleet.policies.vpt.architecture import BUTTONS, CAMERA
from minefleet_actor.inference.compiled_forward import ForwardOptions, captured
from minefleet_actor.inference.policy_runner import PolicyRunner
from minefleet_learner.build import build_optimizer
from minefleet_learner.data.batch import Batch, collate
from minefleet_learner.targets.forward_passes import compute_dtype
from minefleet_learner.training.compiled_policy import compiled_policy
from minefleet_learner.training.schedules import rates
from minefleet_learner.training.updater import Updater
from vpt_costs import costs

STEPS, CONTEXT = 256, 64
OPTIONS: dict[str, dict[str, Any]] = {
    "float32": {},
    "bfloat16": {"dtype": "bfloat16"},
    "float16": {"dtype": "float16"},
    "bfloat16, graphs": {"dtype": "bfloat16", "cuda_graphs": True},
    "bfloat16, compiled, graphs": {"dtype": "bfloat16", "cuda_graphs": True, "compile": True},
}
LEARNING: dict[str, dict[str, Any]] = {
    "float32": {},
    "bfloat16": {"use_amp": True},
    "bfloat16, compiled": {"use_amp": True, "compile": True},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="+", default=["1x", "2x", "3x"], choices=PRESETS)
    parser.add_argument("--batches", nargs="*", type=int, default=[1, 8, 32, 128])
    parser.add_argument("--options", nargs="+", default=list(OPTIONS)[:-1], choices=OPTIONS)
    parser.add_argument("--learning", nargs="*", default=list(LEARNING)[:-1], choices=LEARNING)
    parser.add_argument("--fragments", type=int, default=8, help="of an update, all in one micro-batch (default: 8)")
    parser.add_argument("--device", default="cuda", type=torch.device)
    parser.add_argument("--seconds", type=float, default=1.0, help="of each measurement (default: 1)")
    arguments = parser.parse_args()
    if arguments.device.type == "cuda" and not torch.cuda.is_available():
        print("torch finds no GPU")
        return
    for size in arguments.sizes:
        report = Report(costs(PRESETS[size], CONTEXT).forward_flops)
        for batch in arguments.batches:
            for name in arguments.options:
                report.add(f"{size}, {batch} slots, {name}", acting(size, batch, arguments, OPTIONS[name]), passes=1)
            report.add(f"{size}, {batch} slots, bare", bare_acting(size, batch, arguments), passes=1)
        for name in arguments.learning:
            report.add(f"{size}, update, {name}", learning(size, arguments, LEARNING[name]), passes=4)
            if not LEARNING[name].get("compile"):
                report.add(f"{size}, bare, {name}", bare_learning(size, arguments, LEARNING[name]), passes=4)


class Report:
    """Prints a line per figure as it comes."""

    def __init__(self, frame_flops: float) -> None:
        self._frame_flops = frame_flops

    def add(self, name: str, frames_per_s: float, *, passes: int) -> None:
        """A backward pass counts as two forward ones."""
        memory = torch.cuda.max_memory_allocated() / 1e9 if torch.cuda.is_available() else 0.0
        tflops = frames_per_s * passes * self._frame_flops / 1e12
        cells = [name.ljust(44), f"{frames_per_s:10.0f} frames/s", f"{tflops:7.1f} TFLOP/s", f"{memory:6.1f} GB"]
        print("  ".join(cells), flush=True)
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()


def acting(size: str, slots: int, arguments: argparse.Namespace, options: dict[str, Any]) -> float:
    """Frames per second of an actor that decides for all slots at a time."""
    policy, shape = policy_of(size), PRESETS[size].image_shape
    options = options | {"dtype": DTYPES[options.get("dtype", "float32")]}
    inference = PolicyRunner(
        policy,
        schema_of(shape),
        slots,
        device=arguments.device,
        seed=0,
        greedy=False,
        options=ForwardOptions(**options),
    )
    every, obs = np.arange(slots), {"image": frames(slots, shape)}
    return slots * per_second(lambda: inference.decide(every, obs), arguments)


@torch.inference_mode()
def bare_acting(size: str, slots: int, arguments: argparse.Namespace) -> float:
    """Frames per second of the forward pass alone."""
    policy = policy_of(size).to(arguments.device)
    obs = {"image": torch.from_numpy(frames(slots, PRESETS[size].image_shape)).unsqueeze(1).to(arguments.device)}
    state, first = policy.initial_state(slots), torch.zeros(slots, 1, dtype=torch.bool, device=arguments.device)

    def plain(obs: Tree, state: Tree, first: Tensor) -> Any:
        return compute(policy, obs, state, first, torch.bfloat16)

    evaluate = captured(plain, obs, state, first) if arguments.device.type == "cuda" else plain
    return slots * per_second(lambda: evaluate(obs, state, first), arguments)


def learning(size: str, arguments: argparse.Namespace, changes: dict[str, Any]) -> float:
    """Frames per second of whole updates."""
    config = config_of(arguments, changes)
    policy = policy_of(size).to(arguments.device)
    schema = schema_of(PRESETS[size].image_shape)
    compiled = compiled_policy(policy, schema, compute_dtype(config)) if config.compile else None
    updater = Updater(policy, build_optimizer(policy, config), config, None, compiled=compiled)
    batch = batch_of(size, policy, arguments)
    return len(batch) * STEPS * per_second(lambda: updater.update(batch, rates(config, 1, 0.0)), arguments)


def bare_learning(size: str, arguments: argparse.Namespace, changes: dict[str, Any]) -> float:
    """Frames per second of a forward pass without gradients, then one with, and its backward pass."""
    policy, dtype = policy_of(size).to(arguments.device), torch.bfloat16 if changes.get("use_amp") else torch.float32
    optimizer = torch.optim.AdamW(policy.parameters(), fused=True)
    batch = batch_of(size, policy, arguments)
    parts = [{"image": batch.seen["image"][:, at : at + CONTEXT]} for at in range(0, STEPS, CONTEXT)]
    state, first = policy.initial_state(len(batch)), torch.zeros(len(batch), CONTEXT, dtype=torch.bool)
    first = first.to(arguments.device)
    action = tree_map(lambda leaf: leaf[:, :CONTEXT], batch.action)

    def once() -> None:
        with torch.no_grad():
            carried = state
            for obs in parts:
                _, carried = compute(policy, obs, carried, first, dtype)
        for obs in parts:
            output, _ = compute(policy, obs, state, first, dtype)
            head = policy.action_head
            loss = head.logp(output.params, action) - head.entropy(output.params) + output.value.square()
            loss.mean().backward()  # type: ignore[no-untyped-call]  # torch does not annotate it.
            optimizer.step()
            optimizer.zero_grad()

    return len(batch) * STEPS * per_second(once, arguments)


def config_of(arguments: argparse.Namespace, changes: dict[str, Any]) -> TrainConfig:
    """A micro-batch has as many sequences as there are fragments."""
    return TrainConfig(
        batch_size_per_gpu=arguments.fragments, context_length=CONTEXT, epochs_per_iteration=1, **changes
    )


def policy_of(size: str) -> VPTPolicy:
    """Fresh weights."""
    torch.manual_seed(0)
    return VPTPolicy(PRESETS[size])


def schema_of(shape: Any) -> Schema:
    """VPT's schema."""
    action = {
        name: Leaf(kind="discrete", shape=(), dtype="int64", categories=(count,))
        for name, count in (("buttons", BUTTONS), ("camera", CAMERA))
    }
    return Schema(obs={"image": Leaf(kind="box", shape=tuple(shape), dtype="uint8", low=0, high=255)}, action=action)


def frames(count: int, shape: Any) -> Any:
    """Noise."""
    return np.random.default_rng(0).integers(0, 256, (count, *shape), np.uint8)


def batch_of(size: str, policy: VPTPolicy, arguments: argparse.Namespace) -> Batch:
    """Fragments of noise on the device."""
    made = [((f"s{number}", 0), one) for number, one in enumerate(fragments(size, policy, arguments.fragments))]
    return collate(made).sent(lambda tree: tree_map(lambda leaf: leaf.to(arguments.device), tree))


def fragments(size: str, policy: VPTPolicy, count: int) -> Iterator[Fragment]:
    """Each from the middle of an episode."""
    rng, off = np.random.default_rng(0), np.zeros(STEPS, np.bool_)
    state = tree_map(lambda leaf: leaf[0].cpu().numpy(), policy.initial_state(1))
    for _ in range(count):
        seen = rng.integers(0, 256, (STEPS + 1, *PRESETS[size].image_shape), np.uint8)
        yield Fragment(
            obs={"image": seen[:STEPS]},
            action={"buttons": rng.integers(0, BUTTONS, STEPS), "camera": rng.integers(0, CAMERA, STEPS)},
            reward=rng.normal(size=STEPS).astype(np.float32),
            terminated=off,
            truncated=off,
            first=off,
            crash=off,
            behaviour_logp=np.full(STEPS, -13.0, np.float32),
            behaviour_value=np.zeros(STEPS, np.float32),
            next_value=np.zeros(STEPS, np.float32),
            policy_version=np.ones(STEPS, np.uint32),
            cut_index=np.array([STEPS - 1], np.int32),
            cut_obs={"image": seen[STEPS:]},
            recurrent_state=state,
        )


def per_second(once: Callable[[], object], arguments: argparse.Namespace) -> float:
    """Runs per second, after two warm-ups."""

    def synchronize() -> None:
        if arguments.device.type == "cuda":
            torch.cuda.synchronize()

    for _ in range(2):
        once()
    synchronize()
    began_s, count = time.monotonic(), 0
    while time.monotonic() - began_s < arguments.seconds or count < 2:
        once()
        count += 1
        if count % 10 == 0:
            synchronize()
    synchronize()
    return count / (time.monotonic() - began_s)


if __name__ == "__main__":
    main()

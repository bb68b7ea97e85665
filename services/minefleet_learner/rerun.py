"""Repeats an update step that was not finite and says what was first not finite: `minefleet rerun-update DIR`."""

import argparse
import bdb
import contextlib
import pdb  # The command exists for the debugger.
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from minefleet.errors import EXIT_CONFIG, ConfigError
from minefleet.run import Run
from minefleet.tree import flatten
from minefleet_learner.assembly import build_updater
from minefleet_learner.batch import Batch
from minefleet_learner.dumps import Dumped, read_dump
from minefleet_learner.estimates import estimate
from minefleet_learner.ppo import PPOLoss
from minefleet_learner.restore import load_snapshot
from minefleet_learner.update import Updater, judged

CPU = torch.device("cpu")


class NotFiniteError(ArithmeticError):
    """Raised where the first tensor that is not finite is made."""


def main() -> int:
    """Parses the command line and reports."""
    parser = argparse.ArgumentParser(prog="minefleet rerun-update")
    parser.add_argument("dump", type=Path)
    parser.add_argument("--pdb", action="store_true")
    arguments = parser.parse_args()
    try:
        dumped = read_dump(arguments.dump, CPU)
    except ConfigError as error:
        sys.stderr.write(f"minefleet: {error}\n")
        return EXIT_CONFIG
    with contextlib.suppress(bdb.BdbQuit):
        for line in report(dumped, debug=arguments.pdb):
            sys.stdout.write(f"{line}\n")
    return 0


def report(dumped: Dumped, *, debug: bool = False) -> Iterator[str]:
    """Repeats the step on the CPU, and yields what is not finite: inputs, then what is first made of them.

    The step is taken once as it was, for the verdict, and once under watch, which ends where the first tensor that is
    not finite is made of finite ones. With `debug` the debugger starts before the step, and again at that place.
    """
    updater = build_updater(plain(dumped.run), CPU)
    load_snapshot(updater, dumped.checkpoint)
    batch = dumped.bad.batch
    yield f"the fragments are {', '.join(f'{stream}/{sequence}' for stream, sequence in batch.names)}"
    yield from bad_inputs(batch)
    yield from extremes(updater.policy, batch)
    if debug:
        breakpoint()
    yield from repeat(updater, dumped)
    load_snapshot(updater, dumped.checkpoint)
    watch(updater.policy)
    try:
        with torch.autograd.set_detect_anomaly(True), warnings.catch_warnings(action="ignore"):
            list(repeat(updater, dumped, look=judge))
    except (NotFiniteError, RuntimeError) as error:
        yield f"first not finite: {str(error).splitlines()[0]}"
        if debug:
            pdb.post_mortem(error.__traceback__)


def plain(run: Run) -> Run:
    """The run without compiled code, and without an end after bad steps."""
    config = replace(run.config.train_config, compile=False, max_bad_steps=sys.maxsize)
    return replace(run, config=replace(run.config, train_config=config))


def repeat(updater: Updater, dumped: Dumped, look: Callable[[PPOLoss], None] = lambda _: None) -> Iterator[str]:
    """Repeats the estimates or the step, whichever was not finite, and says whether it is so again."""
    bad = dumped.bad
    if bad.prepared is None:
        updater.policy.eval()
        estimates = estimate(updater.policy, bad.batch, dumped.run.config.train_config)
        yield from not_finite_lines(bad.batch, judged(bad.batch, estimates))
        return
    micro_batches = [torch.tensor(pieces) for pieces in bad.micro_batches]
    skipped = updater.repeat(bad.prepared, micro_batches, bad.rates, look).skipped
    yield "the step is not finite again" if skipped else "the step is finite here"


def extremes(policy: nn.Module, batch: Batch) -> Iterator[str]:
    """Says how large the finite numbers are that all else is made of."""
    sizes = {name: float(tensor.detach().abs().max()) for name, tensor in policy.named_parameters()}
    largest = max(sizes, key=lambda name: sizes[name])
    yield f"the largest weight is {sizes[largest]:.3g}, in {largest}"
    reward = batch.reward.abs().masked_fill(~batch.mask, 0.0)
    row, step = divmod(int(reward.argmax()), reward.shape[1])
    yield f"the largest reward is {float(batch.reward[row, step]):.3g}, {_name(batch, row)} step {step}"


def judge(loss: PPOLoss) -> None:
    """Raises where a part of the loss is not finite."""
    for part in reversed(fields(loss)):
        number = getattr(loss, part.name)
        if isinstance(number, Tensor) and not _finite(number):
            raise NotFiniteError(f"the loss's part {part.name} is {float(number)}, made of finite outputs")


def bad_inputs(batch: Batch) -> Iterator[str]:
    """Names what came with the fragments and is not finite."""
    for name in ("reward", "behaviour_logp", "behaviour_value", "next_value"):
        yield from not_finite_lines(batch, {name: getattr(batch, name)})
    for path, leaf in flatten(batch.seen).items():
        places = _not_finite(leaf, batch.seen_mask)
        yield from (f"{_name(batch, row)}: the observation {path} number {seen} is not finite" for row, seen in places)


def not_finite_lines(batch: Batch, tensors: dict[str, Tensor]) -> Iterator[str]:
    """Names the first step of each fragment at which a tensor [B, T] is not finite."""
    for name, tensor in tensors.items():
        yield from (
            f"{_name(batch, row)}: the {name} of step {step} is not finite"
            for row, step in _not_finite(tensor, batch.mask)
        )


def watch(policy: nn.Module) -> None:
    """Lets every module raise when what it returns is not finite although what it took was."""
    for name, module in policy.named_modules():
        module.register_forward_hook(_watcher(name or type(policy).__name__))


def _watcher(name: str) -> Callable[[nn.Module, Any, Any], None]:
    def hook(_: nn.Module, taken: Any, made: Any) -> None:
        if all(_finite(tensor) for tensor in _tensors(taken)) and not all(_finite(one) for one in _tensors(made)):
            raise NotFiniteError(f"what the module {name} makes of finite inputs")

    return hook


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        for inner in value.values():
            yield from _tensors(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _tensors(inner)


def _finite(tensor: Tensor) -> bool:
    return not tensor.is_floating_point() or bool(torch.isfinite(tensor).all())


def _not_finite(tensor: Tensor, mask: Tensor) -> list[tuple[int, int]]:
    """Row and first place of the rows [B, X, ...] with an entry in the mask that is not finite."""
    if not tensor.is_floating_point():
        return []
    bad = ~torch.isfinite(tensor.flatten(2)).all(-1) if tensor.ndim > 2 else ~torch.isfinite(tensor)
    bad = bad & mask
    return [(row, int(bad[row].int().argmax())) for row in torch.nonzero(bad.any(1)).flatten().tolist()]


def _name(batch: Batch, row: int) -> str:
    stream, sequence = batch.names[row]
    return f"{stream}/{sequence}"


if __name__ == "__main__":
    sys.exit(main())

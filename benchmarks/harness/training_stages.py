"""The stages of a step, by the functions that they run in: what `benchmarks/training_budget.py` tells apart."""

from collections.abc import Sequence

IDLE = "idle"
NATIVE = "threads without Python: gRPC, RocksDB, torch"
WAITS = (
    "wait (threading.py",
    "select (selectors.py",
    "_blocking (grpc/_channel.py",
    "channel_spin (grpc/_channel.py",
    "_consume_request_iterator (grpc/_channel.py",
    "_next (grpc/_channel.py",
    "_serve (grpc/_server.py",
    "_worker (concurrent/futures/thread.py",
    "pass_on (minefleet_runtime/process_setup.py",
    "_wait_once (grpc/_common.py",
)
"""Innermost functions of a thread that waits."""
STAGES = (
    ("forward", ("Forward.__call__ (", "evaluate (minefleet_learner/targets/forward_passes.py")),
    ("backward", ("backward (torch/_tensor.py", "Tensor.backward (")),
    ("optimizer", ("step (torch/optim/", "clip_grad_norm", "zero_grad (torch/optim/")),
    ("gather", ("gather (minefleet_learner/", "observations (minefleet_learner/targets/forward_passes.py")),
    (
        "pack and unpack",
        (
            "minefleet/rpc/codec.py",
            "minefleet_learner/data/unpacked_observations.py",
            "minefleet_learner/data/collate.py",
        ),
    ),
    ("sample and copy", ("PolicyRunner.decide (",)),
    ("GAE", ("estimate (minefleet_learner/targets/value_and_advantage_estimates.py",)),
    ("loss", ("Objective.loss (", "loss (minefleet_learner/training/loss.py")),
    ("record", ("minefleet_actor/rollout/fragment_recorder.py",)),
    ("commands and answers", ("minefleet_actor/pool/",)),
    ("append", ("FragmentUploader.", "Append (minefleet_replay/service.py")),
    ("grants", ("minefleet_actor/replay_io/permits.py", "Reserve (minefleet_replay/service.py")),
    ("lease, read, ack", ("minefleet_learner/data/prefetcher.py", "Lease (", "Read (", "Ack (")),
    (
        "weights",
        (
            "minefleet_actor/inference/weight_sync.py",
            "minefleet/rpc/parameters_client.py",
            "minefleet_learner/checkpoints/host_copy.py",
        ),
    ),
    ("sync", ("Maintenance.",)),
    ("checkpoint", ("minefleet_learner/checkpoints/writer.py", "minefleet/runs/checkpoint_files.py")),
    ("optimizer steps, the rest", ("Stepper.step (",)),
    ("update, the rest", ("Updater.update (",)),
    ("loop", ("Actor.turn (",)),
)
"""Each with what its functions contain."""


def stage_of(frames: Sequence[str]) -> str:
    """The stage of a stack, outermost function first."""
    if not frames or any(wait in frames[-1] for wait in WAITS):
        return IDLE
    for frame in reversed(frames):
        for stage, marks in STAGES:
            if any(mark in frame for mark in marks):
                return stage
    return "the rest"

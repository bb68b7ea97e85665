"""Builds the parts of a learner from a run."""

import copy
import os
from collections.abc import Callable
from typing import TypeAlias

import torch

from minefleet.config import TrainConfig
from minefleet.config.shards import fragments_per_iteration
from minefleet.parameters import ParametersClient
from minefleet.policies import Policy, build
from minefleet.policies.device import choose_device
from minefleet.policies.weights import rounded_tensors
from minefleet.replay import ReplayClient
from minefleet.run import Run
from minefleet_learner.amp import compute_dtype
from minefleet_learner.collating import Collator
from minefleet_learner.compiling import compiled_policy
from minefleet_learner.copies import Copier
from minefleet_learner.dumps import Dumps
from minefleet_learner.feed import Feed
from minefleet_learner.finishing import Outlets
from minefleet_learner.loop import Learner, Parts
from minefleet_learner.metrics import LearnerMetrics
from minefleet_learner.parity import BOUNDS, ParityProbe
from minefleet_learner.saving import CheckpointWriter
from minefleet_learner.shards import Part, Shards
from minefleet_learner.snapshot import seed_everything
from minefleet_learner.update import Updater
from minefleet_runtime.context import RoleContext

Setup: TypeAlias = Callable[[], tuple[Policy, torch.optim.Optimizer]]
"""Makes a policy on the device to train on, with fresh weights, and its optimizer."""


def build_learner(
    context: RoleContext, *, background: bool = False, copier: Copier | None = None, setup: Setup | None = None
) -> Learner:
    """Builds a learner; nothing is started or sent yet.

    Args:
        context: The role.
        copier: Of the weights; None for one of its own.
        background: Fetch, publish and save beside the training; otherwise all is done in order, on the caller's thread.
        setup: Makes what is trained; None for the policy of the configuration and AdamW.
    """
    run, config = context.run, context.run.config.train_config
    torch.set_num_threads(config.torch_threads or max(1, len(os.sched_getaffinity(0)) - 1))
    updater = build_updater(run, choose_device(config.device, "train_config.device"), setup)
    device = next(updater.policy.parameters()).device
    replay = build_replay(context)
    rounded = rounded_tensors(updater.policy, config.wire_dtype)
    buffer = run.config.rollout_config.replay_buffer_config
    outlets = Outlets(
        run=run,
        feed=build_feed(context, replay, device, ahead=background, burn_in=updater.burn_in),
        replay=replay,
        parameters=ParametersClient(
            run.config.services.parameters.address,
            identity=run.identity(context.role),
            watcher=context.name,
            rounded=rounded,
            stopping=context.stopping,
            report=context.board.waiting,
        ),
        writer=CheckpointWriter(
            run.checkpoints,
            save_interval=config.save_interval,
            keep_interval=config.keep_interval,
            latest_interval_s=config.latest_interval_s,
            background=background,
        ),
        metrics=LearnerMetrics(context.registry),
        board=context.board,
    )
    probe = ParityProbe(
        updater.policy,
        versions=buffer.max_staleness + 2,
        context_length=config.context_length,
        rounded=rounded,
        bound=config.parity_bound or BOUNDS[run.config.rollout_config.worker_config.dtype],
    )
    return Learner(
        Parts(
            updater=updater,
            probe=probe,
            outlets=outlets,
            stopping=context.stopping,
            copier=copier or Copier(),
            background=background,
        )
    )


def build_updater(run: Run, device: torch.device, setup: Setup | None = None) -> Updater:
    """Builds policy, optimizer and reference with fresh weights. Seeds the process."""
    config = run.config.train_config
    seed_everything(run.config.seed)
    if setup is not None:
        policy, optimizer = setup()
    else:
        policy = build(run.config.policy, run.schema).to(device)
        optimizer = build_optimizer(policy, config)
    policy.value_norm.enabled = config.use_normalized_vf
    reference = copy.deepcopy(policy).eval().requires_grad_(False) if config.kl_divergence_coef_rho else None
    compiled = compiled_policy(policy, run.schema, compute_dtype(config)) if config.compile else None
    return Updater(policy, optimizer, config, reference, compiled=compiled, dump=Dumps(run))


def build_optimizer(policy: Policy, config: TrainConfig) -> torch.optim.Optimizer:
    """AdamW over all parameters, in one kernel per step."""
    return torch.optim.AdamW(
        policy.parameters(),
        lr=config.learning_rate,
        eps=config.adam_eps,
        weight_decay=config.weight_decay,
        fused=True,
    )


def build_replay(context: RoleContext) -> Shards:
    """Builds a client per shard; nothing is sent yet."""
    run = context.run
    parts = [
        Part(
            replay=ReplayClient(
                shard.endpoint.address,
                identity=run.identity(context.role),
                stopping=context.stopping,
                report=context.board.waiting,
            ),
            fragments=fragments_per_iteration(run.config, shard.index),
        )
        for shard in run.shards
    ]
    return Shards(parts)


def build_feed(context: RoleContext, replay: Shards, device: torch.device, *, ahead: bool, burn_in: int) -> Feed:
    """Builds the feed. Nothing may be leased ahead where `max_staleness` is 0; else two batches share the memory."""
    config, rollout = context.run.config.train_config, context.run.config.rollout_config
    buffer = rollout.replay_buffer_config
    ahead = ahead and config.prefetch_batches > 0 and buffer.max_staleness > 0
    return Feed(
        replay,
        fragments_per_chunk=buffer.fragments_per_chunk,
        order=buffer.order,
        readers=config.num_readers,
        collator=Collator(device, decoded_bytes=config.decoded_bytes // (1 + ahead), threads=config.num_readers),
        burn_in=burn_in,
        ahead=ahead,
        stopping=context.stopping,
        report=context.board.waiting,
    )

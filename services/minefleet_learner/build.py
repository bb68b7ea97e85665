"""Builds the parts of a learner from a run."""

import logging
import os
import threading
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import TypeAlias

import torch

from minefleet.config import FleetConfig, TrainConfig
from minefleet.config.replay_partitioning import fragments_per_iteration
from minefleet.launch.torchrun_variables import ranks_on_this_machine
from minefleet.policies import Policy, build
from minefleet.policies.device import choose_device
from minefleet.policies.policy import twin
from minefleet.policies.weight_arrays import rounded_tensors
from minefleet.rpc.parameters_client import ParametersClient
from minefleet.rpc.replay_client import ReplayClient
from minefleet.runs.run_yaml import Run
from minefleet_learner.checkpoints.host_copy import Copier
from minefleet_learner.checkpoints.run_snapshot_uploader import SnapshotUploader
from minefleet_learner.checkpoints.writer import CheckpointWriter
from minefleet_learner.data.collate import Collator
from minefleet_learner.data.prefetcher import LeaseSource, Prefetcher
from minefleet_learner.data.sharded_replay import ShardPart, Shards
from minefleet_learner.diagnostics.nonfinite_dumps import BadStepDumps
from minefleet_learner.diagnostics.parity import BOUNDS, ParityProbe
from minefleet_learner.distributed.ranks import SINGLE_RANK, Ranks, join, own_device
from minefleet_learner.iteration_commit import LearnerServices
from minefleet_learner.learner_parts import LearnerParts
from minefleet_learner.loop import Learner
from minefleet_learner.metrics.loop_timer import LoopTimer
from minefleet_learner.metrics.prometheus import LearnerMetrics
from minefleet_learner.rank_coordinator import LeadingShards
from minefleet_learner.rank_worker import FollowingShards, RankWorker
from minefleet_learner.targets.forward_passes import compute_dtype
from minefleet_learner.training.compiled_policy import compiled_policy
from minefleet_learner.training.rng_state import seed_everything
from minefleet_learner.training.updater import Updater
from minefleet_runtime.role_context import RoleContext

logger = logging.getLogger(__name__)

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
    run = context.run
    ranks, device = set_up_torch(run.config)
    updater = build_updater(run, device, ranks, setup)
    metrics = LearnerMetrics(context.registry)
    metrics.parity_bound.set(bound := _parity_bound(run))
    rounded = rounded_tensors(updater.policy, run.config.train_config.wire_dtype)
    return Learner(
        LearnerParts(
            updater=updater,
            probe=ParityProbe(
                updater.policy,
                max_staleness=run.config.rollout_config.replay_buffer_config.max_staleness,
                context_length=run.config.train_config.context_length,
                rounded=rounded,
                bound=bound,
                raises=not run.config.rollout_config.canary_share,
            ),
            services=build_services(context, updater, ranks, metrics, rounded, background=background),
            stopping=context.stopping,
            copier=copier or Copier(),
            ranks=ranks,
            background=background,
        )
    )


def build_services(
    context: RoleContext,
    updater: Updater,
    ranks: Ranks,
    metrics: LearnerMetrics,
    rounded: Collection[str],
    *,
    background: bool,
) -> LearnerServices:
    """Builds the clients, the prefetcher and the writer of rank 0."""
    run, config = context.run, context.run.config.train_config
    device = next(updater.policy.parameters()).device
    replay = build_replay(context)
    source: LeaseSource = replay if ranks.is_alone else LeadingShards(replay, ranks)
    loop_time = LoopTimer(run.config.rollout_config.replay_buffer_config.max_staleness)
    context.registry.register(loop_time)
    context.status.add_source(loop_time.stats)
    return LearnerServices(
        run=run,
        prefetcher=build_prefetcher(
            context, source, device, ranks, ahead=background, burn_in=updater.burn_in, reading=loop_time.reading
        ),
        replay=replay,
        parameters=ParametersClient(
            run.config.services.parameters.address,
            identity=run.identity(context.role),
            credentials=context.credentials,
            watcher=context.name,
            rounded=rounded,
            stopping=context.stopping,
            report=context.status.set_waiting,
        ),
        writer=CheckpointWriter(
            run.checkpoints,
            save_interval=config.save_interval,
            keep_interval=config.keep_interval,
            latest_min_interval_s=config.latest_min_interval_s,
            background=background,
            saved=metrics.saved,
        ),
        snapshots=SnapshotUploader(run),
        metrics=metrics,
        status=context.status,
        loop_time=loop_time,
    )


def _parity_bound(run: Run) -> float:
    """The bound that is asked for, or that of the dtypes in use."""
    rollout, asked = run.config.rollout_config, run.config.train_config.parity_bound
    needed = max(BOUNDS[dtype] for dtype in (rollout.worker_config.dtype, rollout.state_dtype))
    if asked is not None and asked < needed:
        logger.warning("train_config.parity_bound=%g is below the %g that the actors' dtypes take", asked, needed)
    return needed if asked is None else asked


def build_follower(context: RoleContext) -> RankWorker:
    """Builds a rank that follows rank 0; it has met the others by then."""
    # Rank 0 says when to stop: a rank that did so by itself would leave the others waiting for it.
    run, context = context.run, replace(context, stopping=threading.Event())
    ranks, device = set_up_torch(run.config)
    replay = build_replay(context)
    parts, updater = FollowingShards(replay), build_updater(run, device, ranks)
    return RankWorker(
        run=run,
        ranks=ranks,
        updater=updater,
        replay=replay,
        parts=parts,
        prefetcher=build_prefetcher(context, parts, device, ranks, ahead=True, burn_in=updater.burn_in),
        over=context.stopping,
    )


def set_up_torch(config: FleetConfig) -> tuple[Ranks, torch.device]:
    """Meets the other ranks, and takes this one's share of the machine."""
    train = config.train_config
    kept = 0 if config.rollout_config.replay_buffer_config.takes_turns else 1
    share = (len(os.sched_getaffinity(0)) - kept) // ranks_on_this_machine()
    torch.set_num_threads(train.torch_threads or max(1, share))
    device = own_device(choose_device(train.device, "train_config.device"))
    return join(train.num_workers, train.rank_timeout_s, device), device


def build_updater(run: Run, device: torch.device, ranks: Ranks = SINGLE_RANK, setup: Setup | None = None) -> Updater:
    """Builds policy, optimizer and reference with fresh weights. Seeds the process."""
    config = run.config.train_config
    seed_everything(run.config.seed)
    if setup is not None:
        policy, optimizer = setup()
    else:
        policy = build(run.config.policy, run.schema, run.config.path_map).to(device)
        optimizer = build_optimizer(policy, config)
    policy.value_norm.enabled = config.use_normalized_vf
    reference = twin(policy).eval().requires_grad_(False) if config.kl_divergence_coef_rho else None
    compiled = compiled_policy(policy, run.fragment_schema, compute_dtype(config)) if config.compile else None
    dump = BadStepDumps(run, rank=ranks.rank)
    return Updater(policy, optimizer, config, reference, ranks=ranks, compiled=compiled, dump=dump)


def build_optimizer(policy: Policy, config: TrainConfig) -> torch.optim.Optimizer:
    """AdamW over all parameters, in one kernel per step."""
    return torch.optim.AdamW(
        policy.parameters(), lr=config.learning_rate, eps=config.adam_eps, weight_decay=config.weight_decay, fused=True
    )


def build_replay(context: RoleContext) -> Shards:
    """Builds a client per shard; nothing is sent yet."""
    run = context.run
    parts = [
        ShardPart(
            replay=ReplayClient(
                shard.endpoint.address,
                identity=run.identity(context.role),
                credentials=context.credentials,
                stopping=context.stopping,
                report=context.status.set_waiting,
            ),
            steps=fragments_per_iteration(run.config, shard.index) * run.config.rollout_config.fragment_length,
        )
        for shard in run.shards
    ]
    return Shards(parts)


def build_prefetcher(
    context: RoleContext,
    replay: LeaseSource,
    device: torch.device,
    ranks: Ranks,
    *,
    ahead: bool,
    burn_in: int,
    reading: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> Prefetcher:
    """Builds the prefetcher. With `max_staleness` 0 nothing may be leased ahead; else two batches share the memory."""
    config, rollout = context.run.config.train_config, context.run.config.rollout_config
    buffer = rollout.replay_buffer_config
    ahead = ahead and config.prefetch_batches > 0 and buffer.max_staleness > 0
    return Prefetcher(
        replay,
        order=buffer.order,
        readers=config.num_readers,
        collator=Collator(
            device,
            decode_cache_bytes=config.decode_cache_bytes // (1 + ahead),
            threads=config.num_readers,
            least_rows=config.batch_size_per_gpu,
        ),
        burn_in=burn_in,
        may_be_empty=not ranks.is_alone,
        ahead=ahead,
        stopping=context.stopping,
        report=context.status.set_waiting,
        reading=reading,
    )

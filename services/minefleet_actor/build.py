"""Builds the parts of an actor from a run."""

import logging
import os
import threading
import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from random import Random

import numpy as np
import torch
from numpy.typing import NDArray

from minefleet.core.errors import ConfigError
from minefleet.core.tree import flatten
from minefleet.policies import Policy, build
from minefleet.policies.device import choose_device
from minefleet.policies.precision import DTYPES
from minefleet.policies.weight_arrays import Architecture, architecture
from minefleet.rpc.parameters_client import ParametersClient
from minefleet.runs.run_yaml import Run
from minefleet_actor.env_death_recorder import DeathRecorder
from minefleet_actor.incarnation_identity import choose_name, choose_seed
from minefleet_actor.inference.batcher import InferenceBatcher
from minefleet_actor.inference.compiled_forward import options_of
from minefleet_actor.inference.policy_runner import PolicyRunner
from minefleet_actor.inference.weight_sync import WeightsFollower
from minefleet_actor.live_settings_update import follow_settings
from minefleet_actor.loop import Actor
from minefleet_actor.metrics.prometheus import ActorMetrics
from minefleet_actor.pool import EnvPool, HostedPool, InlinePool, Pool
from minefleet_actor.pool.episode_seed import episode_seed
from minefleet_actor.replay_io.connect import connect
from minefleet_actor.replay_io.stream_router import StreamRouter
from minefleet_actor.rollout.fragment_recorder import Recorder
from minefleet_actor.rollout.freshness_cuts import FreshnessCuts
from minefleet_actor.rollout.reward_scale_clip import shaping
from minefleet_actor.rollout.running_episodes import RunningEpisodes
from minefleet_actor.slot_assignment import canary_slots, draw_task
from minefleet_actor.slot_descriptions import SlotView
from minefleet_actor.thread_group import ThreadGroup
from minefleet_actor.video.video_recorder import Camera
from minefleet_actor.video.video_recorder_setup import is_to_film, make_camera
from minefleet_runtime.role_context import RoleContext

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class ActorParts:
    """An actor and what works for it in the background."""

    actor: Actor
    batcher: InferenceBatcher
    pool: Pool
    follower: WeightsFollower
    router: StreamRouter
    threads: ThreadGroup
    camera: Camera | None
    """None where nothing is filmed."""
    view: SlotView
    abandoned: threading.Event
    """Set when a drain has taken too long: what is not sent by then is given up."""


def assemble(context: RoleContext, *, inline: bool = False) -> ActorParts:
    """Waits for the first weights and builds an actor by their settings; `inline` plays in this process."""
    policy, abandoned = make_policy(context.run), threading.Event()
    films = not inline and is_to_film(context.run)
    watcher = f"{context.name}-{uuid.uuid4().hex[:12]}"
    parameters = parameters_client(context, watcher, architecture(policy), can_film=films)
    follower = WeightsFollower(parameters, {*canary_slots(context.run.config.rollout_config, context.index).tolist()})
    first = follower.first()
    first_version, run = first.version, context.run.with_settings(first.settings)
    context, rollout = replace(context, run=run), run.config.rollout_config
    canary = canary_slots(rollout, context.index)
    follower.act_for({*canary.tolist()})
    seed = choose_seed(run.config.seed, first_version, deterministic=inline or rollout.worker_config.deterministic)
    name = choose_name(context, first_version, inline=inline)
    pool = make_pool(run, seed, context.index, inline=inline)
    metrics = ActorMetrics(context.registry, name, len(run.shards), pool.num_slots)
    seed_of_actor = partial(episode_seed, seed, context.index, pool.num_slots)
    inference = make_inference(run, policy, canary, seed_of_actor(0))
    router = make_router(context, name, follower.run_id, inference, pool, metrics, abandoned)
    episodes = RunningEpisodes(pool.num_slots, run.config.train_config.discount, canary=canary)
    camera = make_camera(run, pool, episodes, router, parameters, metrics) if films else None
    batcher = make_batcher(run, inference, pool, metrics, inline=inline)
    recorder = Recorder(run.fragment_schema, pool.num_slots, rollout.fragment_length, shaping(run.config.env.wrappers))
    deaths = DeathRecorder(run, pool, context.name) if rollout.worker_config.deaths_kept else None
    cuts = make_cuts(run, router, pool.num_slots, inline=inline)
    actor = Actor(
        pool=pool,
        inference=inference,
        batcher=batcher,
        recorder=recorder,
        episodes=episodes,
        router=router,
        follower=follower,
        metrics=metrics,
        rollout=rollout,
        cuts=cuts,
        camera=camera,
        settings=first.settings,
        follow=partial(follow_settings, run, cuts, camera),
        first_task=partial(draw_task, run.config.env.tasks, Random(seed_of_actor(1))),
        deaths=deaths,
        batch_size=batch_size(run, inline=inline),
    )
    return ActorParts(
        actor=actor,
        batcher=batcher,
        pool=pool,
        follower=follower,
        router=router,
        threads=ThreadGroup(failed=pool.wake),
        camera=camera,
        view=SlotView(run, actor, pool, router, recorder, episodes, cuts, camera, deaths),
        abandoned=abandoned,
    )


def make_pool(run: Run, seed: int, actor_index: int, *, inline: bool) -> Pool:
    """A pool of the run's environments, which are not started yet."""
    worker = run.config.rollout_config.worker_config
    if inline and worker.hosted:
        raise ConfigError("rollout_config.worker_config.hosted: with --serial, all environments are in one process")
    kind: Callable[..., Pool] = HostedPool if worker.hosted else EnvPool
    if inline or worker.is_inline:
        kind = InlinePool
    return kind(
        run.config.env,
        run.schema,
        worker,
        seed=seed,
        actor_index=actor_index,
        frame_shape=run.frame_shape,
        discount=run.config.train_config.discount,
    )


def batch_size(run: Run, *, inline: bool) -> int:
    """The number of environments that step together; 1 where each steps by itself."""
    worker = run.config.rollout_config.worker_config
    if not run.config.env.batched:
        return 1
    return worker.num_envs if inline else worker.envs_together


def make_router(
    context: RoleContext,
    name: str,
    run_id: str,
    inference: PolicyRunner,
    pool: Pool,
    metrics: ActorMetrics,
    abandoned: threading.Event,
) -> StreamRouter:
    """Connects the slots' streams with the shards of replay."""
    run = context.run
    buffer = run.config.rollout_config.replay_buffer_config
    connect_to = partial(
        connect,
        context,
        run_id,
        version=lambda: inference.version,
        progress=metrics.progress,
        abandoned=abandoned,
        wake=pool.wake,
    )
    return StreamRouter(
        name,
        pool.num_slots,
        [connect_to(shard) for shard in run.shards],
        fragments_per_chunk=buffer.fragments_per_chunk,
        actor_index=context.index,
    )


def make_cuts(run: Run, router: StreamRouter, slots: int, *, inline: bool) -> FreshnessCuts:
    """Ends fragments early where time enters a run at all."""
    rollout = run.config.rollout_config
    buffer = rollout.replay_buffer_config
    return FreshnessCuts(
        router,
        slots,
        least_steps=run.config.least_steps,
        fragment_length=rollout.fragment_length,
        chunk_steps=rollout.fragment_length * buffer.fragments_per_chunk,
        enabled=not inline and not rollout.worker_config.deterministic,
        balanced=buffer.balance != "speed",
        paced=buffer.pacing == "grants",
    )


def make_policy(run: Run) -> Policy:
    """The run's policy, with fresh weights."""
    rollout = run.config.rollout_config
    torch.set_num_threads(rollout.torch_threads)
    if rollout.worker_config.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)
    policy = build(run.config.policy, run.schema, run.config.path_map)
    if run.stored is not None:
        shown, stored = (
            sum(leaf.zeros().nbytes for leaf in flatten(each.obs).values()) for each in (run.schema, run.stored)
        )
        logger.info(
            "fragments hold outputs of %s: %d bytes a step, of %d that are shown",
            run.config.policy.frozen_encoder,
            stored,
            shown,
        )
    return policy


def make_inference(run: Run, policy: Policy, canary: NDArray[np.bool_], seed: int) -> PolicyRunner:
    """Runs a policy on the device that the configuration names."""
    worker = run.config.rollout_config.worker_config
    return PolicyRunner(
        policy,
        run.schema,
        len(canary),
        canary=canary,
        largest=worker.largest_batch,
        device=choose_device(worker.device, "rollout_config.worker_config.device"),
        seed=seed,
        greedy=worker.greedy,
        noise_per_slot=worker.deterministic,
        state_dtype=DTYPES[run.config.rollout_config.state_dtype],
        options=options_of(worker),
    )


def make_batcher(
    run: Run, inference: PolicyRunner, pool: Pool, metrics: ActorMetrics, *, inline: bool
) -> InferenceBatcher:
    """Decides in a thread of its own, unless the loop could do nothing meanwhile.

    Where everything is to happen in order, or all environments are in one process, they wait while the policy decides,
    and it waits while they step: there is nobody to wait for, and a thread would only cost its wake-ups. Where policy
    and loop share one core, it would cost those and their waits for the interpreter.
    """
    worker = run.config.rollout_config.worker_config
    in_turn = inline or worker.deterministic or worker.envs_together >= worker.num_envs
    threaded = not in_turn and (inference.device.type != "cpu" or len(os.sched_getaffinity(0)) > 1)
    return InferenceBatcher(
        inference,
        lambda: pool.obs,
        least=worker.min_batch_size or worker.envs_together,
        timeout_s=0.0 if in_turn else worker.batch_timeout_s,
        threaded=threaded,
        timed=metrics.inferring,
        decided=pool.wake if threaded else lambda: None,
    )


def parameters_client(
    context: RoleContext, name: str, architecture: Architecture, *, can_film: bool = False
) -> ParametersClient:
    """A client of parameters, for a policy of this architecture, that waits until the role is asked to stop."""
    return ParametersClient(
        context.run.config.services.parameters.address,
        identity=context.run.identity(context.role),
        credentials=context.credentials,
        watcher=name,
        can_film=can_film,
        architecture=architecture,
        stopping=context.stopping,
        report=context.status.set_waiting,
    )

"""Restores a learner: from its run's newest checkpoint, from another run's weights, or afresh."""

import logging
import uuid
from dataclasses import replace
from pathlib import Path

from minefleet.config import TrainConfig
from minefleet.config.train import AUTO
from minefleet.policies import zero_value_head
from minefleet.policies.weight_arrays import load_numpy, to_numpy
from minefleet.runs.checkpoint_files import Checkpoint, CheckpointState, newest, read
from minefleet.runs.run_yaml import Run
from minefleet.runs.trained_policy_files import read_weights
from minefleet_learner.checkpoints.host_copy import Copier
from minefleet_learner.training.optimizer_state_arrays import (
    TrainState,
    checkpoint_of,
    load_optimizer,
    load_scaler,
    optimizer_tensors,
    scaler_arrays,
)
from minefleet_learner.training.rng_state import restore_rng, rng_arrays
from minefleet_learner.training.updater import Updater

logger = logging.getLogger(__name__)


def restore(run: Run, updater: Updater) -> CheckpointState:
    """Fills the updater and says where training stands.

    A run that has a checkpoint goes on from it: everything is as it was. Otherwise `train_config.resume` may name
    another one, from whose weights (and optimizer, by `resume_optimizer`) a new run starts, counting from 0, or an
    exported version, which has weights only.

    Raises:
        ConfigError: If the checkpoint is missing or damaged.
        ContractError: If it holds another policy's weights.
    """
    config = run.config.train_config
    path = newest(run.checkpoints)
    if path is not None:
        return _go_on(path, updater)
    state = CheckpointState(run_id=uuid.uuid4().hex)
    if config.resume is not None and config.resume != AUTO:
        _take_weights(run.directory / config.resume, config, updater)
    elif config.zero_initial_vf:
        zero_value_head(updater.policy)
    updater.refer_to_current()
    return state


def take_snapshot(updater: Updater, state: CheckpointState, run_text: str) -> Checkpoint:
    """Copies everything into a checkpoint.

    Args:
        updater: What is trained.
        state: Where training stands.
        run_text: Text of `run.yaml`.
    """
    return checkpoint_of(state, to_numpy(updater.policy), copy_train_state(updater, Copier()), run_text)


def copy_train_state(updater: Updater, copier: Copier) -> TrainState:
    """Copies what a checkpoint holds beside the weights and the counters; `copier` copies the optimizer's moments."""
    return TrainState(
        optimizer=copier.copy(optimizer_tensors(updater.policy, updater.optimizer)),
        rng=rng_arrays(),
        scaler=scaler_arrays(updater.scaler),
        reference=None if updater.reference is None else to_numpy(updater.reference),
        carried=None if updater.carrier is None else updater.carrier.to_arrays(),
    )


def load_snapshot(updater: Updater, checkpoint: Checkpoint) -> None:
    """Inverts `take_snapshot`. Without a reference in the checkpoint, its weights become the reference."""
    load_numpy(updater.policy, checkpoint.policy)
    load_optimizer(updater.policy, updater.optimizer, checkpoint.optimizer)
    load_scaler(updater.scaler, checkpoint.scaler)
    updater.refer_to_current()
    if updater.reference is not None and checkpoint.reference is not None:
        load_numpy(updater.reference, checkpoint.reference)
    if updater.carrier is not None and checkpoint.carried is not None:
        updater.carrier.load_arrays(checkpoint.carried)
    restore_rng(checkpoint.rng)


def _go_on(path: Path, updater: Updater) -> CheckpointState:
    checkpoint = read(path)
    load_snapshot(updater, checkpoint)
    state = checkpoint.state
    logger.info("goes on with run %s from %s: iteration %d", state.run_id, path, state.iteration)
    return replace(state, stopped_by="")


def _take_weights(path: Path, config: TrainConfig, updater: Updater) -> None:
    load_numpy(updater.policy, read_weights(path))
    if config.resume_optimizer:
        load_optimizer(updater.policy, updater.optimizer, read(path).optimizer)
    logger.info("starts a new run from the weights of %s", path)

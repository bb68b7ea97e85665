"""Trainers on real replay and parameters servers, and how one is found."""

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.minefleet_learner.test_loop import FRAGMENTS, LENGTH, Fleet, make_config
from torch import Tensor

from minefleet.core.errors import ConfigError, FleetError
from minefleet.core.fragment import Fragment
from minefleet.core.schema import Schema
from minefleet.launch.rollout_manager_handle import RolloutManager
from minefleet.policies import Policy, build
from minefleet.runs.checkpoint_files import newest
from minefleet.v1 import status_service_pb2
from minefleet_learner import BaseTrainer, GaeActor, PPOTrainer
from minefleet_learner.data.batch import collate
from minefleet_learner.trainer_loader import find
from minefleet_learner.training.update_report import UpdateReport

Make = Callable[..., Fragment]
SEEDS_PARAMETERS: dict[str, Any] = {
    "num_workers": 1,
    "num_readers": 2,
    "num_cpus_per_reader": 0.5,
    "num_gpus_per_worker": 0.0,
    "prefetch_batches": 0,
    "discount": 0.9,
    "gae_lambda": 0.8,
    "context_length": 5,
    "use_normalized_vf": False,
    "inference_batch_size_per_gpu": 3,
    "resume": None,
    "resume_optimizer": False,
}

STEPWISE = (
    "mask rewards td_targets advantages behaviour_logp proximal_logp behaviour_value next_value policy_version"
).split()


class Halving(BaseTrainer):
    """Halves all weights every iteration, and publishes every second one."""

    def setup_model_and_optimizer(self) -> tuple[Policy, torch.optim.Optimizer]:
        policy = self.policy_generator()
        return policy, torch.optim.AdamW(policy.parameters())

    def train(self) -> None:
        self.fetched: list[dict[str, Any]] = []
        self.sums = [self.total()]
        while not self.is_over:
            self.fetched.append(self.fetch_fragments_and_estimate_advantages(self.config.fragments_per_iteration))
            with torch.no_grad():
                for parameter in self.policy.parameters():
                    parameter.mul_(0.5)
            self.sums.append(self.total())
            self.report = UpdateReport(grad_norm=1.0)
            self.broadcast_model_to_rollout_workers(new_version=len(self.fetched) % 2 == 0)

    def total(self) -> float:
        return float(sum(parameter.detach().abs().sum() for parameter in self.policy.parameters()))


class Pulled(PPOTrainer):
    """Pulls the value's bias to 1."""

    def setup_model_and_optimizer(self) -> tuple[Policy, torch.optim.Optimizer]:
        made = super().setup_model_and_optimizer()
        self.auxiliary_losses["pull"] = self.distance
        return made

    def distance(self) -> Tensor:
        return 100 * (self.policy.value_head.bias - 1).square().sum()


class Surrogate(PPOTrainer):
    """Takes one step of a surrogate of its own, on what it fetched."""

    def train(self) -> None:
        while not self.is_over:
            self.data = self.fetch_fragments_and_estimate_advantages(self.config.fragments_per_iteration)
            output, _ = self.policy(self.data["obs"], self.data["recurrent_state"], self.data["first"])
            self.logp = self.policy.action_head.logp(output.params, self.data["actions"])
            ratio = (self.logp - self.data["behaviour_logp"]).exp()
            loss = -(ratio * self.data["advantages"])[self.data["mask"]].mean()
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            self.report = UpdateReport(policy_loss=loss.item())
            self.broadcast_model_to_rollout_workers(new_version=True)


class Impatient(PPOTrainer):
    """Broadcasts what it never fetched."""

    def train(self) -> None:
        self.broadcast_model_to_rollout_workers(new_version=True)


class Greedy(PPOTrainer):
    """Asks for more than an iteration has."""

    def train(self) -> None:
        self.fetch_fragments_and_estimate_advantages(FRAGMENTS + 1)


class Unfinished(BaseTrainer):
    """Lacks a method."""

    def train(self) -> None:
        pass


@pytest.fixture
def fleet(tmp_path: Path, schema: Schema, make_fragment: Make) -> Iterator[Callable[..., Fleet]]:
    with contextlib.ExitStack() as stack:

        def start(**train: Any) -> Fleet:
            made = Fleet(tmp_path, schema, make_fragment, make_config(**train))
            stack.callback(made.close)
            for context in (*made.shards, made.parameters):
                made.serve(context)
            return made

        yield start


def make(kind: type[BaseTrainer], fleet: Fleet, **train: Any) -> BaseTrainer:
    config = fleet.run.config
    settings = {name: getattr(config.train_config, name) for name in config.train_config.__dataclass_fields__}
    generator = partial(build, config.policy, fleet.run.schema)
    return kind(RolloutManager(fleet.run), generator, dict, **(settings | train))


def fit(trainer: BaseTrainer, fleet: Fleet) -> dict[str, Any]:
    """Trains in order, on fragments that the newest version acts before each lease."""
    context = fleet.context("learner", status_service_pb2.ROLE_LEARNER)

    def act() -> None:
        rows = fleet.rows()
        fleet.act(rows[-1]["policy_version"] if rows else 1)

    return trainer.fit(context, act)


def test_ppo_trains_to_the_end_and_returns_what_the_learner_wrote(fleet: Callable[..., Fleet]) -> None:
    made = fleet(num_iterations=3)
    result = fit(make(PPOTrainer, made), made)
    assert (result["stopped_by"], result["iteration"]) == ("num_iterations", 3)
    assert [row["policy_version"] for row in made.rows()] == [2, 3, 4]
    assert Path(result["checkpoint"]) == newest(made.run.checkpoints)


def test_a_trainer_may_update_in_its_own_way_and_keep_weights_to_itself(fleet: Callable[..., Fleet]) -> None:
    made = fleet(num_iterations=4)
    trainer = make(Halving, made)
    assert isinstance(trainer, Halving)
    fit(trainer, made)
    assert [row["policy_version"] for row in made.rows()] == [1, 2, 2, 3]
    assert made.rows()[-1]["trained_steps"] == 4 * FRAGMENTS * LENGTH
    assert np.allclose(trainer.sums, [trainer.sums[0] * 0.5**power for power in range(5)])


def test_trainer_fetches_whole_fragments_in_the_shape_of_the_steps(fleet: Callable[..., Fleet]) -> None:
    made = fleet(num_iterations=1)
    trainer = make(Halving, made)
    assert isinstance(trainer, Halving)
    fit(trainer, made)
    (fetched,) = trainer.fetched
    records = fetched["records"]
    stepwise = {name: value for name, value in fetched.items() if name in STEPWISE}
    assert set(stepwise) == set(STEPWISE)
    assert {tuple(value.shape) for value in stepwise.values()} == {(FRAGMENTS, LENGTH)}
    assert torch.equal(fetched["rewards"], records.reward)
    assert torch.equal(fetched["behaviour_logp"], records.behaviour_logp)
    value = fetched["td_targets"] - fetched["advantages"]
    assert value.abs().min() > 0
    assert not torch.allclose(fetched["proximal_logp"], fetched["behaviour_logp"])
    # The fragments are one episode each, so that the definition is a sum.
    for row in range(FRAGMENTS):
        deltas = records.reward[row] + 0.99 * torch.cat((value[row, 1:], torch.zeros(1))) - value[row]
        sums = [sum((0.99 * 0.95) ** (k - t) * float(deltas[k]) for k in range(t, LENGTH)) for t in range(LENGTH)]
        assert np.allclose(fetched["advantages"][row].numpy(), sums, atol=1e-5)


def test_trainer_update_of_its_own_computes_the_policys_logp_of_the_data(fleet: Callable[..., Fleet]) -> None:
    made = fleet(num_iterations=1)
    trainer = make(Surrogate, made)
    assert isinstance(trainer, Surrogate)
    fit(trainer, made)
    mask = trainer.data["mask"]
    assert mask.any()
    assert torch.allclose(trainer.logp[mask], trainer.data["proximal_logp"][mask], atol=1e-5)
    assert made.rows()[-1]["policy_loss"] is not None


def test_a_loss_of_the_trainers_own_moves_the_weights_and_is_reported(fleet: Callable[..., Fleet]) -> None:
    made = fleet(num_iterations=6, learning_rate=0.1, max_grad_norm=1e9)
    fit(make(Pulled, made), made)
    pulls = [row["auxiliary"]["pull"] for row in made.rows()]
    assert pulls[-1] < 0.5 * pulls[0]


@pytest.mark.parametrize(("kind", "message"), [(Impatient, "nothing to broadcast"), (Greedy, "leases 4 fragments")])
def test_trainer_that_calls_out_of_order_is_refused_with_the_reason(
    fleet: Callable[..., Fleet], kind: type[BaseTrainer], message: str
) -> None:
    made = fleet()
    with pytest.raises((RuntimeError, ValueError), match=message):
        fit(make(kind, made), made)


def test_a_trainer_whose_keys_differ_from_the_runs_is_refused_by_the_key(fleet: Callable[..., Fleet]) -> None:
    made = fleet()
    with pytest.raises(FleetError, match=r"train_config\.learning_rate"):
        fit(make(PPOTrainer, made, learning_rate=0.5), made)


def test_ppo_trainer_takes_every_parameter_of_the_seeds_and_refuses_others(
    tmp_path: Path, schema: Schema, make_fragment: Make
) -> None:
    run = Fleet(tmp_path, schema, make_fragment, make_config()).run
    trainer = PPOTrainer(RolloutManager(run), lambda: pytest.fail("built"), dict, **SEEDS_PARAMETERS)
    assert {name: getattr(trainer.config, name) for name in SEEDS_PARAMETERS} == SEEDS_PARAMETERS
    assert trainer.run.config.train_config == trainer.config
    assert (trainer.gae_lambda, trainer.gae_actor) == (0.8, GaeActor(discount=0.9, gae_lambda=0.8))
    with pytest.raises(TypeError, match="ppo_clipp"):
        PPOTrainer(RolloutManager(run), lambda: pytest.fail("built"), dict, ppo_clipp=0.1)


def test_gae_actor_chains_contiguous_fragments(make_fragment: Make) -> None:
    fragments = [(("a", 1), make_fragment(1, 3)), (("a", 2), make_fragment(2, 3)), (("b", 0), make_fragment(2, 3))]
    batch = collate(fragments)
    actor = GaeActor(discount=0.9, gae_lambda=0.5)
    advantage = actor.advantages(batch, batch.behaviour_value, batch.next_value)
    delta = batch.reward + 0.9 * batch.next_value - batch.behaviour_value
    assert torch.allclose(advantage[1], advantage[2])
    assert torch.allclose(advantage[0, 2], delta[0, 2] + 0.45 * advantage[1, 0])


def test_a_trainer_is_found_by_file_and_name() -> None:
    assert find("PPOTrainer") is PPOTrainer
    assert find(f"{__file__}:Halving").__name__ == "Halving"
    assert find("minefleet_learner.base_trainer:PPOTrainer") is PPOTrainer


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (f"{__file__}:Halvin", "has no 'Halvin'; it has .*Halving"),
        (f"{__file__}:Unfinished", "lacks setup_model_and_optimizer"),
        ("math:sqrt", "is a builtin_function_or_method, which is no subclass of minefleet_learner.BaseTrainer"),
        ("pathlib:Path", "is the class Path, which is no subclass"),
        ("no_such_module_at_all:Trainer", "cannot import"),
    ],
)
def test_trainer_name_of_something_else_is_refused_by_what_was_found(name: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        find(name)

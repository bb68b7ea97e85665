"""The probe stays silent on what honest actors record and speaks up on every planted fault.

The actors' side is the fleet's: environments, inference and recorder. The learner's is an updater and the probe.
"""

import logging
import math
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from harness.playing import Named, Player, schema_of_env
from minefleet.config import EnvConfig, PolicyConfig, TrainConfig
from minefleet.core.schema import Schema
from minefleet.core.tree import Tree
from minefleet.policies import Policy, build
from minefleet.policies.weight_arrays import rounded_tensors, to_numpy
from minefleet.rpc.weights.bfloat16 import as_fetched
from minefleet_actor.inference.compiled_forward import ForwardOptions
from minefleet_actor.inference.policy_outputs import PolicyStep
from minefleet_actor.inference.policy_runner import PolicyRunner
from minefleet_learner.build import build_optimizer
from minefleet_learner.data.batch import collate
from minefleet_learner.diagnostics import parity_diagnosis
from minefleet_learner.diagnostics.parity import BOUNDS, MAX_UNPROBED, ParityError, ParityProbe
from minefleet_learner.training.schedules import rates
from minefleet_learner.training.updater import Updater

SLOTS, LENGTH = 6, 20
BOUND = BOUNDS["float32"]
CORRIDOR = EnvConfig(id="minefleet/Corridor-v0", kwargs={"limit": 6})
CARTPOLE = EnvConfig(id="CartPole-v1")
GRU = PolicyConfig(hidden_size=16, hidden_layers=1, gru_size=16, normalize_obs=True)
PLAIN = PolicyConfig(hidden_size=16, hidden_layers=1, normalize_obs=True)
TRAIN = TrainConfig(batch_size_per_gpu=SLOTS, context_length=7, learning_rate=3e-3, epochs_per_iteration=2)

Weights = dict[str, NDArray[Any]]
MakeInference = Callable[..., PolicyRunner]


@dataclass(slots=True)
class Fleet:
    """One player and one learner that take turns."""

    player: Player
    updater: Updater
    probe: ParityProbe
    rounded: frozenset[str]
    version: int = 0

    def publish(self) -> Weights:
        """Tells the probe of the next version; returns what actors fetch of it."""
        self.version += 1
        weights = to_numpy(self.updater.policy)
        self.probe.remember(self.version, weights)
        return as_fetched(weights, self.rounded)

    def train(self, named: Named) -> None:
        """One update."""
        self.updater.update(collate(named), rates(TRAIN, self.version, 0.0))

    def iterate(self) -> Weights:
        """Plays and trains; returns the weights that were acted by."""
        weights = self.publish()
        self.player.swap(weights, self.version)
        self.train(self.player.play())
        return weights


@contextmanager
def fleet(
    env: EnvConfig = CORRIDOR,
    policy: PolicyConfig = GRU,
    make: MakeInference = PolicyRunner,
    *,
    wire: str = "keep",
    bound: float = BOUND,
    dtype: torch.dtype = torch.float32,
) -> Iterator[Fleet]:
    """A player with an inference of this kind, after three updates: nothing is as it was at the start."""
    torch.manual_seed(1)
    schema = schema_of_env(env)
    learning, options = build(policy, schema), ForwardOptions(dtype=dtype)
    cpu = torch.device("cpu")
    inference = make(build(policy, schema), schema, SLOTS, device=cpu, seed=2, greedy=False, options=options)
    rounded = rounded_tensors(learning, wire)
    probe = ParityProbe(learning, max_staleness=1, context_length=7, rounded=rounded, bound=bound)
    updater = Updater(learning, build_optimizer(learning, TRAIN), TRAIN, None)
    with closing(Player(env, schema, inference, slots=SLOTS, length=LENGTH, seed=3)) as player:
        made = Fleet(player, updater, probe, rounded)
        for _ in range(3):
            made.iterate()
        yield made


@pytest.mark.parametrize("wire", ["keep", "bfloat16"])
@pytest.mark.parametrize(("env", "policy"), [(CORRIDOR, GRU), (CARTPOLE, GRU), (CARTPOLE, PLAIN)])
def test_parity_of_actor_and_learner_stays_below_the_bound_over_thousands_of_steps(
    env: EnvConfig, policy: PolicyConfig, wire: str
) -> None:
    steps = 0
    with fleet(env, policy, wire=wire) as made:
        for _ in range(30):
            made.player.swap(made.publish(), made.version)
            named = made.player.play()
            parity = made.probe.compare(collate(named))
            made.train(named)
            steps += parity.steps
            assert max(parity.logp, parity.value) < BOUND
    assert steps == 30 * 2 * LENGTH


def test_parity_probe_compares_with_the_acting_version_after_the_learner_has_moved_on() -> None:
    with fleet() as made:
        made.player.swap(made.publish(), made.version)
        named = made.player.play()
        made.train(named)
        made.publish()
        assert made.probe.compare(collate(named)).steps == 2 * LENGTH


class IgnoresFirst(PolicyRunner):
    """Goes on with the state of the episode before."""

    def __init__(self, policy: Policy, schema: Schema, slots: int, **options: Any) -> None:
        super().__init__(policy, schema, slots, **options)
        self._begun = np.ones(slots, np.bool_)

    def reset(self, slots: NDArray[np.intp]) -> None:
        self._begun[slots] = True

    def decide(self, slots: NDArray[np.intp], obs: Tree, **options: Any) -> PolicyStep:
        decision = super().decide(slots, obs, **options)
        first = self._begun[slots].copy()
        self._begun[slots[decision.keeps]] = False
        return replace(decision, first=first)


class SwapsActions(PolicyRunner):
    """Carries out, and records, another action than it drew."""

    def decide(self, slots: NDArray[np.intp], obs: Tree, **options: Any) -> PolicyStep:
        decision = super().decide(slots, obs, **options)
        return replace(decision, action=1 - decision.action)


class LooksAfresh(PolicyRunner):
    """Values what it does not act on from the state of an episode's start."""

    def __init__(self, policy: Policy, *arguments: Any, **options: Any) -> None:
        super().__init__(policy, *arguments, **options)
        self._other = PolicyRunner(policy, *arguments, **options)

    def decide(self, slots: NDArray[np.intp], obs: Tree, **options: Any) -> PolicyStep:
        keeps = options.get("keeps")
        if keeps is not None and not keeps.any():
            return self._other.decide(slots, obs, **options)
        return super().decide(slots, obs, **options)


class BeginsElsewhere(PolicyRunner):
    """Stores another state than it goes on from."""

    def decide(self, slots: NDArray[np.intp], obs: Tree, **options: Any) -> PolicyStep:
        decision = super().decide(slots, obs, **options)
        return replace(decision, before={slot: {"gru": state["gru"] + 1} for slot, state in decision.before.items()})


def acted(made: Fleet, weights: Weights | None = None) -> Named:
    """The player's decisions by the newest version, or by other weights under its number."""
    newest = made.publish()
    made.player.swap(weights or newest, made.version)
    return made.player.play()


def unlike(made: Fleet, part: str, older: Weights) -> Weights:
    """The newest weights with one part of older ones."""
    newest = as_fetched(to_numpy(made.updater.policy), made.rounded)
    return {name: older[name] if name.startswith(part) else leaf for name, leaf in newest.items()}


FAULTS: dict[str, tuple[MakeInference, Callable[[Fleet], Named], str]] = {
    "first-ignored": (IgnoresFirst, acted, parity_diagnosis.AT_FIRST),
    "wrong-version-stamped": (PolicyRunner, lambda made: acted(made, made.iterate()), parity_diagnosis.EVERYWHERE),
    "observations-not-normalised-alike": (
        PolicyRunner,
        lambda made: acted(made, unlike(made, "obs_norm", made.iterate())),
        parity_diagnosis.EVERYWHERE,
    ),
    "values-not-normalised-alike": (
        PolicyRunner,
        lambda made: acted(made, unlike(made, "value_norm", made.iterate())),
        parity_diagnosis.VALUES,
    ),
    "actions-swapped": (SwapsActions, acted, parity_diagnosis.ACTIONS),
    "stale-bootstrap-state": (LooksAfresh, acted, parity_diagnosis.NEXT_VALUES_DIFFER),
    "another-state-stored": (BeginsElsewhere, acted, parity_diagnosis.STATE_DIFFERS),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_parity_probe_stops_the_run_at_a_planted_fault_and_names_the_suspect(fault: str) -> None:
    make, act, suspected = FAULTS[fault]
    with fleet(make=make) as made:
        batch = collate(act(made))
        with pytest.raises(ParityError) as raised:
            made.probe.compare(batch)
    assert suspected in str(raised.value)
    assert "of slot-" in str(raised.value) and f"by version {made.version}," in str(raised.value)


def test_parity_probe_stops_the_run_at_a_dtype_other_than_declared() -> None:
    with fleet(dtype=torch.bfloat16) as made, pytest.raises(ParityError, match=r"worker_config\.dtype"):
        made.probe.compare(collate(acted(made)))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_parity_probe_passes_a_declared_dtype(dtype: torch.dtype) -> None:
    with fleet(dtype=dtype, bound=BOUNDS[str(dtype).removeprefix("torch.")]) as made:
        parity = made.probe.compare(collate(acted(made)))
        assert max(parity.logp, parity.value) > BOUND


def test_parity_error_names_the_step_and_both_numbers() -> None:
    with fleet() as made:
        named = acted(made)
        fragment = named[1][1]
        wrong = fragment.behaviour_value.copy()
        wrong[7] = 123.0
        named[1] = named[1][0], replace(fragment, behaviour_value=wrong)
        with pytest.raises(ParityError, match=r"V\(sₜ\) of step 7 of slot-1/3 was recorded as 123 by version 4, .*"):
            made.probe.compare(collate(named))


def test_parity_probe_compares_steps_as_long_as_the_first_version_acted() -> None:
    with fleet() as made:
        named = acted(made)
        version, other = made.version, made.version + 1
        versions = np.array([version] * 12 + [other] * (LENGTH - 12), np.uint32)
        mixed = replace(named[0][1], policy_version=versions, behaviour_logp=named[0][1].behaviour_logp.copy())
        mixed.behaviour_logp[12:] = 7.0
        mixed.next_value[11] = 7.0
        made.publish()
        assert made.probe.compare(collate([(named[0][0], mixed)])).steps == 12


def test_parity_probe_skips_values_that_a_newer_version_may_have_computed() -> None:
    with fleet() as made:
        (name, fragment), *_ = acted(made)
        fragment = replace(fragment, terminated=np.zeros(LENGTH, np.bool_))
        fragment.next_value[-1] += 7.0
        with pytest.raises(ParityError, match="what follows"):
            made.probe.compare(collate([(name, fragment)]))
        made.publish()
        assert made.probe.compare(collate([(name, fragment)])).steps == LENGTH


def test_parity_probe_tolerates_differences_that_float32_cannot_resolve() -> None:
    with fleet() as made:
        norm = made.updater.policy.value_norm
        norm.mean.fill_(1e4)
        norm.variance.fill_(1e-4)
        assert made.probe.compare(collate(acted(made))).value > BOUND


def test_parity_probe_leaves_values_that_are_not_finite_to_the_update() -> None:
    with fleet() as made:
        (name, fragment), *_ = acted(made)
        fragment.behaviour_logp[3] = math.nan
        fragment.behaviour_value[4] = math.inf
        assert made.probe.compare(collate([(name, fragment)])).logp < BOUND


def test_parity_probe_counts_and_logs_iterations_without_a_step_to_compare(caplog: pytest.LogCaptureFixture) -> None:
    with fleet() as made, caplog.at_level(logging.WARNING):
        named = acted(made)
        unknown = [(name, replace(one, policy_version=one.policy_version + 9)) for name, one in named]
        counted = [made.probe.compare(collate(unknown)) for _ in range(MAX_UNPROBED + 2)]
        assert [parity.unprobed for parity in counted] == list(range(1, MAX_UNPROBED + 3))
        assert counted[0].steps == 0 and math.isnan(counted[0].logp)
        assert [f"for {MAX_UNPROBED} iterations" in record.message for record in caplog.records] == [True]
        assert made.probe.compare(collate(named)).unprobed == 0


def test_parity_probe_skips_a_fragment_whose_first_step_is_of_an_older_version() -> None:
    with fleet() as made:
        (name, fragment), *_ = acted(made)
        began = fragment.policy_version.copy()
        began[0] = 0
        parity = made.probe.compare(collate([(name, replace(fragment, policy_version=began))]))
        assert (parity.steps, parity.unprobed) == (0, 1)

"""The policy over slots: state and noise per slot, padding, dtypes, and options that fall back."""

import logging
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch._inductor import config as inductor

from minefleet.config import PolicyConfig
from minefleet.core.schema import Leaf, Schema
from minefleet.core.tree import Tree, flatten
from minefleet.policies import Policy, build
from minefleet.policies.weight_arrays import to_numpy
from minefleet_actor.inference.compiled_forward import ForwardOptions, padded_sizes
from minefleet_actor.inference.policy_outputs import PolicyStep
from minefleet_actor.inference.policy_runner import PolicyRunner

SCHEMA = Schema(
    obs={
        "image": Leaf(kind="box", shape=(36, 36, 3), dtype="uint8", low=0, high=255),
        "vector": Leaf(kind="box", shape=(3,), dtype="float32"),
    },
    action={
        "which": Leaf(kind="discrete", shape=(), dtype="int64", categories=(5,)),
        "how": Leaf(kind="box", shape=(2,), dtype="float32", low=-1, high=1),
    },
)
SLOTS = 7
EVERY = np.arange(SLOTS)
PARITY = {torch.float32: 1e-4, torch.bfloat16: 0.05}
"""Largest |Δ ln π| by the dtype that the layers below the heads compute in."""


def policy_of(seed: int = 0) -> Policy:
    torch.manual_seed(seed)
    made = build(PolicyConfig(hidden_size=16, conv_channels=[4, 4, 4], gru_size=8), SCHEMA)
    for parameter in made.action_head.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return made


def inference_of(
    *, seed: int = 5, greedy: bool = False, canary: NDArray[np.bool_] | None = None, **options: object
) -> PolicyRunner:
    noise_per_slot = bool(options.pop("noise_per_slot", False))
    state_dtype = options.pop("state_dtype", torch.float32)
    assert isinstance(state_dtype, torch.dtype)
    return PolicyRunner(
        policy_of(),
        SCHEMA,
        SLOTS,
        device=torch.device("cpu"),
        seed=seed,
        greedy=greedy,
        noise_per_slot=noise_per_slot,
        state_dtype=state_dtype,
        canary=canary,
        options=ForwardOptions(**options),  # type: ignore[arg-type]  # The tests name them.
    )


def looks(count: int, seed: int = 0) -> list[Tree]:
    """The observations of all slots, so many times."""
    rng = np.random.default_rng(seed)
    return [
        {
            "image": rng.integers(0, 256, (SLOTS, 36, 36, 3), np.uint8),
            "vector": rng.standard_normal((SLOTS, 3), np.float32),
        }
        for _ in range(count)
    ]


def slots(*numbers: int) -> NDArray[np.intp]:
    return np.array(numbers, np.intp)


def row(decision: PolicyStep, slot: int) -> dict[str, NDArray[Any]]:
    """The decision for a slot."""
    (at,) = np.flatnonzero(decision.slots == slot)
    leaves = {"action": decision.action, "logp": decision.logp, "value": decision.value, "first": decision.first}
    return {path: leaf[at] for path, leaf in flatten(leaves).items()}


def assert_close(ours: PolicyStep, theirs: PolicyStep, slot: int) -> None:
    for path, value in row(ours, slot).items():
        np.testing.assert_allclose(value, row(theirs, slot)[path], rtol=1e-4, atol=1e-5, err_msg=path)


def test_policy_runner_decides_for_a_slot_as_if_it_were_alone() -> None:
    together, alone = inference_of(greedy=True), inference_of(greedy=True)
    for obs in looks(4):
        assert_close(together.decide(EVERY, obs), alone.decide(slots(3), obs), 3)


def test_policy_runner_that_only_looks_keeps_state_and_first() -> None:
    looked, left = inference_of(greedy=True), inference_of(greedy=True)
    before, between, after = looks(3)
    for inference in (looked, left):
        inference.decide(EVERY, before)
        inference.reset(slots(2))
    glance = looked.decide(EVERY, between, keeps=np.zeros(SLOTS, np.bool_))
    assert glance.first.tolist() == [slot == 2 for slot in range(SLOTS)]
    ours, theirs = looked.decide(EVERY, after), left.decide(EVERY, after)
    for slot in range(SLOTS):
        assert_close(ours, theirs, slot)


def test_policy_runner_records_the_state_before_a_step_and_the_initial_one_after_a_reset() -> None:
    inference = inference_of()
    begins = np.isin(EVERY, (1, 4))
    first, second, third = looks(3)
    assert not inference.decide(EVERY, first, begins=begins).before[1]["gru"].any()
    one = inference.decide(EVERY, second, begins=begins).before
    assert sorted(one) == [1, 4]
    assert one[4]["gru"].shape == (8,)
    assert one[4]["gru"].any()
    inference.reset(slots(4))
    other = inference.decide(EVERY, third, begins=begins).before
    assert not other[4]["gru"].any()
    assert (other[1]["gru"] != one[1]["gru"]).any()
    np.testing.assert_array_equal(inference.state_before(1, first=False)["gru"], other[1]["gru"])
    assert not inference.state_before(4, first=True)["gru"].any()
    inference.decide(EVERY, first, keeps=np.zeros(SLOTS, np.bool_))
    np.testing.assert_array_equal(inference.state_before(1, first=False)["gru"], other[1]["gru"])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_fragment_begins_with_a_state_as_it_is_stored_and_others_go_on_with_theirs(dtype: torch.dtype) -> None:
    acting, exact, learner = inference_of(state_dtype=dtype, greedy=True), inference_of(greedy=True), policy_of()
    first, second = looks(2)
    for inference in (acting, exact):
        inference.decide(EVERY, first)
    begins = EVERY == 4
    decision, unrounded = acting.decide(EVERY, second, begins=begins), exact.decide(EVERY, second, begins=begins)
    stored = torch.from_numpy(decision.before[4]["gru"])
    assert torch.equal(stored, torch.from_numpy(unrounded.before[4]["gru"]).to(dtype).float())
    obs = {key: torch.from_numpy(leaf[4:5]).unsqueeze(1) for key, leaf in second.items()}
    with torch.no_grad():
        output, _ = learner(obs, {"gru": stored.unsqueeze(0)}, torch.zeros(1, 1, dtype=torch.bool))
    action = {key: torch.from_numpy(leaf[4:5]).unsqueeze(1) for key, leaf in decision.action.items()}
    assert learner.action_head.logp(output.params, action).item() == pytest.approx(decision.logp[4], abs=1e-6)
    assert row(decision, 4)["value"] != row(unrounded, 4)["value"]
    assert_close(decision, unrounded, 3)


def test_a_state_beyond_half_precision_stays_finite() -> None:
    acting = inference_of(state_dtype=torch.float16)
    acting.decide(EVERY, looks(1)[0])
    acting._state["gru"].fill_(1e6)
    before = acting.decide(EVERY, looks(2)[1], begins=np.ones(SLOTS, np.bool_)).before
    assert (before[0]["gru"] == np.float32(65504)).all()


def test_noise_per_slot_does_not_depend_on_other_slots() -> None:
    together, apart = (inference_of(noise_per_slot=True, whole=True) for _ in range(2))
    for number, obs in enumerate(looks(5)):
        theirs = together.decide(EVERY, obs)
        if number == 2:
            apart.decide(slots(3, 5), obs, keeps=np.zeros(2, np.bool_))
        ours = apart.decide(slots(1, 3) if number % 2 else slots(3, 6), obs)
        for path, value in row(ours, 3).items():
            assert value.tobytes() == row(theirs, 3)[path].tobytes(), path
    assert len({float(theirs.action["how"][slot, 0]) for slot in range(SLOTS)}) == SLOTS


@pytest.mark.parametrize("largest", [1, 2, 5, 64, 100])
def test_padded_sizes_are_few_and_at_most_double(largest: int) -> None:
    sizes = padded_sizes(largest)
    assert sizes == sorted(set(sizes))
    assert sizes[-1] == largest
    assert len(sizes) <= 4
    assert all(size <= 2 * below for below, size in pairwise(sizes))


def test_padding_changes_neither_what_is_decided_nor_the_state_of_others() -> None:
    padded, plain = inference_of(greedy=True, whole=True), inference_of(greedy=True)
    for number, obs in enumerate(looks(4)):
        some = slots(0, 2, 6) if number % 2 else slots(1, 6)
        ours, theirs = padded.decide(some, obs), plain.decide(some, obs)
        assert len(ours.logp) == len(some)
        for slot in some.tolist():
            assert_close(ours, theirs, slot)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_policy_runner_in_low_precision_records_within_the_bound_of_its_dtype(dtype: torch.dtype) -> None:
    acting, exact = inference_of(dtype=dtype), policy_of()
    state, first = exact.initial_state(SLOTS), torch.ones(SLOTS, 1, dtype=torch.bool)
    differences = []
    for obs in looks(6):
        decision = acting.decide(EVERY, obs)
        batch = {key: torch.from_numpy(leaf).unsqueeze(1) for key, leaf in obs.items()}
        with torch.no_grad():
            output, state = exact(batch, state, first)
        action = {key: torch.from_numpy(leaf).unsqueeze(1) for key, leaf in decision.action.items()}
        logp = exact.action_head.logp(output.params, action).squeeze(1).detach().numpy()
        differences.append(np.abs(decision.logp - logp).max())
        first = torch.zeros_like(first)
        assert decision.logp.dtype == decision.value.dtype == np.float32
    assert max(differences) < PARITY[dtype]
    assert (max(differences) > 1e-4) == (dtype != torch.float32)


def test_graphs_fall_back_with_a_message_where_there_is_no_gpu(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        inference = inference_of(greedy=True, cuda_graphs=True)
    assert ["without CUDA graphs" in record.message for record in caplog.records] == [True]
    (obs,) = looks(1)
    assert_close(inference.decide(EVERY, obs), inference_of(greedy=True).decide(EVERY, obs), 0)


@pytest.mark.filterwarnings("ignore")
def test_policy_that_cannot_be_compiled_runs_uncompiled_with_a_message(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    with inductor.patch({"cpp.cxx": ("no-such-compiler",)}), caplog.at_level(logging.WARNING):
        inference = PolicyRunner(
            policy_of(),
            SCHEMA,
            SLOTS,
            device=torch.device("cpu"),
            seed=0,
            greedy=True,
            options=ForwardOptions(compile=True),
        )
    (said,) = [record.message for record in caplog.records if "runs uncompiled" in record.message]
    assert "no-such-compiler" in said
    (obs,) = looks(1)
    assert_close(inference.decide(EVERY, obs), inference_of(greedy=True).decide(EVERY, obs), 0)


def test_a_batch_is_stamped_with_the_version_that_computed_it() -> None:
    inference = inference_of(greedy=True)
    first, second = looks(2)
    before = inference.decide(EVERY, first)
    inference.swap(to_numpy(policy_of(1)), 9)
    after = inference.decide(EVERY, second)
    assert np.all(before.version == 0) and np.all(after.version == 9)


def test_a_batch_of_slots_of_both_kinds_is_computed_by_the_weights_of_each() -> None:
    canary = np.isin(EVERY, [0, 3, 6])
    mixed, ours, theirs = inference_of(greedy=True, canary=canary), inference_of(greedy=True), inference_of(greedy=True)
    for inference in (mixed, ours):
        inference.swap(to_numpy(policy_of(1)), 4)
    mixed.swap(to_numpy(policy_of(2)), 6, canary=True)
    theirs.swap(to_numpy(policy_of(2)), 6)
    for number, obs in enumerate(looks(3)):
        begins = np.isin(EVERY, [number + 1])
        step = mixed.decide(EVERY[::-1], obs, begins=begins[::-1])
        assert sorted(step.slots.tolist()) == EVERY.tolist()
        assert np.array_equal(step.version, np.where(canary[step.slots], 6, 4))
        assert np.all(step.first == (number == 0)) and [*step.before] == [number + 1]
        for alone, slots_of in ((ours, EVERY[~canary]), (theirs, EVERY[canary])):
            expected = alone.decide(slots_of, obs, begins=begins[slots_of])
            for slot in slots_of.tolist():
                assert_close(step, expected, slot)
            for slot, state in expected.before.items():
                assert np.allclose(step.before[slot]["gru"], state["gru"], atol=1e-6)


@pytest.mark.soak
@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch", "ignore:The .grad attribute of a Tensor:UserWarning")
def test_a_compiled_policy_decides_as_a_plain_one_does(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "minefleet_actor"):
        compiled = inference_of(greedy=True, compile=True)
    assert not [record for record in caplog.records if record.name.startswith("minefleet")]
    plain = inference_of(greedy=True)
    for obs in looks(3):
        for some in (EVERY[:2], EVERY[2:]):
            ours, theirs = compiled.decide(some, obs), plain.decide(some, obs)
            for slot in some.tolist():
                assert_close(ours, theirs, slot)

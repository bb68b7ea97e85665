"""The PPO objective against its definition, written slowly, and against CleanRL's."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from minefleet_learner.algorithms.ppo import PPOCoefs, PPOLoss, StepTargets, masked_mean, normalize, ppo_loss

COEFS: dict[str, Any] = {
    "clip": 0.2,
    "policy": 0.7,
    "value": 0.6,
    "entropy": 0.03,
    "rho": 0.2,
    "weight_cap": 1.3,
    "clips_value": True,
}


def loss_of(batch: dict[str, Any], count: float | None = None, **coefs: Any) -> PPOLoss:
    """The loss of tensors by name; a proximal policy and an anchor may be missing."""
    rest = dict(batch)
    rest.setdefault("proximal_logp", rest["behaviour_logp"])
    rest.setdefault("anchor_value", rest["value"].detach())
    targets = StepTargets(**{name: rest.pop(name) for name in StepTargets._fields})
    return ppo_loss(**rest, targets=targets, coefs=PPOCoefs(**coefs), count=count)


def random_batch(seed: int, rows: int = 6, length: int = 7) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(seed)
    shape = (rows, length)
    names = "logp behaviour_logp proximal_logp advantage value value_target entropy anchor_value kl_reference".split()
    batch: dict[str, Any] = {name: torch.randn(shape, generator=generator, dtype=torch.float64) for name in names}
    mask = torch.rand(shape, generator=generator) < 0.7
    mask[0, 0] = True
    return batch | {"mask": mask}


def definition(batch: dict[str, Tensor], weight_cap: float) -> dict[str, float]:
    """The objective as a loop over the valid steps; without a proximal policy, Schulman's, else Hilton's, truncated."""
    rows: list[dict[str, float]] = []
    for index in batch["mask"].nonzero().tolist():
        x = {name: float(tensor[tuple(index)]) for name, tensor in batch.items()}
        acted, now = math.exp(x["behaviour_logp"]), math.exp(x["logp"])
        proximal = math.exp(x["proximal_logp"]) if "proximal_logp" in x else acted
        ratio, weight = now / proximal, min(proximal / acted, weight_cap)
        near = min(max(x["value"], x["anchor_value"] - 0.2), x["anchor_value"] + 0.2)
        rows.append(
            {
                "policy": -weight * min(ratio * x["advantage"], min(max(ratio, 0.8), 1.2) * x["advantage"]),
                "value": 0.5 * max((x["value"] - x["value_target"]) ** 2, (near - x["value_target"]) ** 2),
                "entropy": x["entropy"],
                "kl_reference": x["kl_reference"],
                "approx_kl": now / acted - 1 - math.log(now / acted),
                "clip_fraction": float(abs(ratio - 1) > 0.2),
            }
        )
    means = {name: sum(row[name] for row in rows) / len(rows) for name in rows[0]}
    total = 0.7 * means["policy"] + 0.6 * means["value"] - 0.03 * means["entropy"] + 0.2 * means["kl_reference"]
    return means | {"total": total}


NUMBERS = sorted(set(PPOLoss.__dataclass_fields__) - {"head_entropy"})
SHAPE = st.integers(1, 8)
SEED = st.integers(0, 2**31)


@pytest.mark.parametrize("has_proximal", [False, True])
@given(seed=SEED, rows=SHAPE, length=SHAPE, weight_cap=st.sampled_from([1.0, 1.3, 5.0, math.inf]))
def test_ppo_loss_equals_its_definition_on_random_shapes_and_masks(
    has_proximal: bool, seed: int, rows: int, length: int, weight_cap: float
) -> None:
    batch = random_batch(seed, rows, length)
    if not has_proximal:
        del batch["proximal_logp"]
    loss = loss_of(batch, **COEFS | {"weight_cap": weight_cap})
    for name, expected in definition(batch, weight_cap).items():
        assert getattr(loss, name).item() == pytest.approx(expected, abs=1e-9), name


def cleanrl(batch: dict[str, Tensor], *, clip_vloss: bool) -> Tensor:
    """`cleanrl/ppo.py`, lines 251-285, with its names and defaults."""
    newlogprob, newvalue, entropy = batch["logp"], batch["value"], batch["entropy"]
    b_returns, b_values, mb_advantages = batch["value_target"], batch["anchor_value"], batch["advantage"]
    ratio = (newlogprob - batch["behaviour_logp"]).exp()
    mb_advantages = (mb_advantages - mb_advantages.mean()) / (mb_advantages.std(correction=0) + 1e-8)
    pg_loss1 = -mb_advantages * ratio
    pg_loss2 = -mb_advantages * torch.clamp(ratio, 1 - 0.2, 1 + 0.2)
    pg_loss = torch.max(pg_loss1, pg_loss2).mean()
    if clip_vloss:
        v_loss_unclipped = (newvalue - b_returns) ** 2
        v_clipped = b_values + torch.clamp(newvalue - b_values, -0.2, 0.2)
        v_loss = 0.5 * torch.max(v_loss_unclipped, (v_clipped - b_returns) ** 2).mean()
    else:
        v_loss = 0.5 * ((newvalue - b_returns) ** 2).mean()
    return pg_loss - 0.01 * entropy.mean() + v_loss * 0.5


@pytest.mark.parametrize("clip_vloss", [False, True])
def test_ppo_loss_and_gradients_equal_those_of_cleanrl(clip_vloss: bool) -> None:
    batch = random_batch(2) | {"kl_reference": torch.zeros(())}
    batch["mask"] = torch.ones_like(batch["mask"])
    leaves = [batch[name].requires_grad_() for name in ("logp", "value", "entropy")]
    normal = batch | {"advantage": normalize(batch["advantage"], batch["mask"])}
    normal |= {"proximal_logp": batch["behaviour_logp"], "kl_reference": None}
    loss = loss_of(normal, clip=0.2, entropy=0.01, clips_value=clip_vloss)
    theirs = cleanrl(batch, clip_vloss=clip_vloss)
    torch.testing.assert_close(loss.total, theirs, rtol=0, atol=1e-9)
    torch.testing.assert_close(torch.autograd.grad(loss.total, leaves), torch.autograd.grad(theirs, leaves))


def test_ppo_loss_and_gradient_do_not_change_with_garbage_at_padding() -> None:
    batch = random_batch(4)
    assert not batch["mask"].all()
    spoilt = {name: x.masked_fill(~batch["mask"], math.nan) for name, x in batch.items() if name != "mask"}

    def gradients(floats: dict[str, Tensor]) -> tuple[PPOLoss, list[Tensor]]:
        leaves = {name: floats[name].clone().requires_grad_() for name in ("logp", "value", "entropy", "kl_reference")}
        loss = loss_of(batch | floats | leaves, **COEFS)
        return loss, list(torch.autograd.grad(loss.total, list(leaves.values())))

    (loss, clean), (spoilt_loss, spoilt_clean) = gradients(batch), gradients(spoilt)
    for name in NUMBERS:
        assert getattr(loss, name).item() == getattr(spoilt_loss, name).item(), name
    torch.testing.assert_close(spoilt_clean, clean, rtol=0, atol=0)
    assert all((gradient[~batch["mask"]] == 0).all() for gradient in spoilt_clean)


def test_ppo_loss_weight_of_a_step_is_a_factor_without_gradient() -> None:
    one = torch.ones(1, 1, dtype=torch.float64)
    batch: dict[str, Any] = dict.fromkeys("behaviour_logp value value_target entropy".split(), 0 * one)
    batch |= {"mask": one.bool(), "advantage": one}
    logp = (0 * one + 0.5).requires_grad_()
    proximal = (0 * one + 0.5).requires_grad_()
    loss = loss_of(batch | {"logp": logp, "proximal_logp": proximal}, clip=0.2, weight_cap=1.4)
    loss.total.backward()  # type: ignore[no-untyped-call]
    assert logp.grad is not None
    assert logp.grad.item() == pytest.approx(-1.4)
    assert proximal.grad is None
    assert loss.clip_fraction.item() == 0.0
    assert loss.max_log_ratio.item() == 0.0


def test_ppo_loss_clamps_the_log_ratio_on_both_sides() -> None:
    batch: dict[str, Any] = {name: torch.zeros(1, 2) for name in ("behaviour_logp", "value", "value_target", "entropy")}
    batch |= {"mask": torch.ones(1, 2, dtype=torch.bool), "advantage": -torch.ones(1, 2)}
    loss = loss_of(batch | {"logp": torch.tensor([[200.0, -200.0]])}, clip=0.2, log_ratio_range=2.0)
    assert loss.policy.item() == pytest.approx((math.exp(2) + 0.8) / 2)
    assert loss.approx_kl.item() == pytest.approx((math.exp(2) - 3 + math.exp(-2) + 1) / 2)
    assert loss.max_log_ratio.item() == 200.0


def test_unequal_micro_batches_add_up_when_divided_by_their_total_count() -> None:
    batch = random_batch(4)
    batch["mask"][:, 0] = False
    batch["mask"][0] = True
    leaf = batch["logp"].requires_grad_()
    whole = loss_of(batch, **COEFS)
    halves = [{name: x[part] for name, x in batch.items()} for part in (slice(1), slice(1, None))]
    parts = [loss_of(half, **COEFS, count=float(batch["mask"].sum())) for half in halves]
    total = parts[0].total + parts[1].total
    torch.testing.assert_close(torch.autograd.grad(total, leaf), torch.autograd.grad(whole.total, leaf))
    torch.testing.assert_close(parts[0].value + parts[1].value, whole.value)


def test_ppo_loss_carries_a_gradient_in_its_total_only() -> None:
    batch = random_batch(5)
    for name in ("logp", "value", "entropy", "kl_reference"):
        batch[name].requires_grad_()
    loss = loss_of(batch, **COEFS)
    names = [name for name in NUMBERS if getattr(loss, name).requires_grad]
    assert names == ["total"]


def test_ppo_loss_of_other_shapes_is_refused_with_the_shapes_in_the_message() -> None:
    batch = random_batch(6) | {"entropy": torch.zeros(50, 50, dtype=torch.float64)}
    with pytest.raises(ValueError, match=r"\(50, 50\)"):
        loss_of(batch, **COEFS)


def test_normalized_advantages_have_mean_zero_and_deviation_one_over_the_mask() -> None:
    mask = torch.rand(6, 9, generator=torch.Generator().manual_seed(0)) < 0.6
    advantage = torch.randn(6, 9).masked_fill(~mask, math.nan) * 7 + 3
    normal = normalize(advantage, mask)
    assert normal[mask].mean().item() == pytest.approx(0, abs=1e-6)
    assert normal[mask].std(correction=0).item() == pytest.approx(1, abs=1e-6)
    assert (normal[~mask] == 0).all()


def test_normalize_of_equal_advantages_is_zero() -> None:
    mask = torch.ones(2, 3, dtype=torch.bool)
    assert (normalize(torch.full((2, 3), 5.0), mask) == 0).all()


def test_masked_mean_of_nothing_is_zero() -> None:
    assert masked_mean(torch.ones(2, 2), torch.zeros(2, 2, dtype=torch.bool)).item() == 0.0

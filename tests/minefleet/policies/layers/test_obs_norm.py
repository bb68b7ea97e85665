"""Running statistics of observations against their slow definition."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from minefleet.config import PolicyConfig
from minefleet.core.schema import Leaf, Schema
from minefleet.policies import ObsNorm, build
from minefleet.policies.layers.mergeable_moments import moments_of
from minefleet.policies.layers.obs_norm import MAX_NORMALIZED, ImageMoments, RunningMoments

FLOATS = Leaf(kind="box", shape=(2, 3), dtype="float32")
SCALAR = Leaf(kind="box", shape=(), dtype="float32")
OBS = {
    "body": {"position": FLOATS, "speed": SCALAR},
    "image": Leaf(kind="box", shape=(36, 36, 1), dtype="uint8"),
    "ammunition": Leaf(kind="box", shape=(2,), dtype="int64"),
    "word": Leaf(kind="text", shape=(4,), dtype="uint8"),
    "tool": Leaf(kind="discrete", shape=(), dtype="int64", categories=(3,)),
    "action_mask": Leaf(kind="box", shape=(2,), dtype="float32"),
}
ACTION = Leaf(kind="discrete", shape=(), dtype="int64", categories=(2,))


@given(
    sizes=st.lists(st.integers(0, 20), min_size=1, max_size=8),
    offset=st.sampled_from([0.0, 1.0, -1e3, 1e6]),
    scale=st.sampled_from([1e-3, 1.0, 1e4]),
    seed=st.integers(0, 1000),
)
def test_running_moments_of_batches_are_mean_and_variance_of_all_rows(
    sizes: list[int], offset: float, scale: float, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    batches = [(offset + scale * rng.normal(size=(n, 2, 3))).astype(np.float32) for n in sizes]
    moments = RunningMoments((2, 3))
    for batch in batches:
        moments.absorb(moments_of(torch.from_numpy(batch)))
    rows = np.concatenate(batches).astype(np.float64)
    assert moments.count == len(rows)
    if len(rows):
        tiny = 1e-12 * (abs(offset) + scale)
        np.testing.assert_allclose(moments.mean, rows.mean(0), rtol=1e-12, atol=tiny)
        np.testing.assert_allclose(moments.variance, rows.var(0), rtol=1e-9, atol=tiny * tiny + 1e-15)


@given(sizes=st.lists(st.integers(0, 20), min_size=1, max_size=8), seed=st.integers(0, 1000))
def test_obs_norm_statistics_of_pieces_equal_those_of_all_at_once(sizes: list[int], seed: int) -> None:
    pieces = list(torch.split(torch.randn(sum(sizes), 3, generator=torch.Generator().manual_seed(seed)), sizes))
    at_once, in_pieces = (ObsNorm({"numbers": Leaf(kind="box", shape=(3,), dtype="float32")}) for _ in range(2))
    at_once.absorb(at_once.moments_of([{"numbers": torch.cat(pieces)}]))
    in_pieces.absorb(in_pieces.moments_of({"numbers": piece} for piece in pieces))
    torch.testing.assert_close(in_pieces.state_dict(), at_once.state_dict(), rtol=1e-12, atol=1e-12)


def test_running_moments_of_scalars_are_their_mean_and_count() -> None:
    moments = RunningMoments(())
    moments.absorb(moments_of(torch.tensor([1.0, 2.0, 6.0])))
    moments.absorb(moments_of(torch.zeros(0)))
    assert (moments.mean.item(), moments.count.item()) == (3.0, 3.0)


def test_obs_norm_gives_its_own_observations_mean_zero_and_deviation_one() -> None:
    rows = 1e4 + 1e3 * torch.randn(5000, 3, generator=torch.Generator().manual_seed(0))
    moments = RunningMoments((3,))
    moments.absorb(moments_of(rows))
    out = moments(rows)
    assert out.dtype == torch.float32
    torch.testing.assert_close(out.mean(0), torch.zeros(3), rtol=0, atol=1e-3)
    torch.testing.assert_close(out.std(0), torch.ones(3), rtol=0, atol=1e-3)


def test_obs_norm_stays_in_range_before_the_first_update_and_where_nothing_varies() -> None:
    moments = RunningMoments((1,))
    assert moments(torch.tensor([[1e30], [-1e30], [0.5]])).flatten().tolist() == pytest.approx(
        [MAX_NORMALIZED, -MAX_NORMALIZED, 0.5]
    )
    moments.absorb(moments_of(torch.full((4, 1), 7.0)))
    assert moments(torch.tensor([[7.0], [8.0], [6.0]])).flatten().tolist() == [0.0, MAX_NORMALIZED, -MAX_NORMALIZED]


def test_obs_norm_moments_leave_out_rows_that_are_not_finite() -> None:
    moments = RunningMoments((2,))
    rows = torch.tensor([[1.0, 2.0], [float("nan"), 0.0], [3.0, float("inf")], [3.0, 4.0]])
    moments.absorb(moments.moments_of(rows))
    assert moments.count == 2
    assert moments.mean.tolist() == [2.0, 3.0]


@given(
    sizes=st.lists(st.integers(0, 5), min_size=1, max_size=4), level=st.sampled_from([0, 200]), seed=st.integers(0, 99)
)
def test_image_moments_of_batches_are_mean_and_variance_of_each_channels_pixels(
    sizes: list[int], level: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    batches = [rng.integers(level, 256, (n, 7, 9, 3), dtype=np.uint8) for n in sizes]
    moments = ImageMoments((7, 9, 3))
    for batch in batches:
        moments.absorb(moments.moments_of(torch.from_numpy(batch)))
    pixels = np.concatenate(batches).reshape(-1, 3) / 255
    assert moments.count == len(pixels)
    if len(pixels):
        np.testing.assert_allclose(moments.mean, pixels.mean(0), rtol=1e-6)
        np.testing.assert_allclose(moments.variance, pixels.var(0), rtol=1e-4)
        image = moments(torch.from_numpy(batches[-1]))
        wanted = (batches[-1] / 255 - pixels.mean(0)) / pixels.std(0)
        np.testing.assert_allclose(image, wanted, rtol=0, atol=1e-3)


def test_images_that_never_change_and_those_before_the_first_update_stay_finite() -> None:
    moments = ImageMoments((2, 2, 1))
    image = torch.tensor([0, 51, 204, 255], dtype=torch.uint8).view(1, 2, 2, 1)
    torch.testing.assert_close(moments(image).flatten(), torch.tensor([0.0, 0.2, 0.8, 1.0]))
    moments.absorb(moments.moments_of(torch.full((3, 2, 2, 1), 51, dtype=torch.uint8)))
    assert moments(image).abs().max() <= MAX_NORMALIZED
    torch.testing.assert_close(moments(image).flatten()[1], torch.tensor(0.0), rtol=0, atol=1e-3)


def test_encoder_sees_a_normalised_image_as_it_sees_one_that_was_normalised_before() -> None:
    schema = Schema(obs=Leaf(kind="box", shape=(36, 36, 1), dtype="uint8"), action=ACTION)
    policy = build(PolicyConfig(hidden_size=8, hidden_layers=1, normalize_pixels=True), schema)
    image = torch.randint(90, 110, (4, 3, 36, 36, 1), dtype=torch.uint8)
    assert policy.obs_norm is not None
    policy.obs_norm.absorb(policy.obs_norm.moments_of([image.flatten(0, 1)]))
    pixels = image.double() / 255
    normal = ((pixels - pixels.mean()) / pixels.std(correction=0)).float()
    first = torch.zeros(4, 3, dtype=torch.bool)
    ours, _ = policy(image, {}, first)
    policy.obs_norm = None
    wanted, _ = policy(normal, {}, first)
    torch.testing.assert_close(ours.value, wanted.value, rtol=1e-3, atol=1e-3)


def test_obs_norm_changes_only_float_boxes_and_images_and_no_action_mask() -> None:
    assert ObsNorm(OBS).paths == ("body/position", "body/speed")
    norm = ObsNorm(OBS, pixels=True)
    assert norm.paths == ("body/position", "body/speed", "image")
    obs = {
        "body": {"position": torch.randn(5, 2, 3) + 3, "speed": torch.randn(5)},
        "image": torch.ones(5, 36, 36, 1, dtype=torch.uint8),
        "ammunition": torch.ones(5, 2, dtype=torch.int64),
        "word": torch.ones(5, 4, dtype=torch.uint8),
        "tool": torch.ones(5, dtype=torch.int64),
        "action_mask": torch.ones(5, 2),
    }
    norm.absorb(norm.moments_of([obs]))
    changed = norm(obs)
    assert abs(changed["body"]["position"].mean()) < 1e-5
    assert changed["body"]["speed"].shape == (5,)
    assert changed["image"].abs().max() < 1e-2
    for key in ("ammunition", "word", "tool", "action_mask"):
        assert changed[key] is obs[key]


def test_obs_norm_schema_without_what_is_to_be_normalised_is_not_built() -> None:
    cells = Leaf(kind="box", shape=(7, 7, 3), dtype="uint8")
    schema = Schema(obs={"cells": cells, "action_mask": OBS["action_mask"]}, action=ACTION)
    assert build(PolicyConfig(normalize_obs=True, normalize_pixels=True), schema).obs_norm is None
    for config, leaf in (
        (PolicyConfig(normalize_pixels=True), SCALAR),
        (PolicyConfig(normalize_obs=True), OBS["image"]),
    ):
        assert build(config, Schema(obs=leaf, action=ACTION)).obs_norm is None


def test_obs_norm_statistics_are_buffers_of_the_policys_state() -> None:
    policy = build(PolicyConfig(hidden_size=8, normalize_obs=True), Schema(obs=SCALAR, action=ACTION))
    assert policy.obs_norm is not None
    names = {f"obs_norm.moments.0.{name}" for name in ("mean", "variance", "count")}
    assert names <= dict(policy.named_buffers()).keys() & policy.state_dict().keys()
    assert "obs_norm" not in str(build(PolicyConfig(hidden_size=8), Schema(obs=SCALAR, action=ACTION)).state_dict())

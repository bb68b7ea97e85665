import dataclasses
import math

import numpy as np

from minefleet.core.schema import Leaf, Schema, zeros

SCHEMA = Schema(
    obs={
        "image": Leaf(kind="box", shape=(64, 64, 3), dtype="uint8", low=0, high=255),
        "inner": {"speed": Leaf(kind="box", shape=(2,), dtype="float32", low=(-1.0, -math.inf), high=math.inf)},
    },
    action=Leaf(kind="multi_discrete", shape=(2,), dtype="int64", categories=(3, 5)),
)


def test_schema_reads_back_equal_from_plain_data() -> None:
    assert Schema.from_dict(SCHEMA.to_dict()) == SCHEMA


def test_schema_fingerprint_changes_with_every_field() -> None:
    leaf = SCHEMA.action
    for change in ({"shape": (3,)}, {"dtype": "int32"}, {"categories": (3, 6)}, {"kind": "box"}, {"low": 0.0}):
        other = Schema(obs=SCHEMA.obs, action=dataclasses.replace(leaf, **change))
        assert other.fingerprint != SCHEMA.fingerprint
    assert Schema.from_dict(SCHEMA.to_dict()).fingerprint == SCHEMA.fingerprint


def test_pixels_are_bytes_of_three_dimensions() -> None:
    assert SCHEMA.obs["image"].is_pixels
    assert not SCHEMA.obs["inner"]["speed"].is_pixels


def test_zeros_of_a_schema_have_the_leading_shape_and_dtype() -> None:
    arrays = zeros(SCHEMA.obs, 4, 2)
    assert arrays["image"].shape == (4, 2, 64, 64, 3)
    assert arrays["image"].dtype == np.uint8

import re
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from minefleet.core.errors import ContractError, RejectedError
from minefleet.rpc.weights.manifest import (
    Weights,
    check_architecture,
    check_manifest,
    describe,
    digest_of,
    from_wire,
    is_bfloat16,
    wire_bytes,
)
from minefleet.rpc.weights.missing_tensors_refusal import MAX_LISTED, MissingTensorsError

WEIGHTS: dict[str, NDArray[Any]] = {
    "trunk.weight": np.arange(6, dtype=np.float32).reshape(2, 3),
    "steps": np.array(5),
    "mask": np.array([True, False]),
    "half": np.ones((2, 0), np.float16),
}


def test_a_manifest_says_names_dtypes_shapes_sizes_and_digests_in_order() -> None:
    manifest, parts = describe(WEIGHTS, iteration=3)
    check_manifest(manifest)
    assert [entry.name for entry in manifest.tensors] == list(WEIGHTS)
    assert [entry.size_bytes for entry in manifest.tensors] == [24, 8, 2, 0]
    assert manifest.iteration == 3
    for entry in manifest.tensors:
        assert entry.digest == digest_of(parts[entry.digest])
        np.testing.assert_array_equal(from_wire(entry, parts[entry.digest]), WEIGHTS[entry.name], strict=True)


def test_rounded_tensors_say_so_and_have_the_architecture_of_exact_ones() -> None:
    weights: Weights = WEIGHTS | {"scale": np.full(3, 1 / 3, np.float32), "huge": np.array([3.4e38], np.float32)}
    exact, rounded = describe(weights)[0], describe(weights, rounded=weights.keys() - {"scale"})
    manifest, parts = rounded
    check_manifest(manifest)
    check_architecture(exact.tensors, manifest.tensors)
    assert manifest.architecture_fingerprint == exact.architecture_fingerprint
    assert [entry.name for entry in manifest.tensors if is_bfloat16(entry)] == ["trunk.weight"]
    assert [entry.size_bytes for entry in manifest.tensors] == [12, 8, 2, 0, 12, 4]
    for entry in manifest.tensors:
        assert entry.digest == digest_of(parts[entry.digest])
        np.testing.assert_array_equal(from_wire(entry, parts[entry.digest]), weights[entry.name], strict=True)


def test_manifest_of_tensors_of_equal_bytes_restores_each_dtype_and_shape() -> None:
    weights: Weights = {
        "bias": np.zeros(4, np.float32),
        "sums": np.zeros(2, np.float32),
        "counts": np.zeros(4, np.uint16),
    }
    manifest, parts = describe(weights, rounded={"bias"})
    check_manifest(manifest)
    assert len(parts) == 1
    for entry in manifest.tensors:
        np.testing.assert_array_equal(from_wire(entry, parts[entry.digest]), weights[entry.name], strict=True)


def test_digests_and_fingerprints_are_the_same_on_every_machine() -> None:
    manifest, _ = describe(WEIGHTS)
    assert manifest.tensors[0].digest == "2d0408b485dd77b108c27fcd95d1fea5"
    assert manifest.architecture_fingerprint == "111a65f21e76537f"


def test_the_fingerprint_of_weights_is_that_of_their_policy() -> None:
    from minefleet.policies.weight_arrays import architecture_fingerprint

    described = {name: (array.dtype.name, array.shape) for name, array in WEIGHTS.items()}
    assert describe(WEIGHTS)[0].architecture_fingerprint == architecture_fingerprint(described)


def test_manifest_does_not_depend_on_byte_order_and_memory_layout() -> None:
    array = np.arange(12, dtype=np.float32).reshape(3, 4)
    for same in (array.astype(">f4"), np.asfortranarray(array), np.repeat(array, 2, axis=0)[::2]):
        assert describe({"a": same})[0] == describe({"a": array})[0]
    assert np.shares_memory(wire_bytes(array), array)


def test_a_dtype_without_wire_type_is_rejected() -> None:
    with pytest.raises(RejectedError, match="a has dtype complex64"):
        describe({"a": np.zeros(2, np.complex64)})


def test_differing_architectures_are_refused_with_a_bounded_message() -> None:
    ours = describe({f"layer.{index}": np.zeros(2, np.float32) for index in range(50)})[0]
    theirs = describe({f"layer.{index}": np.zeros(3, np.float32) for index in range(50)})[0]
    check_architecture(ours.tensors, ours.tensors)
    message = "layer.0 is float32[2] in the run and float32[3] here"
    with pytest.raises(ContractError, match=re.escape(message)) as caught:
        check_architecture(ours.tensors, theirs.tensors)
    assert "layer.4 " in str(caught.value)
    assert "layer.5 " not in str(caught.value)
    assert str(caught.value).endswith("and 45 more")


def test_a_refusal_that_lists_missing_tensors_fits_into_trailers() -> None:
    status = MissingTensorsError([f"{index:032x}" for index in range(100_000)]).to_status()
    trailers = dict(status.trailing_metadata)
    assert len(trailers["grpc-status-details-bin"]) < 6_000
    assert len(MissingTensorsError([f"{index:032x}" for index in range(1000)]).digests) == MAX_LISTED

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from minefleet.core.errors import CorruptError, RejectedError
from minefleet.core.fragment import Fragment
from minefleet.core.tree import Tree, flatten
from minefleet.rpc.codec import MAX_RAW_BYTES, check_header, decode, decode_half, encode
from minefleet.v1 import fragment_pb2, tensor_pb2


def make_fragment(length: int = 5, *, seed: int = 0, obs: Tree | None = None) -> Fragment:
    rng = np.random.default_rng(seed)

    def floats() -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
        return rng.normal(size=length).astype(np.float32)

    def bools() -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]]:
        return rng.random(length) < 0.3

    frames = rng.integers(0, 256, (length, 8, 8, 3), dtype=np.uint8)
    return Fragment(
        obs={"image": frames, "inner": {"health": floats()}} if obs is None else obs,
        action={"move": rng.integers(0, 5, length), "camera": floats()[:, None]},
        reward=floats(),
        terminated=bools(),
        truncated=bools(),
        first=bools(),
        crash=bools(),
        behaviour_logp=floats(),
        behaviour_value=floats(),
        next_value=floats(),
        policy_version=rng.integers(1, 9, length).astype(np.uint32),
        cut_index=np.array([length - 1], np.int32),
        cut_obs={"image": frames[:1], "inner": {"health": floats()[:1]}} if obs is None else obs[:1],
        recurrent_state={"gru": rng.normal(size=4).astype(np.float32)},
    )


def packed(
    fragment: Fragment, compression: str = "zstd", state_dtype: str = "float32"
) -> tuple[fragment_pb2.FragmentHeader, bytes]:
    header = fragment_pb2.FragmentHeader(
        run_id="r", name=fragment_pb2.FragmentName(stream="s-0", sequence=3), schema_fingerprint="f"
    )
    return encode(header, fragment, compression=compression, state_dtype=state_dtype)


def assert_equal(a: Fragment, b: Fragment) -> None:
    for name in Fragment.__dataclass_fields__:
        if getattr(a, name) is None:
            assert getattr(b, name) is None
            continue
        left, right = flatten(getattr(a, name)), flatten(getattr(b, name))
        assert left.keys() == right.keys()
        for path in left:
            assert left[path].dtype == right[path].dtype, (name, path)
            np.testing.assert_array_equal(left[path], right[path])


@pytest.mark.parametrize("compression", ["zstd", "lz4", "none", "halving"])
def test_codec_decodes_the_fragment_that_it_encoded(compression: str) -> None:
    fragment = make_fragment()
    assert_equal(decode(*packed(fragment, compression)), fragment)


def test_durations_are_decoded_and_those_of_one_cost_nothing() -> None:
    plain = make_fragment()
    timed = replace(plain, duration=np.array([1, 4, 2, 1, 70_000], np.uint32))
    assert_equal(decode(*packed(timed)), timed)
    assert "duration" not in {spec.name for spec in packed(plain)[0].tensors}


@pytest.mark.parametrize("duration", [np.array([1, 1, 0, 1, 1], np.uint32), np.ones(4, np.uint32)])
def test_durations_of_nothing_or_of_other_steps_are_refused(duration: "np.ndarray[Any, np.dtype[np.uint32]]") -> None:
    with pytest.raises(ValueError, match=r"duration"):
        replace(make_fragment(), duration=duration)


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "int64", "f2", "f8"])
def test_codec_keeps_every_dtype(dtype: str) -> None:
    fragment = make_fragment(obs=np.arange(5).astype(dtype))
    assert_equal(decode(*packed(fragment)), fragment)


def test_big_endian_arrays_arrive_little_endian_with_their_values() -> None:
    decoded = decode(*packed(make_fragment(obs=np.arange(5, dtype=">f4"))))
    np.testing.assert_array_equal(decoded.obs, np.arange(5, dtype=np.float32))


def test_a_fragment_without_recurrence_or_cuts_survives() -> None:
    whole = make_fragment(obs=np.zeros((5, 2), np.float32))
    fields = {name: getattr(whole, name) for name in Fragment.__dataclass_fields__}
    plain = Fragment(
        **fields | {"recurrent_state": {}, "cut_index": np.zeros(0, np.int32), "cut_obs": np.zeros((0, 2), np.float32)}
    )
    assert_equal(decode(*packed(plain)), plain)


def test_fragment_header_says_what_replay_needs() -> None:
    fragment = make_fragment()
    header, payload = packed(fragment)
    assert header.length == 5
    assert header.oldest_version == fragment.policy_version.min()
    assert header.newest_version == fragment.policy_version.max()
    assert header.payload_bytes == len(payload)
    assert header.raw_bytes > header.payload_bytes / 2


@given(position=st.integers(min_value=0), bit=st.integers(0, 7))
def test_decode_of_a_flipped_bit_is_corrupt(position: int, bit: int) -> None:
    header, payload = packed(make_fragment())
    broken = bytearray(payload)
    broken[position % len(broken)] ^= 1 << bit
    with pytest.raises(CorruptError):
        decode(header, bytes(broken))


def test_decode_of_a_short_payload_is_corrupt() -> None:
    header, payload = packed(make_fragment())
    with pytest.raises(CorruptError):
        decode(header, payload[:-1])


def spoil(header: fragment_pb2.FragmentHeader, fault: str) -> None:
    if fault == "no stream":
        header.name.stream = ""
    elif fault == "no steps":
        header.length = 0
    elif fault == "versions":
        header.oldest_version = header.newest_version + 1
    elif fault == "sizes":
        header.tensors[0].packed_bytes += 1
    elif fault == "negative extent":
        header.tensors[0].shape[0] = -1
    elif fault == "huge":
        header.tensors[0].shape[0] = MAX_RAW_BYTES
    elif fault == "dtype":
        header.tensors[0].dtype = tensor_pb2.DTYPE_UNSPECIFIED


@pytest.mark.parametrize("fault", ["no stream", "no steps", "versions", "sizes", "negative extent", "huge", "dtype"])
def test_a_malformed_header_is_refused_before_anything_is_allocated(fault: str) -> None:
    header, _ = packed(make_fragment())
    check_header(header)
    spoil(header, fault)
    with pytest.raises(RejectedError):
        check_header(header)


def test_a_bomb_that_unpacks_to_more_than_it_says_is_refused() -> None:
    header, payload = packed(make_fragment(obs=np.zeros((5, 4096), np.float32)))
    spec = next(spec for spec in header.tensors if spec.name == "obs")
    spec.shape[1] = 1
    header.raw_bytes -= 5 * 4095 * 4
    with pytest.raises(RejectedError):
        decode(header, payload)


def test_codec_refuses_arrays_of_objects() -> None:
    with pytest.raises(RejectedError, match="no wire type"):
        packed(make_fragment(obs=np.array([None] * 5)))


def test_arrays_of_different_lengths_are_no_fragment() -> None:
    with pytest.raises(ValueError, match="steps"):
        make_fragment(obs=np.zeros(4))


@pytest.mark.parametrize("compression", ["zstd", "lz4", "none", "halving"])
def test_a_half_packed_fragment_unpacks_to_what_was_encoded(compression: str) -> None:
    fragment = make_fragment()
    half = decode_half(*packed(fragment, compression))
    assert all(field == {} for field in half.steps.large_fields())
    large = half.unpack()._asdict()
    assert_equal(replace(half.steps, **large), fragment)
    assert half.large_bytes == sum(leaf.nbytes for leaf in flatten(large).values())


def test_half_decoding_verifies_the_checksum_of_what_it_leaves_packed() -> None:
    header, payload = packed(make_fragment())
    assert header.tensors[0].name.startswith("obs")
    with pytest.raises(CorruptError):
        decode_half(header, bytes([payload[0] ^ 1]) + payload[1:])


@pytest.mark.parametrize("name", ["obs/image", "cut_obs/image"])
def test_half_decoding_rejects_observations_of_another_length_without_unpacking_them(name: str) -> None:
    header, payload = packed(make_fragment())
    spec = next(spec for spec in header.tensors if spec.name == name)
    spec.shape[0], spec.shape[1] = spec.shape[0] * 2, spec.shape[1] // 2
    with pytest.raises(RejectedError, match=f"{name} has shape"):
        decode_half(header, payload)


def rounded(array: np.ndarray[tuple[int, ...], np.dtype[np.float32]], dtype: torch.dtype) -> torch.Tensor:
    return torch.from_numpy(array).to(dtype).float()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_a_state_of_fewer_bits_takes_half_the_bytes_and_comes_back_as_float32(dtype: torch.dtype) -> None:
    rng = np.random.default_rng(0)
    keys = rng.normal(size=(7, 3)).astype(np.float32)
    half = rng.normal(size=3).astype(np.float16)
    state = {"keys": keys, "remembered": rng.random(7) < 0.5, "other": keys.astype(np.float64)}
    fragment = replace(make_fragment(obs=np.stack([half] * 5)), recurrent_state=state)
    name = str(dtype).removeprefix("torch.")
    (header, payload), (wide, _) = packed(fragment, state_dtype=name), packed(fragment)
    assert wide.raw_bytes - header.raw_bytes == keys.nbytes / 2
    back = decode(header, payload)
    kept = torch.from_numpy(back.recurrent_state["keys"])
    assert torch.equal(kept, rounded(keys, dtype))
    assert_equal(replace(back, recurrent_state={**back.recurrent_state, "keys": keys}), fragment)
    opened = decode_half(header, payload)
    assert np.array_equal(opened.unpack().recurrent_state["keys"], back.recurrent_state["keys"])
    assert opened.large_bytes == decode_half(*packed(fragment)).large_bytes
    again = packed(back, state_dtype=name)
    assert_equal(decode(*again), back)


def test_a_state_that_no_bfloat16_can_say_travels_as_it_is() -> None:
    state = {"gru": np.array([1.1, np.inf], np.float32)}
    fragment = replace(make_fragment(), recurrent_state=state)
    assert_equal(decode(*packed(fragment, state_dtype="bfloat16")), fragment)


@pytest.mark.parametrize(
    ("values", "compression", "codec"),
    [
        (256, "zstd", tensor_pb2.CODEC_ZSTD),
        (48, "halving", tensor_pb2.CODEC_NONE),
        (48, "zstd", tensor_pb2.CODEC_ZSTD),
        (4, "halving", tensor_pb2.CODEC_ZSTD),
    ],
)
def test_codec_with_halving_leaves_unpacked_what_zstd_does_not_halve(values: int, compression: str, codec: int) -> None:
    obs = np.random.default_rng(0).integers(values, size=(5, 64, 64, 6), dtype=np.uint8)
    fragment = make_fragment(obs=obs)
    header, payload = packed(fragment, compression)
    (spec,) = (spec for spec in header.tensors if spec.name == "obs")
    assert spec.codec == codec
    assert_equal(decode(header, payload), fragment)

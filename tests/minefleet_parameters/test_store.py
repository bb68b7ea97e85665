import asyncio
import json
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import load_file

from minefleet.core.errors import (
    ContractError,
    CorruptError,
    FencedError,
    FleetError,
    NotFoundError,
    RejectedError,
    RunMismatchError,
)
from minefleet.rpc.message_pieces import PIECE_BYTES
from minefleet.rpc.weights.bfloat16 import as_fetched
from minefleet.rpc.weights.manifest import describe, digest_of, from_wire
from minefleet.rpc.weights.missing_tensors_refusal import MissingTensorsError
from minefleet.rpc.weights.tensor_message_serializer import decode
from minefleet.v1 import parameters_service_pb2, tensor_pb2, weights_pb2
from minefleet_parameters.store import ParameterStore, open_store
from minefleet_parameters.tensor_sender import TensorSender

Weights = dict[str, NDArray[Any]]
MakeWeights = Callable[..., Weights]


def header_of(
    weights: Weights, *, expected: int, epoch: int = 1, iteration: int = 0, rounded: Collection[str] = ()
) -> parameters_service_pb2.PublishHeader:
    manifest, _ = describe(weights, iteration=iteration, rounded=rounded)
    return parameters_service_pb2.PublishHeader(run_id="run", epoch=epoch, expected_version=expected, manifest=manifest)


def pieces_of(weights: Weights, rounded: Collection[str] = ()) -> Iterator[weights_pb2.TensorPiece]:
    for digest, part in describe(weights, rounded=rounded)[1].items():
        for offset in range(0, part.nbytes, PIECE_BYTES):
            data = part[offset : offset + PIECE_BYTES].tobytes()
            yield weights_pb2.TensorPiece(digest=digest, offset=offset, data=data)


def publish(
    store: ParameterStore,
    weights: Weights,
    *,
    sent: Weights | None = None,
    rounded: Collection[str] = (),
    **header: int,
) -> int:
    pieces = pieces_of(weights if sent is None else sent, rounded)
    return send(store, header_of(weights, rounded=rounded, **header), list(pieces))


def send(
    store: ParameterStore, header: parameters_service_pb2.PublishHeader, pieces: Sequence[weights_pb2.TensorPiece]
) -> int:
    repeated = store.check(header)
    if repeated is not None:
        return repeated
    upload = store.begin(header)
    try:
        upload.start()
        upload.write(pieces)
        return store.commit(upload)
    finally:
        upload.close()
        store.purge()


def read(store: ParameterStore, number: int = 0) -> Weights:
    version = store.version(number)
    return {
        entry.name: from_wire(entry, np.frombuffer(b"".join(received(store, version.version, entry)), np.uint8))
        for entry in version.manifest.tensors
    }


def received(
    store: ParameterStore, number: int, entry: weights_pb2.TensorEntry, offset: int = 0, into: list[bytes] | None = None
) -> list[bytes]:
    data = [] if into is None else into

    async def receive() -> None:
        async for message in TensorSender(store).send(number, [(entry, offset)]):
            data.extend(bytes(piece.data) for piece in decode(message.encoded) or ())

    asyncio.run(receive())
    return data


def assert_same(ours: Weights, theirs: Weights) -> None:
    assert list(ours) == list(theirs)
    for name, array in ours.items():
        np.testing.assert_array_equal(array, theirs[name], strict=True)


def files_in(directory: Path) -> set[str]:
    return {str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_file()}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ParameterStore]:
    with open_store(tmp_path / "store", keep=3) as opened:
        opened.open_epoch("run", 0, 0)
        yield opened


def test_a_published_version_is_read_back_and_survives_reopening(tmp_path: Path, make_weights: MakeWeights) -> None:
    weights = make_weights(size_bytes=6 * PIECE_BYTES)
    with open_store(tmp_path, keep=3) as store:
        assert store.open_epoch("run", 0, 0).epoch == 1
        assert publish(store, weights, expected=0) == 1
        assert_same(read(store), weights)
    with open_store(tmp_path, keep=3) as store:
        assert_same(read(store), weights)
        assert store.version().run_id == "run"
        assert store.identity.epoch == 1


@pytest.mark.parametrize("rounded", [[], ["frozen.weight", "trained.weight"]], ids=["exact", "rounded"])
def test_the_safetensors_package_reads_a_version_without_us(
    tmp_path: Path, make_weights: MakeWeights, rounded: list[str]
) -> None:
    weights = make_weights(1)
    with open_store(tmp_path, keep=3) as store:
        store.open_epoch("run", 0, 0)
        publish(store, weights, expected=0, rounded=rounded)
    tensors = json.loads((tmp_path / "versions/1.json").read_text())["manifest"]["tensors"]
    loaded = {t["name"]: load_file(tmp_path / f"tensors/{t['digest']}.safetensors")[t["digest"]] for t in tensors}
    assert_same(
        {name: array.astype(weights[name].dtype) for name, array in loaded.items()}, as_fetched(weights, rounded)
    )
    assert [name for name, array in loaded.items() if array.dtype.name == "bfloat16"] == rounded


def test_a_tensor_is_stored_once_however_many_versions_name_it(
    store: ParameterStore, make_weights: MakeWeights
) -> None:
    first, second = make_weights(1), make_weights(2)
    publish(store, first, expected=0)
    changed = {name: array for name, array in second.items() if name in ("trained.weight", "scale", "steps")}
    publish(store, second, sent=changed, expected=1)
    distinct = {digest_of(part) for weights in (first, second) for part in describe(weights)[1].values()}
    assert store.tensors.held == distinct
    assert_same(read(store, 1), first)
    assert_same(read(store, 2), second)


def test_parameters_store_removes_leftovers_of_a_crash_when_it_opens(tmp_path: Path, make_weights: MakeWeights) -> None:
    with open_store(tmp_path, keep=3) as store:
        store.open_epoch("run", 0, 0)
        publish(store, make_weights(), expected=0)
    before = files_in(tmp_path)
    for garbage in ("incoming/7-0123", "tensors/0123.safetensors", "versions/.2.json", ".identity.json"):
        (tmp_path / garbage).write_bytes(b"half")
    with open_store(tmp_path, keep=3) as store:
        assert files_in(tmp_path) == before
        assert store.kept == [1]
        assert_same(read(store), make_weights())


def test_publish_is_invisible_before_its_commit(store: ParameterStore, make_weights: MakeWeights) -> None:
    publish(store, make_weights(1), expected=0)
    upload = store.begin(header_of(make_weights(2), expected=1))
    upload.start()
    for piece in pieces_of(make_weights(2)):
        upload.write([piece])
        assert store.kept == [1]
    assert_same(read(store), make_weights(1))
    assert store.commit(upload) == 2


def test_publish_that_is_abandoned_leaves_nothing(
    tmp_path: Path, store: ParameterStore, make_weights: MakeWeights
) -> None:
    publish(store, make_weights(1), expected=0)
    before = files_in(tmp_path)
    upload = store.begin(header_of(make_weights(2), expected=1))
    upload.start()
    upload.write([next(pieces_of(make_weights(2)))])
    upload.close()
    assert files_in(tmp_path) == before
    with pytest.raises(FleetError, match="abandoned"):
        store.commit(upload)
    assert store.kept == [1]


def test_publish_that_does_not_expect_the_newest_version_is_fenced(
    store: ParameterStore, make_weights: MakeWeights
) -> None:
    uploads = [store.begin(header_of(make_weights(seed), expected=0)) for seed in (1, 2)]
    for upload, seed in zip(uploads, (1, 2), strict=True):
        upload.start()
        upload.write(pieces_of(make_weights(seed)))
    assert store.commit(uploads[0]) == 1
    with pytest.raises(FencedError, match="version 1 is the newest, the publish expected 0"):
        store.commit(uploads[1])
    assert_same(read(store), make_weights(1))


def test_repeating_a_publish_that_went_through_returns_its_version(
    store: ParameterStore, make_weights: MakeWeights
) -> None:
    twins = [store.begin(header_of(make_weights(), expected=0)) for _ in range(2)]
    for upload in twins:
        upload.start()
        upload.write(pieces_of(make_weights()))
    assert [store.commit(upload) for upload in twins] == [1, 1]
    assert publish(store, make_weights(1), expected=1, iteration=1) == 2
    assert publish(store, make_weights(), expected=0) == 1
    assert store.kept == [1, 2]


def test_publish_of_an_older_epoch_is_fenced_even_in_its_middle(
    store: ParameterStore, make_weights: MakeWeights
) -> None:
    publish(store, make_weights(1), expected=0)
    upload = store.begin(header_of(make_weights(2), expected=1))
    upload.start()
    upload.write(pieces_of(make_weights(2)))
    store.open_epoch("run", 1, 1)
    with pytest.raises(FencedError, match="epoch 1 may not publish: epoch 2 is the newest"):
        store.commit(upload)
    with pytest.raises(FencedError):
        store.check(header_of(make_weights(1), expected=0))


def test_open_epoch_only_raises_numbers_whatever_the_checkpoint_says(tmp_path: Path, make_weights: MakeWeights) -> None:
    with open_store(tmp_path, keep=3) as store:
        store.open_epoch("run", 0, 0)
        for number in range(3):
            publish(store, make_weights(number), expected=number)
        older = store.open_epoch("run", 1, 1)
        assert (older.epoch, older.newest_version) == (2, 3)
        newer = store.open_epoch("run", 7, 40)
        assert (newer.epoch, newer.newest_version) == (8, 40)
    with open_store(tmp_path, keep=3) as store:
        assert (store.identity.epoch, store.identity.newest_version) == (8, 40)
        assert store.version().version == 3
        assert publish(store, make_weights(9), expected=40, epoch=8) == 41


def test_parameters_store_refuses_another_run_naming_both(store: ParameterStore, make_weights: MakeWeights) -> None:
    with pytest.raises(RunMismatchError, match=r"holds run run, the learner is of run other"):
        store.open_epoch("other", 0, 0)
    header = header_of(make_weights(), expected=0)
    header.run_id = "other"
    with pytest.raises(RunMismatchError, match=r"run run, the learner publishes for run other"):
        store.check(header)


def test_parameters_store_refuses_another_architecture_naming_the_tensors_that_differ(
    store: ParameterStore, make_weights: MakeWeights
) -> None:
    publish(store, make_weights(), expected=0)
    other = make_weights() | {"trained.weight": np.zeros(3, np.float32), "new": np.zeros(1, np.float32)}
    with pytest.raises(
        ContractError, match=r"trained\.weight is float32\[256, 2\] in the run and float32\[3\] here; new"
    ):
        store.check(header_of(other, expected=1))
    shuffled = dict(reversed(make_weights().items()))
    with pytest.raises(ContractError, match="another order"):
        store.check(header_of(shuffled, expected=1))
    header = header_of(make_weights(), expected=1)
    header.manifest.architecture_fingerprint = "0123"
    with pytest.raises(RejectedError, match="it says '0123'"):
        store.check(header)


def test_a_tensor_that_was_neither_sent_nor_held_is_named(store: ParameterStore, make_weights: MakeWeights) -> None:
    publish(store, make_weights(1), expected=0)
    with pytest.raises(MissingTensorsError) as caught:
        publish(store, make_weights(2), sent={}, expected=1)
    changed = {
        digest_of(np.frombuffer(make_weights(2)[name].tobytes(), np.uint8))
        for name in ("trained.weight", "scale", "steps")
    }
    assert caught.value.digests == changed
    assert store.kept == [1]


def test_weights_that_are_not_finite_are_rejected(
    tmp_path: Path, store: ParameterStore, make_weights: MakeWeights
) -> None:
    publish(store, make_weights(1), expected=0)
    before = files_in(tmp_path)
    for bad in (np.nan, np.inf):
        weights = make_weights(2)
        weights["trained.weight"][-1, -1] = bad
        with pytest.raises(RejectedError, match=r"'trained\.weight' holds NaN or infinity"):
            publish(store, weights, expected=1)
    assert files_in(tmp_path) == before


@pytest.mark.parametrize("bits", [0x7F80, 0xFF80, 0x7FC0, 0x7F81], ids=["inf", "-inf", "NaN", "signalling NaN"])
def test_rounded_weights_that_are_not_finite_are_rejected(store: ParameterStore, bits: int) -> None:
    data = np.array([bits, 0x3F80], "<u2")  # As a float32 it would be finite.
    header = header_of({"a": np.ones(2, np.float32)}, expected=0, rounded={"a"})
    header.manifest.tensors[0].digest = digest_of(data.view(np.uint8))
    piece = weights_pb2.TensorPiece(digest=header.manifest.tensors[0].digest, data=data.tobytes())
    with pytest.raises(RejectedError, match="'a' holds NaN or infinity"):
        send(store, header, [piece])


def flipped(piece: weights_pb2.TensorPiece) -> weights_pb2.TensorPiece:
    data = bytes([piece.data[0] ^ 1]) + piece.data[1:]
    return weights_pb2.TensorPiece(digest=piece.digest, offset=piece.offset, data=data)


BAD_PIECES: dict[str, tuple[Callable[[list[weights_pb2.TensorPiece]], list[weights_pb2.TensorPiece]], str]] = {
    "bit flip": (lambda p: [flipped(p[0]), *p[1:]], "does not match its digest"),
    "out of order": (lambda p: [p[1], p[0], *p[2:]], "goes on at 0"),
    "twice": (lambda p: [p[0], *p], f"goes on at {PIECE_BYTES}"),
    "beyond the size": (
        lambda p: [*p, weights_pb2.TensorPiece(digest=p[0].digest, offset=PIECE_BYTES + 8, data=b"x")],
        "goes on at",
    ),
    "empty": (lambda p: [weights_pb2.TensorPiece(digest=p[0].digest), *p], "a piece has 1 to"),
    "too large": (
        lambda p: [weights_pb2.TensorPiece(digest=p[0].digest, data=p[0].data + b"x"), *p],
        "a piece has 1 to",
    ),
    "unknown": (lambda p: [weights_pb2.TensorPiece(digest="../../etc", data=b"x"), *p], "no tensor of the manifest"),
}


@pytest.mark.parametrize("case", BAD_PIECES)
def test_publish_of_bad_pieces_is_rejected_and_leaves_nothing(
    tmp_path: Path, store: ParameterStore, make_weights: MakeWeights, case: str
) -> None:
    publish(store, make_weights(1, 2 * PIECE_BYTES + 16), expected=0)
    before, weights = files_in(tmp_path), make_weights(2, 2 * PIECE_BYTES + 16)
    spoil, message = BAD_PIECES[case]
    with pytest.raises(RejectedError, match=message):
        send(store, header_of(weights, expected=1), spoil(list(pieces_of(weights))))
    assert files_in(tmp_path) == before
    assert_same(read(store), make_weights(1, 2 * PIECE_BYTES + 16))


def test_publish_with_a_truncated_tensor_is_refused(
    tmp_path: Path, store: ParameterStore, make_weights: MakeWeights
) -> None:
    publish(store, make_weights(1), expected=0)
    before = files_in(tmp_path)
    pieces = list(pieces_of(make_weights(2)))
    cut = weights_pb2.TensorPiece(digest=pieces[1].digest, data=pieces[1].data[:50])
    with pytest.raises(MissingTensorsError):
        send(store, header_of(make_weights(2), expected=1), [pieces[0], cut])
    assert files_in(tmp_path) == before


BAD_MANIFESTS: dict[str, tuple[Callable[[weights_pb2.Manifest], object], str]] = {
    "no tensors": (lambda m: m.ClearField("tensors"), "1 to 100000 tensors"),
    "too many tensors": (lambda m: m.tensors.extend([m.tensors[0]] * 100_001), "1 to 100000 tensors"),
    "duplicate names": (lambda m: m.tensors.extend([m.tensors[0]]), "'frozen.weight' comes twice"),
    "a path": (lambda m: setattr(m.tensors[0], "name", "a/../../../etc/passwd"), "is no name"),
    "an absolute path": (lambda m: setattr(m.tensors[0], "name", "/etc/passwd"), "is no name"),
    "no name": (lambda m: setattr(m.tensors[0], "name", ""), "is no name"),
    "a line break": (lambda m: setattr(m.tensors[0], "name", "a\nb"), "is no name"),
    "a long name": (lambda m: setattr(m.tensors[0], "name", "a" * 10_000), "is no name"),
    "a digest that is a path": (
        lambda m: setattr(m.tensors[0], "digest", "../../../../etc/passwd"),
        "malformed digest",
    ),
    "an upper-case digest": (lambda m: setattr(m.tensors[0], "digest", "A" * 32), "malformed digest"),
    "a size that is wrong": (lambda m: setattr(m.tensors[0], "size_bytes", 2**60), "its shape needs"),
    "a huge shape": (lambda m: m.tensors[0].shape.extend([2**62, 2**62]), "its shape needs"),
    "a negative extent": (lambda m: m.tensors[0].shape.extend([-1, -1]), r"shape \[512, -1, -1\]"),
    "no dtype": (lambda m: setattr(m.tensors[0], "dtype", tensor_pb2.DTYPE_UNSPECIFIED), "has dtype 0"),
    "an integer as bfloat16": (
        lambda m: setattr(m.tensors[5], "wire_dtype", tensor_pb2.DTYPE_BFLOAT16),
        "'steps' of dtype 9 cannot travel as dtype 11",
    ),
    "float32 as float16": (
        lambda m: setattr(m.tensors[0], "wire_dtype", tensor_pb2.DTYPE_FLOAT16),
        "of dtype 12 cannot travel as dtype 10",
    ),
    "float32 as itself": (
        lambda m: setattr(m.tensors[0], "wire_dtype", tensor_pb2.DTYPE_FLOAT32),
        "of dtype 12 cannot travel as dtype 12",
    ),
    "a dtype of the future": (lambda m: setattr(m.tensors[0], "wire_dtype", 99), "cannot travel as dtype 99"),
    "bfloat16 of float32's size": (
        lambda m: setattr(m.tensors[0], "wire_dtype", tensor_pb2.DTYPE_BFLOAT16),
        "has 2048 bytes, its shape needs 1024",
    ),
    "a policy of bfloat16": (lambda m: setattr(m.tensors[0], "dtype", tensor_pb2.DTYPE_BFLOAT16), "has dtype 11"),
    "another dtype": (lambda m: setattr(m.tensors[0], "dtype", tensor_pb2.DTYPE_FLOAT64), "its shape needs 4096"),
    "one digest for two sizes": (lambda m: setattr(m.tensors[1], "digest", m.tensors[3].digest), "of another size"),
}


@pytest.mark.parametrize("case", BAD_MANIFESTS)
def test_publish_of_a_malformed_manifest_is_rejected_before_anything_is_written(
    tmp_path: Path, store: ParameterStore, make_weights: MakeWeights, case: str
) -> None:
    before = files_in(tmp_path)
    header = header_of(make_weights(), expected=0)
    spoil, message = BAD_MANIFESTS[case]
    spoil(header.manifest)
    with pytest.raises(RejectedError, match=message):
        send(store, header, list(pieces_of(make_weights())))
    assert files_in(tmp_path) == before


def spoil_file(directory: Path, name: str, store: ParameterStore) -> Path:
    digest = next(entry.digest for entry in store.version().manifest.tensors if entry.name == name)
    path = directory / "tensors" / f"{digest}.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    return path


@pytest.mark.parametrize("reopened", [False, True])
@pytest.mark.parametrize("offset", [0, 1, PIECE_BYTES - 1, PIECE_BYTES, PIECE_BYTES + 1, 3 * PIECE_BYTES - 1])
def test_parameters_store_sends_a_tensor_from_any_offset_on(
    tmp_path: Path, make_weights: MakeWeights, offset: int, *, reopened: bool
) -> None:
    weights = make_weights(size_bytes=6 * PIECE_BYTES)
    with open_store(tmp_path, keep=3) as store:
        store.open_epoch("run", 0, 0)
        publish(store, weights, expected=0)
        if not reopened:
            assert sent_from(store, offset) == weights["frozen.weight"].tobytes()[offset:]
    with open_store(tmp_path, keep=3) as store:
        assert sent_from(store, offset) == weights["frozen.weight"].tobytes()[offset:]


def sent_from(store: ParameterStore, offset: int) -> bytes:
    return b"".join(received(store, 1, store.version().manifest.tensors[0], offset))


@pytest.mark.parametrize("size_bytes", [0, 5, 200])
def test_a_truncated_tensor_counts_as_lacking_after_opening(
    tmp_path: Path, make_weights: MakeWeights, size_bytes: int
) -> None:
    with open_store(tmp_path, keep=3) as store:
        store.open_epoch("run", 0, 0)
        publish(store, make_weights(), expected=0)
        path = spoil_file(tmp_path, "frozen.weight", store)
        path.write_bytes(path.read_bytes()[:size_bytes])
    with open_store(tmp_path, keep=3) as store:
        entry = store.version().manifest.tensors[0]
        assert entry.digest not in store.tensors.held
        with pytest.raises(CorruptError):
            received(store, 1, entry)
        assert publish(store, make_weights(), expected=1, iteration=1) == 2
        assert_same(read(store, 1), make_weights())


def test_a_lost_tensor_is_corruption_and_an_expired_one_is_not_found(
    tmp_path: Path, store: ParameterStore, make_weights: MakeWeights
) -> None:
    publish(store, make_weights(1), expected=0)
    entry = next(entry for entry in store.version().manifest.tensors if entry.name == "trained.weight")
    for number in range(1, 4):
        publish(store, make_weights(number + 1), expected=number)
    with pytest.raises(NotFoundError, match="the oldest available is 2"):
        received(store, 1, entry)
    for path in (tmp_path / "store/tensors").iterdir():
        path.unlink()
    with pytest.raises(CorruptError, match="is gone"):
        received(store, 4, store.version().manifest.tensors[0])

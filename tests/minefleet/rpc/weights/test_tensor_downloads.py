import numpy as np
import pytest

from minefleet.core.errors import CorruptError
from minefleet.rpc.weights.manifest import describe
from minefleet.rpc.weights.tensor_downloads import Downloads
from minefleet.v1 import weights_pb2

FIRST = {"frozen": np.arange(100, dtype=np.float32), "trained": np.zeros(50, np.float32)}
SECOND = FIRST | {"trained": np.ones(50, np.float32)}


def wanted(downloads: Downloads, manifest: weights_pb2.Manifest) -> dict[str, int]:
    return {each.digest: each.offset for each in downloads.want(manifest)}


def piece(digest: str, data: bytes, offset: int = 0) -> weights_pb2.TensorPiece:
    return weights_pb2.TensorPiece(digest=digest, offset=offset, data=data)


def test_downloads_want_only_lacking_tensors_and_resume_a_cut_one() -> None:
    downloads = Downloads()
    manifest, parts = describe(FIRST)
    frozen, trained = (entry.digest for entry in manifest.tensors)
    assert wanted(downloads, manifest) == {frozen: 0, trained: 0}
    downloads.add(piece(frozen, parts[frozen][:150].tobytes()))
    assert wanted(downloads, manifest) == {frozen: 150, trained: 0}
    downloads.add(piece(frozen, parts[frozen][150:].tobytes(), 150))
    assert wanted(downloads, manifest) == {trained: 0}
    with pytest.raises(CorruptError, match="left out 1 tensors, 'trained' for one"):
        downloads.check_whole(manifest)
    downloads.add(piece(trained, parts[trained].tobytes()))
    downloads.check_whole(manifest)
    np.testing.assert_array_equal(downloads[frozen], parts[frozen])
    assert not downloads[frozen].flags.writeable


def test_the_next_version_wants_only_what_changed_and_older_tensors_are_forgotten() -> None:
    downloads = Downloads()
    for weights, changed in ((FIRST, 2), (SECOND, 1), (FIRST, 1)):
        manifest, parts = describe(weights)
        ranges = downloads.want(manifest)
        assert len(ranges) == changed
        for each in ranges:
            downloads.add(piece(each.digest, parts[each.digest].tobytes()))
        downloads.keep(manifest)


def test_a_tensor_that_does_not_match_its_digest_is_forgotten() -> None:
    downloads = Downloads()
    manifest, parts = describe(FIRST)
    digest = manifest.tensors[0].digest
    downloads.want(manifest)
    with pytest.raises(CorruptError, match="does not match its digest"):
        downloads.add(piece(digest, bytes(400)))
    assert wanted(downloads, manifest)[digest] == 0
    downloads.add(piece(digest, parts[digest].tobytes()))
    assert digest not in wanted(downloads, manifest)


@pytest.mark.parametrize(("offset", "length"), [(1, 10), (0, 401), (2**60, 1)], ids=["a gap", "too much", "far beyond"])
def test_downloads_refuse_pieces_that_do_not_fit(offset: int, length: int) -> None:
    downloads = Downloads()
    manifest, _ = describe(FIRST)
    downloads.want(manifest)
    with pytest.raises(CorruptError, match="does not fit"):
        downloads.add(piece(manifest.tensors[0].digest, bytes(length), offset))
    with pytest.raises(CorruptError, match="does not fit"):
        downloads.add(piece("0" * 32, b"unasked"))


def test_tensors_without_bytes_need_no_piece() -> None:
    downloads = Downloads()
    manifest, _ = describe({"empty": np.empty((0, 4), np.float32)})
    assert downloads.want(manifest) == []
    downloads.check_whole(manifest)

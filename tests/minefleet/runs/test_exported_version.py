import json
import shutil
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray
from safetensors.numpy import load_file
from safetensors.torch import load_file as load_torch_file

from minefleet.config import FleetConfig
from minefleet.core.atomic_files import appearing, disk_bytes
from minefleet.core.errors import ConfigError, CorruptError
from minefleet.core.protobuf_dtypes import NUMPY_DTYPES
from minefleet.core.schema import Leaf, Schema
from minefleet.rpc.weights.manifest import entries_of
from minefleet.rpc.weights.version_info import VersionInfo
from minefleet.runs.exported_version import export, is_exported, read_exported, read_model, write_model
from minefleet.runs.run_yaml import Run
from minefleet.runs.trained_policy_files import inspect_policy, read_weights

Weights = dict[str, NDArray[Any]]
WEIGHTS: Weights = {
    "z.weight": np.arange(6, dtype=np.float32).reshape(2, 3),
    "flags": np.array([True, False, True]),
    "count": np.array(7),
    "empty": np.empty((0, 3), np.float32),
    "a.mean": np.array([1.5, 2.5]),
}
INFO = VersionInfo(
    version=12,
    epoch=2,
    run_id="run",
    iteration=11,
    architecture="0123",
    tensors=5,
    size_bytes=51,
    publish_time=datetime(2026, 1, 2, tzinfo=UTC),
    pinned=False,
)
dtypes = st.sampled_from(sorted(NUMPY_DTYPES.values(), key=str))
arrays = dtypes.flatmap(lambda dtype: hnp.arrays(dtype, hnp.array_shapes(min_dims=0, max_dims=3, min_side=0)))


@pytest.fixture
def run(tmp_path: Path) -> Run:
    leaf = Leaf(kind="box", shape=(2,), dtype="float32")
    run = Run(directory=tmp_path / "run", config=FleetConfig(), schema=Schema(obs=leaf, action=leaf), architecture="")
    run.directory.mkdir()
    run.write()
    return run


@pytest.fixture
def exported(run: Run, tmp_path: Path) -> Path:
    written(run, tmp_path / "out")
    return tmp_path / "out"


def written(run: Run, target: Path, weights: Weights = WEIGHTS) -> dict[str, Any]:
    return export(target, run, INFO, described(weights), lambda entry: weights[entry.name])


def described(weights: Weights) -> Any:
    return entries_of({name: (array.dtype.name, array.shape) for name, array in weights.items()})


def assert_same(ours: Weights, theirs: Weights) -> None:
    assert ours.keys() == theirs.keys()
    for name, array in ours.items():
        np.testing.assert_array_equal(array, theirs[name], strict=True)


@given(weights=st.dictionaries(st.text(st.characters(codec="utf-8"), min_size=1), arrays, min_size=1, max_size=6))
def test_the_safetensors_package_reads_what_was_written_in_its_order(
    tmp_path_factory: pytest.TempPathFactory, weights: Weights
) -> None:
    path = tmp_path_factory.mktemp("model") / "model.safetensors"
    write_model(path, described(weights), lambda entry: weights[entry.name])
    loaded = load_file(path)
    assert_same(weights, loaded)
    assert [name for name in load_torch_file(path) if weights[name].size] == [n for n in weights if weights[n].size]


def test_an_exported_version_says_which_it_is_and_reads_back(exported: Path) -> None:
    assert is_exported(exported)
    assert json.loads((exported / "version.json").read_text()).items() >= {
        ("run_id", "run"),
        ("version", 12),
        ("epoch", 2),
        ("iteration", 11),
        ("architecture", "0123"),
        ("publish_time", "2026-01-02T00:00:00+00:00"),
    }
    assert_same(WEIGHTS, read_model(exported))
    trained = inspect_policy(exported)
    assert (trained.version, trained.env_steps, trained.run_file) == (12, None, "config.yaml")
    assert_same(WEIGHTS, read_weights(exported))


def test_tensors_are_asked_for_one_by_one_in_the_order_they_are_written(run: Run, tmp_path: Path) -> None:
    sizes = []

    def array_of(entry: Any) -> NDArray[Any]:
        (model,) = tmp_path.glob(".out.*/model.safetensors")
        sizes.append((entry.name, model.stat().st_size))
        return np.ones(2**16, np.float32)

    names = [f"{index}" for index in range(5)]
    export(tmp_path / "out", run, INFO, entries_of(dict.fromkeys(names, ("float32", (2**16,)))), array_of)
    assert [name for name, _ in sizes] == names
    assert [after - before for (_, before), (_, after) in pairwise(sizes[1:])] == [2**18] * 3


@pytest.mark.parametrize("name", ["model.safetensors", "version.json"])
@pytest.mark.parametrize("damage", ["cut", "gone", "changed"])
def test_a_damaged_export_is_refused_by_name(exported: Path, name: str, damage: str) -> None:
    path, data = exported / name, (exported / name).read_bytes()
    if damage == "gone" and name == "version.json":
        assert not is_exported(exported.parent)
        path.write_text("{}")
    elif damage == "gone":
        path.unlink()
    else:
        path.write_bytes(data[:-3] if damage == "cut" else data[:-3] + bytes([data[-3] ^ 1]) + data[-2:])
    for reads in (read_exported, read_model, inspect_policy):
        with pytest.raises(ConfigError, match=f"the exported version {exported}"):
            reads(exported)


def test_a_directory_with_something_in_it_is_not_written_over_and_an_empty_one_is_filled(
    run: Run, tmp_path: Path
) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full/mine").write_text("mine")
    (tmp_path / "file").write_text("mine")
    for name in ("full", "file"):
        with pytest.raises(ConfigError, match=f"{name} is not empty; give a new directory"):
            written(run, tmp_path / name)
    assert (tmp_path / "full/mine").read_text() == (tmp_path / "file").read_text() == "mine"
    (tmp_path / "empty").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "empty")
    written(run, tmp_path / "link")
    assert is_exported(tmp_path / "empty")
    written(run, tmp_path / "new/below")
    assert is_exported(tmp_path / "new/below")


def test_export_of_a_version_that_fails_leaves_nothing(run: Run, tmp_path: Path) -> None:
    def array_of(entry: Any) -> NDArray[Any]:
        if entry.name == "empty":
            raise CorruptError("damaged")
        return WEIGHTS[entry.name]

    with pytest.raises(CorruptError, match="damaged"):
        export(tmp_path / "out", run, INFO, described(WEIGHTS), array_of)
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_export_that_cannot_be_written_fails_in_one_message(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(ConfigError, match=f"cannot write {tmp_path}/file/out"), appearing(tmp_path / "file/out"):
        pass


def test_disk_bytes_counts_a_file_of_two_names_once(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a/b").write_bytes(b"x" * 100)
    before = disk_bytes(tmp_path)
    (tmp_path / "c").hardlink_to(tmp_path / "a/b")
    assert disk_bytes(tmp_path) == before >= 100
    shutil.copyfile(tmp_path / "c", tmp_path / "d")
    assert disk_bytes(tmp_path) == before + 100

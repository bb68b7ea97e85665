import json
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from minefleet.core.errors import ConfigError, FencedError
from minefleet.runs.checkpoint_files import Checkpoint, CheckpointState, newest, read, read_policy, read_state, write
from minefleet.runs.checkpoint_retention import hold, prune


def make(iteration: int = 0, run_id: str = "a", reference: bool = True, epoch: int = 1) -> Checkpoint:
    rng = np.random.default_rng(iteration)
    weights = {"w": rng.normal(size=(3, 2)).astype(np.float32), "scalar": np.array(rng.normal())}
    return Checkpoint(
        state=CheckpointState(
            run_id=run_id, epoch=epoch, iteration=iteration, env_steps=7, episodes={"returns": [0.1, 2.0]}
        ),
        policy=weights,
        optimizer={"w.exp_avg": rng.normal(size=(3, 2))},
        rng={"torch": rng.integers(0, 255, 16).astype(np.uint8)},
        run="config: {}\n",
        reference=weights if reference else None,
    )


def test_checkpoint_is_read_bit_for_bit_as_it_was_written(tmp_path: Path) -> None:
    for reference in (True, False):
        checkpoint = make(3, reference=reference)
        got = read(write(tmp_path, checkpoint))
        assert got.state == checkpoint.state
        assert got.run == checkpoint.run
        for name in ("policy", "optimizer", "rng", "reference"):
            expected, loaded = getattr(checkpoint, name), getattr(got, name)
            if expected is None:
                assert loaded is None
                continue
            assert set(loaded) == set(expected)
            for key, array in expected.items():
                assert loaded[key].dtype == array.dtype
                assert loaded[key].shape == array.shape
                assert loaded[key].tobytes() == array.tobytes()


def test_latest_names_the_last_checkpoint_written(tmp_path: Path) -> None:
    assert newest(tmp_path) is None
    for iteration in (1, 2, 2):
        place = write(tmp_path, make(iteration))
        assert newest(tmp_path) == place.resolve()
    assert read_state(tmp_path / "latest").iteration == 2


def test_checkpoints_of_a_fenced_learner_are_neither_written_nor_removed(tmp_path: Path) -> None:
    write(tmp_path, make(5, epoch=1))
    place = write(tmp_path, make(3, epoch=2))
    (tmp_path / ".aside-1").mkdir()  # The newer learner is writing its next one.
    before = sorted(path.name for path in tmp_path.iterdir())
    with pytest.raises(FencedError, match=r"epoch 1 is fenced: .*00000003 is of epoch 2"):
        write(tmp_path, make(6, epoch=1))
    assert newest(tmp_path) == place.resolve()
    assert sorted(path.name for path in tmp_path.iterdir()) == before
    assert read_state(write(tmp_path, make(4, epoch=2))).epoch == 2


def test_checkpoint_is_written_although_latest_is_damaged(tmp_path: Path) -> None:
    (write(tmp_path, make(1)) / "state.json").write_text("{")
    assert read_state(write(tmp_path, make(2))).iteration == 2


def test_a_half_written_checkpoint_is_ignored_and_removed_by_the_next_write(tmp_path: Path) -> None:
    place = write(tmp_path, make(1))
    leftover = tmp_path / ".aside-1"
    leftover.mkdir()
    (leftover / "policy.safetensors").write_bytes(b"half")
    assert newest(tmp_path) == place.resolve()
    write(tmp_path, make(2))
    assert not leftover.exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["00000001", "00000002", "latest"]


def test_checkpoint_renamed_but_not_yet_latest_does_not_block_the_next(tmp_path: Path) -> None:
    first = write(tmp_path, make(1))
    second = write(tmp_path, make(2, run_id="b"))
    (tmp_path / "latest").unlink()
    (tmp_path / "latest").symlink_to(first.name)
    assert read_state(tmp_path / "latest").iteration == 1
    again = write(tmp_path, make(2, run_id="c"))
    assert again != second
    assert read_state(tmp_path / "latest").run_id == "c"


@pytest.mark.parametrize("name", ["policy.safetensors", "optimizer.safetensors", "run.yaml", "state.json"])
@pytest.mark.parametrize("damage", ["missing", "truncated", "flipped"])
def test_checkpoint_with_any_file_damaged_is_refused_by_the_files_name(tmp_path: Path, name: str, damage: str) -> None:
    path = write(tmp_path, make(1)) / name
    data = bytearray(path.read_bytes())
    if damage == "missing":
        path.unlink()
    elif damage == "truncated":
        path.write_bytes(data[:-3])
    else:
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
    for reader in (read_state, read_policy, read):
        with pytest.raises(ConfigError, match=name):
            reader(path.parent)


def test_directory_that_is_no_checkpoint_is_refused_as_such(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="does not exist"):
        read_state(tmp_path / "nothing")


def test_checkpoint_of_an_unknown_format_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path, make(1)) / "state.json"
    content = json.loads(path.read_text()) | {"format": 99}
    path.write_text(json.dumps(content))
    with pytest.raises(ConfigError):
        read_state(path.parent)


def test_best_names_the_best_checkpoint_and_outlives_newer_ones(tmp_path: Path) -> None:
    returns = [1.0, 3.0, 2.0, 2.5]
    for iteration in range(len(returns)):
        best = returns.index(max(returns[: iteration + 1]))
        checkpoint = make(iteration)
        state = replace(checkpoint.state, best_return=returns[best], best_iteration=best)
        write(tmp_path, replace(checkpoint, state=state))
        prune(tmp_path, save_interval=0, keep_interval=0)
    assert read_state(tmp_path / "best").iteration == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["00000001", "00000003", "best", "latest"]


def test_prune_keeps_the_checkpoints_of_save_and_keep_interval_only(tmp_path: Path) -> None:
    for iteration in range(26):
        write(tmp_path, make(iteration))
        prune(tmp_path, save_interval=5, keep_interval=10)
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["00000000", "00000010", "00000020", "00000025", "latest"]
    prune(tmp_path, save_interval=0, keep_interval=10)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["00000025", "latest"]


def test_second_checkpoint_of_one_iteration_replaces_the_first(tmp_path: Path) -> None:
    for iteration in (10, 10, 11):
        write(tmp_path, make(iteration))
    prune(tmp_path, save_interval=5, keep_interval=0)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["00000010.1", "00000011", "latest"]


def test_prune_leaves_a_checkpoint_that_is_held_and_removes_it_later(tmp_path: Path) -> None:
    held, other, _ = (write(tmp_path, make(iteration)) for iteration in (1, 2, 3))
    descriptor = hold(held)
    assert descriptor is not None
    prune(tmp_path, save_interval=0, keep_interval=0)
    assert (held.exists(), other.exists()) == (True, False)
    assert read_state(held).iteration == 1
    os.close(descriptor)
    prune(tmp_path, save_interval=0, keep_interval=0)
    assert not held.exists()
    assert hold(held) is None

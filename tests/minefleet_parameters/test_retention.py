"""Parameters keeps some versions: the newest, the pinned ones, and exactly the tensors that they need."""

import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test
from numpy.typing import NDArray

from minefleet.config import FleetConfig
from minefleet.config.rollout import ReplayBufferConfig, RolloutConfig
from minefleet.core.errors import NotFoundError, OverloadedError
from minefleet.rpc.parameters_client import ParametersClient
from minefleet.rpc.weights.manifest import describe
from minefleet.v1 import parameters_service_pb2, weights_pb2
from minefleet_parameters.role import versions_to_keep
from minefleet_parameters.store import MAX_PINNED, ParameterStore, open_store

Weights = dict[str, NDArray[Any]]
KEEP = 3


def weights_of(number: int) -> Weights:
    """Each version shares a tensor with all others, one with its neighbour, and has one of its own."""
    values = {"frozen": -1, "slow": 1000 + number // 2, "trained": number}
    return {name: np.full(4, value, np.int64) for name, value in values.items()}


def publish(store: ParameterStore, number: int) -> None:
    """Publishes `weights_of(number)` as version `number`."""
    manifest, parts = describe(weights_of(number))
    header = parameters_service_pb2.PublishHeader(
        run_id="run", epoch=store.identity.epoch, expected_version=number - 1, manifest=manifest
    )
    upload = store.begin(header)
    upload.start()
    upload.write(weights_pb2.TensorPiece(digest=digest, data=part.tobytes()) for digest, part in parts.items())
    assert store.commit(upload) == number
    upload.close()


def assert_whole(store: ParameterStore, directory: Path) -> None:
    """Every kept version can be read, and what lies in the directory is what they need."""
    needed = set()
    for number in store.kept:
        for entry in store.version(number).manifest.tensors:
            data = store.read_whole(number, entry).tobytes()
            assert data == weights_of(number)[entry.name].tobytes()
            needed.add(entry.digest)
    assert {path.stem for path in (directory / "tensors").iterdir()} == needed == store.tensors.held
    assert {path.stem for path in (directory / "versions").iterdir()} == set(map(str, store.kept))


class Retention(RuleBasedStateMachine):
    """A store, and what it should keep."""

    def __init__(self) -> None:
        super().__init__()
        self.open_directory = ExitStack()
        self.directory = Path(self.open_directory.enter_context(tempfile.TemporaryDirectory()))
        self.opened = ExitStack()
        self.store = self.opened.enter_context(open_store(self.directory, keep=KEEP))
        self.store.open_epoch("run", 0, 0)
        self.published = 0
        self.pinned: set[int] = set()
        self.kept: set[int] = set()

    def teardown(self) -> None:
        self.opened.close()
        self.open_directory.close()

    @rule()
    def publish(self) -> None:
        self.published += 1
        publish(self.store, self.published)
        self.kept.add(self.published)
        self.expire()

    @precondition(lambda self: self.published)
    @rule(back=st.integers(0, 6))
    def pin(self, back: int) -> None:
        number = self.published - back
        if number in self.kept:
            assert self.store.pin(number).pinned
            self.pinned.add(number)
        elif number > 0:
            with pytest.raises(NotFoundError, match=f"the oldest available is {min(self.kept)}"):
                self.store.pin(number)

    @rule(back=st.integers(0, 8))
    def unpin(self, back: int) -> None:
        number = max(self.published - back, 1)
        self.pinned.discard(number)
        self.expire()
        info = self.store.unpin(number)
        assert (info.version, info.pinned, info.tensors) == (number, False, 3 if number in self.kept else 0)

    @rule()
    def sweep(self) -> None:
        self.store.purge()

    @rule()
    def restart(self) -> None:
        """Closing writes nothing: it is found as a crash would leave it, between a pin and the next sweep for one."""
        self.opened.close()
        self.store = self.opened.enter_context(open_store(self.directory, keep=KEEP))

    @invariant()
    def keeps_the_newest_and_the_pinned(self) -> None:
        assert set(self.store.kept) == self.kept
        assert {number for number in self.store.kept if self.store.info(number).pinned} == self.pinned

    @invariant()
    def holds_what_these_need(self) -> None:
        self.store.purge()
        assert_whole(self.store, self.directory)

    def expire(self) -> None:
        self.kept &= {*range(self.published - KEEP + 1, self.published + 1)} | self.pinned


class LazyRetention(Retention):
    """The same, where only the rule sweeps: expired versions lie around when it is restarted."""

    @invariant()
    def holds_what_these_need(self) -> None:
        assert {
            entry.digest for number in self.store.kept for entry in self.store.version(number).manifest.tensors
        } == (self.store.tensors.held)

    def teardown(self) -> None:
        self.restart()
        assert_whole(self.store, self.directory)
        super().teardown()


@pytest.mark.parametrize("machine", [Retention, LazyRetention])
def test_the_newest_and_the_pinned_versions_are_kept_with_exactly_their_tensors_whatever_happens(
    machine: type[Retention],
) -> None:
    run_state_machine_as_test(machine, settings=settings(max_examples=15, stateful_step_count=25, deadline=None))


@pytest.mark.parametrize(("max_staleness", "expected"), [(0, 8), (6, 8), (7, 9), (30, 32)])
def test_versions_to_keep_cover_every_chunk_that_may_be_used(max_staleness: int, expected: int) -> None:
    replay = ReplayBufferConfig(max_staleness=max_staleness)
    config = FleetConfig(rollout_config=RolloutConfig(replay_buffer_config=replay))
    assert versions_to_keep(config) == expected >= max_staleness + 2


def test_pin_beyond_the_bound_is_refused_and_pinning_again_counts_once(tmp_path: Path) -> None:
    with open_store(tmp_path, keep=1) as store:
        store.open_epoch("run", 0, 0)
        for number in range(1, MAX_PINNED + 2):
            publish(store, number)
            if number <= MAX_PINNED:
                store.pin(number)
        with pytest.raises(OverloadedError, match=f"{MAX_PINNED} versions are pinned, more may not be; unpin one"):
            store.pin()
        assert store.pin(7).pinned
        store.unpin(7)
        assert store.pin().version == MAX_PINNED + 1
        assert store.kept == [number for number in range(1, MAX_PINNED + 2) if number != 7]


def test_a_pin_of_a_version_that_was_removed_by_hand_takes_no_place(tmp_path: Path) -> None:
    with open_store(tmp_path, keep=2) as store:
        store.open_epoch("run", 0, 0)
        publish(store, 1)
        store.pin(1)
        publish(store, 2)
    (tmp_path / "versions/1.json").unlink()
    with open_store(tmp_path, keep=2) as store:
        store.pin(2)
        assert store.identity.pinned == (2,)


def test_parameters_clients_list_pin_and_unpin_versions(tmp_path: Path, run_parameters: Callable[..., Any]) -> None:
    with run_parameters(tmp_path, keep=2) as parameters, ExitStack() as stack:
        learner: ParametersClient = parameters.client()
        actor: ParametersClient = parameters.client()
        stack.callback(learner.close)
        stack.callback(actor.close)
        assert actor.versions() == []
        assert actor.unpin().version == 0
        with pytest.raises(NotFoundError, match="no version has been published yet"):
            actor.pin()
        learner.open_epoch("run")
        learner.publish(weights_of(1), iteration=10)
        assert actor.pin().version == 1
        for number in (2, 3, 4):
            learner.publish(weights_of(number), iteration=10 * number)
        listed = actor.versions()
        assert [(info.version, info.iteration, info.epoch, info.pinned) for info in listed] == [
            (1, 10, 1, True),
            (3, 30, 1, False),
            (4, 40, 1, False),
        ]
        assert {(info.tensors, info.size_bytes, info.run_id) for info in listed} == {(3, 96, "run")}
        assert listed[0].publish_time < listed[1].publish_time < listed[2].publish_time
        assert actor.fetch(1)[1].keys() == weights_of(1).keys()
        with pytest.raises(NotFoundError, match="version 2 is not there; the oldest available is 1, the newest 4"):
            actor.pin(2)
        assert actor.unpin(1).tensors == 0
        assert [info.version for info in actor.versions()] == [3, 4]
        assert parameters.figure("kept_versions") == 2

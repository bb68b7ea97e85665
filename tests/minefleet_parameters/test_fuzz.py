"""Parameters answers any bytes with a status that it documents, serves on and leaves nothing behind."""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.fuzzing import messages, mutated
from tests.parameters_process import header_of, messages_of, pieces_of, weights_of
from tests.role_process import TIMEOUT_S, wait_for

from minefleet.core.protobuf_dtypes import NUMPY_DTYPES
from minefleet.rpc.channel import connect
from minefleet.rpc.message_pieces import PIECE_BYTES
from minefleet.rpc.weights.manifest import architecture_fingerprint
from minefleet.v1 import parameters_service_pb2 as pb
from minefleet.v1 import weights_pb2

SERVICE = pb.DESCRIPTOR.services_by_name["ParametersService"]
STATUSES = {
    grpc.StatusCode.OK,
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.ABORTED,
}
RUN = "run-1"
SIZE_BYTES = 3 * PIECE_BYTES
FUZZ = settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


class Target:
    """A server, called without serializers."""

    def __init__(self, parameters: Any, directory: Path, channel: Any) -> None:
        self.parameters = parameters
        self.directory = directory
        self.channel = channel
        self.learner = parameters.client()
        self.epoch = 0
        self.newest = 0

    def open(self) -> None:
        """Opens an epoch, whatever epochs others have opened, and publishes."""
        opened = self.learner.open_epoch(RUN)
        self.epoch = opened.epoch
        self.newest = self.learner.publish(weights_of(self.epoch, SIZE_BYTES), iteration=self.epoch)

    def send(self, method: str, *requests: bytes) -> grpc.StatusCode:
        """Calls a method with these bytes; the status must be one that it may give."""
        path = f"/{SERVICE.full_name}/{method}"
        try:
            if method == "Publish":
                self.channel.stream_unary(path)(iter(requests), timeout=TIMEOUT_S)
            elif method == "Watch":
                call = self.channel.unary_stream(path)(requests[0], timeout=TIMEOUT_S)
                next(call)
                call.cancel()
            else:
                list(self.channel.unary_stream(path)(requests[0], timeout=TIMEOUT_S))
        except grpc.RpcError as error:
            assert isinstance(error, grpc.Call)
            assert error.code() in STATUSES, error
            return error.code()
        return grpc.StatusCode.OK

    def publish(self, header: pb.PublishHeader, pieces: Sequence[weights_pb2.TensorPiece]) -> grpc.StatusCode:
        return self.send("Publish", *(message.SerializeToString() for message in messages_of(header, pieces)))

    def header(self, weights: dict[str, Any]) -> pb.PublishHeader:
        """One that follows the newest version."""
        return header_of(weights, expected=self.newest, epoch=self.epoch, run_id=RUN)

    def offer(self) -> dict[str, Any]:
        """Weights that nobody has published."""
        return weights_of(2**40 + self.epoch, SIZE_BYTES)

    def check(self) -> None:
        """The newest version is whole, the next publish goes through, and nothing lies about."""
        with closing(self.parameters.client()) as actor:
            assert actor.fetch()[0].version >= self.newest
            self.open()
            info, weights = actor.fetch()
            assert info.version == self.newest
            assert all((weights[name] == array).all() for name, array in weights_of(self.epoch, SIZE_BYTES).items())
        wait_for(lambda: not list((self.directory / "incoming").iterdir()) and self.tensors() == self.needed())

    def tensors(self) -> set[str]:
        return {path.stem for path in (self.directory / "tensors").iterdir()}

    def needed(self) -> set[str]:
        store = self.parameters.store
        return {entry.digest for number in store.kept for entry in store.version(number).manifest.tensors}


@pytest.fixture
def target(tmp_path: Path, run_parameters: Callable[..., Any]) -> Iterator[Target]:
    directory = tmp_path / "parameters"
    with run_parameters(directory, keep=3) as parameters, connect(parameters.address) as channel:
        target = Target(parameters, directory, channel)
        with closing(target.learner):
            target.open()
            yield target


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", ["half", "trained", "scale"])
def test_weights_that_are_not_finite_are_refused_whatever_their_type(target: Target, name: str, value: float) -> None:
    weights = weights_of(0, SIZE_BYTES)
    weights[name].flat[-1] = value
    assert target.publish(target.header(weights), pieces_of(weights)) is grpc.StatusCode.INVALID_ARGUMENT
    target.check()


@FUZZ
@given(data=st.data())
def test_publish_with_pieces_missing_doubled_cut_or_reordered_leaves_the_store_usable(
    target: Target, data: st.DataObject
) -> None:
    weights = target.offer()
    whole = pieces_of(weights)
    order = data.draw(st.lists(st.sampled_from(range(len(whole))), max_size=2 * len(whole)))
    cuts = data.draw(st.dictionaries(st.sampled_from(range(len(whole))), st.integers(0, PIECE_BYTES), max_size=2))
    sent = [
        weights_pb2.TensorPiece(
            digest=whole[index].digest, offset=whole[index].offset, data=whole[index].data[: cuts.get(index)]
        )
        for index in order
    ]
    target.publish(target.header(weights), sent)
    target.check()


@FUZZ
@given(data=st.data())
def test_publish_with_any_header_field_changed_leaves_the_store_usable(target: Target, data: st.DataObject) -> None:
    weights = target.offer()
    header = target.header(weights)
    change: Any = data.draw(messages(pb.PublishHeader.DESCRIPTOR))
    if data.draw(st.booleans()):
        header.manifest.ClearField("tensors")
    header.MergeFrom(change)
    target.publish(header, pieces_of(weights))
    target.check()


def _fingerprint(manifest: weights_pb2.Manifest) -> str:
    """The right one, where there is one."""
    known = {number: dtype.name for number, dtype in NUMPY_DTYPES.items()}
    return architecture_fingerprint((entry.name, known.get(entry.dtype, ""), entry.shape) for entry in manifest.tensors)


@FUZZ
@given(data=st.data())
def test_publish_with_an_altered_manifest_leaves_the_store_usable(target: Target, data: st.DataObject) -> None:
    weights = target.offer()
    header = target.header(weights)
    entry = header.manifest.tensors[data.draw(st.integers(0, len(weights) - 1))]
    changed: Any = data.draw(messages(weights_pb2.TensorEntry.DESCRIPTOR))
    for field, _ in changed.ListFields():
        if data.draw(st.booleans()):
            entry.ClearField(field.name)
            entry.MergeFrom(weights_pb2.TensorEntry(**{field.name: getattr(changed, field.name)}))
    header.manifest.architecture_fingerprint = _fingerprint(header.manifest)
    target.publish(header, pieces_of(weights))
    target.check()


@FUZZ
@given(data=st.data())
def test_publish_with_any_bytes_changed_leaves_the_store_usable(target: Target, data: st.DataObject) -> None:
    weights = target.offer()
    sent = [message.SerializeToString() for message in messages_of(target.header(weights), pieces_of(weights))]
    index = data.draw(st.sampled_from([0, 0, *range(len(sent))]))
    sent[index] = data.draw(mutated(sent[index]))
    target.send("Publish", *sent)
    target.check()


@pytest.mark.parametrize(("epoch", "version"), [(2**64 - 1, 0), (0, 2**64 - 1), (2**31 + 1, 0), (0, 2**32)])
def test_open_epoch_with_numbers_too_large_is_refused_and_issues_nothing(
    target: Target, epoch: int, version: int
) -> None:
    request = pb.OpenEpochRequest(run_id=RUN, epoch=epoch, version=version)
    assert target.send("OpenEpoch", request.SerializeToString()) is grpc.StatusCode.INVALID_ARGUMENT
    before = target.epoch
    target.check()
    assert target.epoch == before + 1


def _some(whole: Sequence[pb.PublishRequest], sent: threading.Event, over: threading.Event) -> Iterator[bytes]:
    for message in whole:
        yield message.SerializeToString()
    sent.set()
    over.wait()


def test_publish_whose_caller_hangs_up_after_any_message_leaves_nothing(target: Target) -> None:
    publish = target.channel.stream_unary(f"/{SERVICE.full_name}/Publish")
    for count in range(len(pieces_of(target.offer())) + 2):
        whole = messages_of(target.header(target.offer()), pieces_of(target.offer()))
        sent, hung_up = threading.Event(), threading.Event()

        call = publish.future(_some(whole[:count], sent, hung_up), timeout=TIMEOUT_S)
        sent.wait()
        call.cancel()
        hung_up.set()
        target.check()

"""Valid calls to parameters with almost valid ones among them: every version that is kept stays as it was published."""

from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from tests.fuzz.contracts import PARAMETERS, methods_of
from tests.fuzz.fleet import send
from tests.fuzz.logs import errors
from tests.fuzzing import EXTENTS, fuzz_steps, messages, mutated
from tests.minefleet_parameters.conftest import running
from tests.parameters_process import RUN, header_of, messages_of, pieces_of, weights_of

from minefleet.rpc.channel import connect
from minefleet.v1 import parameters_service_pb2 as pb

EXAMPLES, STEPS = 25, 20
TIMEOUT_S = 30.0
SIZE_BYTES = 256
METHODS = {method.name: method for method in methods_of(PARAMETERS)}
Parts = dict[str, bytes]


class Sequences(RuleBasedStateMachine):
    """Parameters, a learner and an actor, and somebody who changes what they send."""

    def __init__(self) -> None:
        super().__init__()
        self.stack = ExitStack()
        directory = Path(self.stack.enter_context(TemporaryDirectory()))
        self.errors = self.stack.enter_context(errors())
        self.parameters = self.stack.enter_context(running(directory, keep=3))
        self.channel: Any = self.stack.enter_context(connect(self.parameters.address))
        self.epoch = self.version = self.seed = 0
        self.published: dict[int, Parts] = {}
        # Without a version, a Watch waits for the first.
        self.publish()

    def header(self) -> pb.PublishHeader:
        return header_of(weights_of(self.seed, SIZE_BYTES), expected=self.version, epoch=self.epoch, run_id=RUN)

    @rule()
    def open_epoch(self) -> None:
        request = pb.OpenEpochRequest(run_id=RUN)
        (answer,) = self.ask("OpenEpoch", pb.OpenEpochResponse, request)
        assert answer.epoch > self.epoch
        assert answer.newest_version >= self.version
        # Somebody who changes what the learner sends may name a checkpoint of a later version.
        self.epoch, self.version = answer.epoch, answer.newest_version

    def ask(self, method: str, kind: Any, *requests: Any) -> list[Any]:
        """The answer to a valid call."""
        sent = iter([request.SerializeToString() for request in requests])
        return [
            kind.FromString(answer)
            for answer in self.channel.stream_stream(METHODS[method].path)(sent, timeout=TIMEOUT_S)
        ]

    @rule()
    def publish(self) -> None:
        self.open_epoch()
        self.seed += 1
        pieces = pieces_of(weights_of(self.seed, SIZE_BYTES))
        (answer,) = self.ask("Publish", pb.PublishResponse, *messages_of(self.header(), pieces))
        self.version = answer.version
        self.published[answer.version] = {piece.digest: piece.data for piece in pieces}

    @rule()
    def pin(self) -> None:
        self.ask("Pin", pb.PinResponse, pb.PinRequest(version=max(self.parameters.store.kept), pinned=True))

    @rule(data=st.data(), method=st.sampled_from(sorted(METHODS)), version=st.integers(0, 4))
    def almost(self, data: st.DataObject, method: str, version: int) -> None:
        """A call with real numbers and digests in it, of which anything is changed."""
        requests: list[Any] = self.real(method, version)
        known: dict[str, Any] = {"run_id": [RUN], "epoch": [self.epoch], "digest": sorted(self.digests())}
        place = data.draw(st.integers(0, len(requests) - 1))
        if data.draw(st.booleans()):
            requests[place].MergeFrom(data.draw(messages(METHODS[method].request, known)))
        sent = [request.SerializeToString() for request in requests]
        if data.draw(st.booleans()):
            sent[place] = data.draw(mutated(sent[place]))
        send(self.channel, METHODS[method], sent)

    def digests(self) -> set[str]:
        return {digest for parts in self.published.values() for digest in parts} or {"0" * 32}

    def real(self, method: str, version: int) -> list[Any]:
        """Requests that would be served, were they not changed; a publish lacks its last piece."""
        if method == "Publish":
            pieces = pieces_of(weights_of(2**20, SIZE_BYTES))
            header = self.header()
            header.manifest.CopyFrom(header_of(weights_of(2**20, SIZE_BYTES), expected=0).manifest)
            return list(messages_of(header, pieces[:-1]))
        ranges = [pb.TensorRange(digest=digest) for digest in sorted(self.published.get(version, {}))]
        kinds: dict[str, Any] = {
            "OpenEpoch": lambda: pb.OpenEpochRequest(run_id=RUN),
            "Watch": lambda: pb.WatchRequest(watcher="w", running_version=version, can_film=bool(version % 2)),
            "Fetch": lambda: pb.FetchRequest(version=version, ranges=ranges),
            "ListVersions": pb.ListVersionsRequest,
            "Pin": lambda: pb.PinRequest(version=version, pinned=bool(version % 2)),
        }
        return [kinds[method]()]

    @invariant()
    def what_is_kept_is_what_was_published(self) -> None:
        for number in self.parameters.store.kept:
            assert self.fetched(number) == self.published[number]

    def fetched(self, number: int) -> Parts:
        """A version's tensors, byte for byte."""
        ranges = [pb.TensorRange(digest=digest) for digest in sorted(self.published[number])]
        found: Parts = {}
        answers = self.ask("Fetch", pb.FetchResponse, pb.FetchRequest(version=number, ranges=ranges))
        for piece in (piece for answer in answers for piece in answer.pieces):
            found[piece.digest] = found.get(piece.digest, b"") + piece.data
        return found

    def teardown(self) -> None:
        with self.stack:
            self.publish()
            self.what_is_kept_is_what_was_published()
            self.stack.close()
            assert self.errors == []


@EXTENTS
def test_parameters_survive_sequences_of_valid_and_almost_valid_calls(extent: int) -> None:
    fuzz_steps(extent, EXAMPLES, STEPS, Sequences)

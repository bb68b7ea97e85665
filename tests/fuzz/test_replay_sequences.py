"""Valid calls to replay with almost valid ones among them: whatever is stored stays as it is, and the books balance."""

from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import grpc
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from tests.fuzz.contracts import REPLAY, methods_of
from tests.fuzz.fleet import send
from tests.fuzz.logs import errors
from tests.fuzzing import EXTENTS, fuzz_steps, messages, mutated
from tests.minefleet_replay.conftest import RUN, Server
from tests.minefleet_replay.recount import recount

from minefleet.rpc.channel import connect
from minefleet.rpc.codec import checksum
from minefleet.v1 import replay_service_pb2 as pb
from minefleet.v1 import replay_service_pb2_grpc
from minefleet.v1.fragment_pb2 import ChunkName

EXAMPLES, STEPS = 25, 25
TIMEOUT_S = 30.0
METHODS = {method.name: method for method in methods_of(REPLAY)}
STREAMS = ("a", "b")
PAYLOADS = (b"", b"payload", b"other", bytes(2**20), bytes(2**20 + 1))
NUMBERS = st.integers(0, 9)
STALENESS = "rollout_config.replay_buffer_config.max_staleness"
SETTINGS = st.sampled_from(["", "", f'{{"{STALENESS}": 3}}', f'{{"{STALENESS}": "3"}}', "{", "[[1, 2]]", "[" * 10**5])


class Sequences(RuleBasedStateMachine):
    """A replay, an actor and a learner, and somebody who changes what they send."""

    def __init__(self) -> None:
        super().__init__()
        self.stack = ExitStack()
        directory = Path(self.stack.enter_context(TemporaryDirectory()))
        self.errors = self.stack.enter_context(errors())
        self.server = Server(directory, max_staleness=9, max_reuse=2)
        self.replay = self.stack.enter_context(self.server.serve())
        self.replay.bind(RUN)
        self.channel: Any = self.stack.enter_context(connect(self.server.address))
        self.stub = replay_service_pb2_grpc.ReplayServiceStub(self.channel)
        self.stored: dict[tuple[str, int], bytes] = {}
        self.leases: set[int] = set()

    def learner(self) -> pb.Learner:
        epoch = max(1, self.replay.transactions.state.run_state.epoch)
        return pb.Learner(run_id=RUN, epoch=epoch, version=1, resumed_version=0, first_version=1)

    def fragment(self, stream: str, sequence: int, payload: bytes) -> pb.AppendRequest:
        request = pb.AppendRequest(parts=[pb.AppendPart(header=self.server.header(stream, sequence, payload))])
        request.parts.extend(pb.AppendPart(payload=payload[at : at + 2**20]) for at in range(0, len(payload), 2**20))
        return request

    def call(self, method: str, request: Any) -> Any:
        """The answer, or None where the call is refused as its contract says."""
        try:
            sent = iter([request]) if method == "Append" else request
            return getattr(self.stub, method)(sent, timeout=TIMEOUT_S)
        except grpc.RpcError as error:
            assert isinstance(error, grpc.Call)
            assert error.code() in METHODS[method].statuses, error
            return None

    @rule(stream=st.sampled_from(STREAMS), sequence=NUMBERS, payload=st.sampled_from(PAYLOADS))
    def append(self, stream: str, sequence: int, payload: bytes) -> None:
        answer = self.call("Append", self.fragment(stream, sequence, payload))
        if answer is not None and answer.outcomes[0] != pb.APPEND_OUTCOME_EXPIRED:
            assert self.stored.setdefault((stream, sequence), payload) == payload

    @rule(number=NUMBERS, steps=st.integers(1, 2), order=st.integers(0, 3), settings=SETTINGS)
    def lease(self, number: int, steps: int, order: Any, settings: str) -> None:
        request = pb.LeaseRequest(learner=self.learner(), lease=number, steps=steps, use_version=1, order=order)
        request.settings = settings
        answer = self.call("Lease", request)
        if answer is not None and answer.chunks:
            assert sum(chunk.fragments for chunk in answer.chunks) == steps or number in self.leases
            self.leases.add(number)

    @rule(number=NUMBERS)
    def read(self, number: int) -> None:
        try:
            answers = list(self.stub.Read(pb.ReadRequest(learner=self.learner(), lease=number), timeout=TIMEOUT_S))
        except grpc.RpcError as error:
            assert isinstance(error, grpc.Call) and error.code() in METHODS["Read"].statuses, error
            return
        found: list[tuple[Any, bytearray]] = []
        for part in (part for answer in answers for part in answer.parts):
            assert not part.HasField("missing")
            if part.HasField("header"):
                found.append((part.header, bytearray()))
            else:
                found[-1][1].extend(part.payload)
        for header, payload in found:
            name = header.name.stream, header.name.sequence
            assert checksum(bytes(payload)) == header.checksum
            assert bytes(payload) == self.stored.get(name, bytes(payload))

    @rule(number=NUMBERS, how=st.sampled_from(["Ack", "Release"]))
    def close(self, number: int, how: str) -> None:
        request = pb.AckRequest if how == "Ack" else pb.ReleaseRequest
        self.call(how, request(learner=self.learner(), lease=number))

    @rule()
    def take_over(self) -> None:
        learner = self.learner()
        learner.epoch += 1
        self.call("ReadEpisodes", pb.ReadEpisodesRequest(learner=learner, limit=9))
        self.leases.clear()

    @rule(data=st.data(), method=st.sampled_from(sorted(METHODS)), number=NUMBERS, stream=st.sampled_from(STREAMS))
    def almost(self, data: st.DataObject, method: str, number: int, stream: str) -> None:
        """A call with real names in it, of which anything is changed."""
        request: Any = self.real(method, stream, number)
        known: dict[str, Any] = {"run_id": [RUN], "stream": STREAMS, "epoch": [self.learner().epoch]}
        if data.draw(st.booleans()):
            request.MergeFrom(data.draw(messages(METHODS[method].request, known)))
        sent = request.SerializeToString()
        if data.draw(st.booleans()):
            sent = data.draw(mutated(sent))
        self.note(send(self.channel, METHODS[method], [sent]), method, sent)

    def real(self, method: str, stream: str, number: int) -> Any:
        """A request that would be served."""
        learner = self.learner()
        name = ChunkName(stream=stream, chunk=number)
        kinds: dict[str, Any] = {
            "Append": lambda: self.fragment(stream, 10 + number, b"another"),
            "Reserve": lambda: pb.ReserveRequest(run_id=RUN, policy_version=1, chunks=[name]),
            "Lease": lambda: pb.LeaseRequest(learner=learner, lease=number, steps=1, use_version=1),
            "Read": lambda: pb.ReadRequest(learner=learner, lease=number, chunks=[name]),
            "Ack": lambda: pb.AckRequest(learner=learner, lease=number),
            "Release": lambda: pb.ReleaseRequest(learner=learner, lease=number),
            "ReadEpisodes": lambda: pb.ReadEpisodesRequest(learner=learner, limit=number),
            "WhyDropped": lambda: pb.WhyDroppedRequest(stream=stream, limit=number),
            "CountSteps": lambda: pb.CountStepsRequest(streams=[stream]),
        }
        return kinds[method]()

    def note(self, code: grpc.StatusCode, method: str, sent: bytes) -> None:
        """Takes over what a changed call may have stored under a name that valid calls use."""
        if code is grpc.StatusCode.OK and method == "Append":
            for part in pb.AppendRequest.FromString(sent).parts:
                self.stored.pop((part.header.name.stream, part.header.name.sequence), None)

    @invariant()
    def the_books_balance(self) -> None:
        assert list(recount(self.replay.transactions.store).faults()) == []

    def teardown(self) -> None:
        with self.stack:
            assert self.call("Reserve", pb.ReserveRequest(run_id=RUN, policy_version=1)) is not None
            assert self.call("Append", self.fragment("after", 0, b"payload")) is not None
            self.stack.close()
            assert self.errors == []


@EXTENTS
def test_replay_survives_sequences_of_valid_and_almost_valid_calls(extent: int) -> None:
    fuzz_steps(extent, EXAMPLES, STEPS, Sequences)

"""Asks actors what their slots do and show, and replay what became of their steps."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import grpc
import numpy as np
from numpy.typing import NDArray

from minefleet.core.errors import ContractError, DeadlineError, UnavailableError
from minefleet.monitoring.status import TIMEOUT_S
from minefleet.rpc.channel import connect
from minefleet.rpc.credentials import Credentials
from minefleet.rpc.durations import in_seconds
from minefleet.rpc.enum_names import role_word, slot_state_word
from minefleet.rpc.rpc_errors import translated
from minefleet.v1 import (
    replay_service_pb2,
    replay_service_pb2_grpc,
    slots_service_pb2,
    slots_service_pb2_grpc,
    status_service_pb2,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class SlotFailure:
    """The last failure of a slot's environments."""

    kind: str
    text: str
    """An error with its traceback, or the end of its output."""
    age_s: float
    has_frame: bool
    """Whether the last picture before it is kept."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SlotStatus:
    """One environment's place in an actor, as it is now."""

    slot: int
    state: str
    """"stepping", "resetting", "resting", "ready", "blocked" or "bootstrapping"."""
    reason: str
    """The lack that blocks a slot: "grant", "room", "weights", "pace" or "balance"; else empty."""
    age_s: float
    """Seconds since its environment was last given something to do."""
    task: str
    episode_steps: int
    episode_return: float
    version: int
    """That decided its last step; 0 before the first."""
    value: float | None
    """The policy's, in reward units, of what the last step was decided on."""
    action: str
    """The last one, for people."""
    step_s: float | None
    """Usual seconds of its steps."""
    failures: int
    """Failures of its environments since the actor started."""
    last_failure: SlotFailure | None
    stream: str
    """The stream that its steps go to."""


class StreamSteps(NamedTuple):
    """Steps of a stream that are done with, as replay has counted them since it started."""

    trained_steps: int
    """Those that were trained on."""
    dropped_steps: int
    """Those that left without."""

    @property
    def trained_share(self) -> float | None:
        """The share that was trained on; None where there are none."""
        settled_steps = self.trained_steps + self.dropped_steps
        return self.trained_steps / settled_steps if settled_steps else None


def list_slots(card: Mapping[str, Any], credentials: Credentials) -> list[SlotStatus]:
    """The slots of the actor that left this card, by number.

    Raises:
        FleetError: If it does not answer, has not started its environments, or is of an older version without slots.
    """
    request = slots_service_pb2.ListSlotsRequest()
    with _channel(card, credentials) as channel:
        answer = slots_service_pb2_grpc.SlotsServiceStub(channel).ListSlots(request, timeout=TIMEOUT_S)
    return [_status(number, slot) for number, slot in enumerate(answer.slots)]


def get_frame(
    card: Mapping[str, Any], credentials: Credentials, slot: int, *, before_failure: bool = False
) -> NDArray[np.uint8]:
    """The picture that a slot shows, or the last one before its last failure.

    [H, W, 3] uint8; without pixels where the slot has only begun to render.

    Raises:
        FleetError: If the actor does not answer, or has no such picture.
    """
    request = slots_service_pb2.GetFrameRequest(slot=slot, before_failure=before_failure)
    with _channel(card, credentials) as channel:
        answer = slots_service_pb2_grpc.SlotsServiceStub(channel).GetFrame(request, timeout=TIMEOUT_S)
    return np.frombuffer(answer.pixels, np.uint8).reshape(answer.height, answer.width, 3)


def count_steps(card: Mapping[str, Any], credentials: Credentials, streams: Sequence[str]) -> dict[str, StreamSteps]:
    """The steps of the streams, among these, that the replay which left this card knows.

    Raises:
        FleetError: If replay does not answer.
    """
    request = replay_service_pb2.CountStepsRequest(streams=streams)
    with _channel(card, credentials) as channel:
        answer = replay_service_pb2_grpc.ReplayServiceStub(channel).CountSteps(request, timeout=TIMEOUT_S)
    return {one.name: StreamSteps(one.trained, sum(one.dropped.values())) for one in answer.streams}


@contextmanager
def _channel(card: Mapping[str, Any], credentials: Credentials) -> Iterator[grpc.Channel]:
    if not card["address"]:
        raise UnavailableError("it has opened no port yet")
    peer = role_word(status_service_pb2.Role.Value(card["role"]))
    try:
        with connect(card["address"], peer, credentials) as channel, translated():
            try:
                yield channel
            except grpc.RpcError as error:
                if error.code() is grpc.StatusCode.UNIMPLEMENTED:
                    raise ContractError(f"this {peer} is of an older version: it shows no slots") from error
                raise
    except DeadlineError as error:
        raise DeadlineError(f"it does not answer within {TIMEOUT_S:g} s") from error


def _status(number: int, slot: slots_service_pb2.Slot) -> SlotStatus:
    failure = slot.last_failure
    return SlotStatus(
        slot=number,
        state=slot_state_word(slot.state),
        reason=slot.reason,
        age_s=in_seconds(slot.age),
        task=slot.task,
        episode_steps=slot.episode_steps,
        episode_return=slot.episode_return,
        version=slot.policy_version,
        value=slot.value if slot.HasField("value") else None,
        action=slot.action,
        step_s=in_seconds(slot.step) if slot.HasField("step") else None,
        failures=slot.failures,
        last_failure=SlotFailure(
            kind=failure.kind, text=failure.text, age_s=in_seconds(failure.age), has_frame=failure.has_frame
        )
        if slot.HasField("last_failure")
        else None,
        stream=slot.stream,
    )

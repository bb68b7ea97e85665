"""Asks actors what their slots do and show."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import grpc
import numpy as np
from numpy.typing import NDArray

from minefleet.core.errors import ContractError, UnavailableError
from minefleet.monitoring.status import TIMEOUT_S
from minefleet.rpc.channel import connect
from minefleet.rpc.credentials import Credentials
from minefleet.rpc.durations import in_seconds
from minefleet.rpc.enum_names import slot_state_word
from minefleet.rpc.rpc_errors import translated
from minefleet.v1 import slots_service_pb2, slots_service_pb2_grpc


@dataclass(frozen=True, kw_only=True, slots=True)
class SlotFailure:
    """The last failure of a slot's environments."""

    kind: str
    text: str
    """An error with its traceback, or the end of its output."""
    age_s: float


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


def list_slots(card: Mapping[str, Any], credentials: Credentials) -> list[SlotStatus]:
    """The slots of the actor that left this card, by number.

    Raises:
        FleetError: If it does not answer, has not started its environments, or is of an older version without slots.
    """
    with _stub(card, credentials) as stub:
        answer = stub.ListSlots(slots_service_pb2.ListSlotsRequest(), timeout=TIMEOUT_S)
    return [_status(number, slot) for number, slot in enumerate(answer.slots)]


def get_frame(card: Mapping[str, Any], credentials: Credentials, slot: int) -> NDArray[np.uint8]:
    """The picture that a slot shows, [H, W, 3] uint8.

    Raises:
        FleetError: If the actor does not answer, or the slot shows nothing.
    """
    with _stub(card, credentials) as stub:
        answer = stub.GetFrame(slots_service_pb2.GetFrameRequest(slot=slot), timeout=TIMEOUT_S)
    return np.frombuffer(answer.pixels, np.uint8).reshape(answer.height, answer.width, 3)


@contextmanager
def _stub(card: Mapping[str, Any], credentials: Credentials) -> Iterator[slots_service_pb2_grpc.SlotsServiceStub]:
    if not card["address"]:
        raise UnavailableError(f"{card['name']} has opened no port yet")
    with connect(card["address"], "actor", credentials) as channel, translated():
        try:
            yield slots_service_pb2_grpc.SlotsServiceStub(channel)
        except grpc.RpcError as error:
            if error.code() is grpc.StatusCode.UNIMPLEMENTED:
                raise ContractError("this actor is of an older version: it shows no slots") from error
            raise


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
        last_failure=SlotFailure(kind=failure.kind, text=failure.text, age_s=in_seconds(failure.age))
        if slot.HasField("last_failure")
        else None,
    )

"""The words for what the wire has numbers for: a role is "actor", a state "running"; "unknown" for a newer peer's."""

from minefleet.v1 import slots_service_pb2, status_service_pb2

UNKNOWN = "unknown"


def role_word(role: status_service_pb2.Role.ValueType) -> str:
    """A role; its certificate and its section of the configuration are in that name."""
    known = role in status_service_pb2.Role.values()
    return _word(status_service_pb2.Role.Name(role)) if known else UNKNOWN


def state_word(state: status_service_pb2.State.ValueType) -> str:
    """A word for a role's state."""
    known = state in status_service_pb2.State.values()
    return _word(status_service_pb2.State.Name(state)) if known else UNKNOWN


def slot_state_word(state: slots_service_pb2.SlotState.ValueType) -> str:
    """A word for a slot's state."""
    known = state in slots_service_pb2.SlotState.values()
    return slots_service_pb2.SlotState.Name(state).removeprefix("SLOT_STATE_").lower() if known else UNKNOWN


def _word(name: str) -> str:
    """Without what the enum puts before all of its names."""
    return name.partition("_")[2].lower()

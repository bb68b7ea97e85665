"""The methods of a service, and the statuses that its .proto file says it answers with."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import grpc
from google.protobuf.descriptor import Descriptor, ServiceDescriptor
from grpc_health.v1 import health_pb2

from minefleet.v1 import (
    parameters_service_pb2,
    replay_service_pb2,
    slots_service_pb2,
    status_service_pb2,
    worlds_service_pb2,
)

PROTOS = Path(__file__).parents[2] / "protos"
REPLAY = replay_service_pb2.DESCRIPTOR.services_by_name["ReplayService"]
PARAMETERS = parameters_service_pb2.DESCRIPTOR.services_by_name["ParametersService"]
SLOTS = slots_service_pb2.DESCRIPTOR.services_by_name["SlotsService"]
WORLDS = worlds_service_pb2.DESCRIPTOR.services_by_name["WorldsService"]
STATUS = status_service_pb2.DESCRIPTOR.services_by_name["StatusService"]
HEALTH = health_pb2.DESCRIPTOR.services_by_name["Health"]

Code: TypeAlias = grpc.StatusCode

WITHOUT_WORDS = {Code.OK, Code.UNIMPLEMENTED}
"""Of every method: no request at all is UNIMPLEMENTED, which gRPC says by itself."""
OF_HEALTH = {Code.NOT_FOUND, Code.INVALID_ARGUMENT, Code.RESOURCE_EXHAUSTED}
"""The contract of health is gRPC's."""


@dataclass(frozen=True, slots=True)
class Method:
    """One method."""

    service: ServiceDescriptor
    name: str
    request: Descriptor
    statuses: frozenset[Code]

    @property
    def path(self) -> str:
        return f"/{self.service.full_name}/{self.name}"

    @property
    def is_endless(self) -> bool:
        """Whether its answers never end."""
        return self.name == "Watch"


def methods_of(*services: ServiceDescriptor) -> list[Method]:
    """Every method of these services."""
    return [method for service in services for method in _methods(service)]


def _methods(service: ServiceDescriptor) -> Iterator[Method]:
    documented = {} if service is HEALTH else _documented(PROTOS / service.file.name)
    for method in service.methods:
        statuses = documented.get(method.name, OF_HEALTH) | WITHOUT_WORDS
        yield Method(service, method.name, method.input_type, frozenset(statuses))


def _documented(path: Path) -> dict[str, set[Code]]:
    """The statuses in the comments above each RPC, and above the service."""
    found: dict[str, set[Code]] = {}
    of_service, comment = set[Code](), ""
    for line in path.read_text().splitlines():
        words = line.split()
        if words[:1] == ["//"]:
            comment += line
            continue
        if words[:1] == ["service"]:
            of_service = _codes(comment)
        elif words[:1] == ["rpc"]:
            found[words[1].partition("(")[0]] = _codes(comment) | of_service
        comment = ""
    return found


def _codes(text: str) -> set[Code]:
    return {code for code in Code if re.search(rf"\b{code.name}\b", text)} - {Code.OK}

"""Reads the fragments of a lease, and goes on where a broken call stood."""

from collections.abc import Callable, Iterator

import grpc

from minefleet.core.errors import InternalError
from minefleet.rpc.replay_types import Name, Packed
from minefleet.v1 import fragment_pb2, replay_service_pb2


class FragmentReader:
    """One Read that is opened again where it stood when it breaks off."""

    def __init__(self, start: Callable[[], Iterator[replay_service_pb2.ReadResponse]]) -> None:
        self._start = start
        self._responses: Iterator[replay_service_pb2.ReadResponse] | None = None
        self._parts: Iterator[replay_service_pb2.ReadPart] = iter(())
        self._done: set[Name] = set()

    def advance(self) -> Packed | fragment_pb2.FragmentName | None:
        """Returns the next fragment that was not returned before, or the name of a missing one; None at the end."""
        if self._responses is None:
            self._responses = self._start()
            self._parts = (part for response in self._responses for part in response.parts)
        try:
            for part in self._parts:
                item = _item(part, self._parts)
                name = item if isinstance(item, fragment_pb2.FragmentName) else item[0].name
                if (name.stream, name.sequence) not in self._done:
                    self._done.add((name.stream, name.sequence))
                    return item
        except grpc.RpcError:
            self._responses = None
            raise
        return None

    def close(self) -> None:
        """Ends a Read that was not read to its end."""
        if isinstance(self._responses, grpc.RpcContext):
            self._responses.cancel()


def _item(
    part: replay_service_pb2.ReadPart, rest: Iterator[replay_service_pb2.ReadPart]
) -> Packed | fragment_pb2.FragmentName:
    if part.WhichOneof("part") == "missing":
        return part.missing
    header, received, received_bytes = part.header, list[bytes](), 0
    while received_bytes < header.payload_bytes:
        piece = next(rest, replay_service_pb2.ReadPart()).payload
        if not piece:
            raise InternalError(f"replay broke off fragment {header.name.stream}/{header.name.sequence}")
        received.append(piece)
        received_bytes += len(piece)
    return header, b"".join(received)

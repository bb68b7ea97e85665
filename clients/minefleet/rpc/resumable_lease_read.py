"""Reads the fragments of a lease, and goes on where a broken call stood."""

from collections.abc import Callable, Iterator
from typing import TypeAlias

import grpc

from minefleet.core.errors import InternalError
from minefleet.rpc.message_pieces import Piece
from minefleet.rpc.payload_message_serializer import parts_in
from minefleet.rpc.replay_types import Name, Packed
from minefleet.v1 import fragment_pb2, replay_service_pb2

ReadPart: TypeAlias = replay_service_pb2.ReadPart | memoryview
NOTHING = replay_service_pb2.ReadPart()


class FragmentReader:
    """One Read that is opened again where it stood when it breaks off."""

    def __init__(self, start: Callable[[], Iterator[replay_service_pb2.ReadResponse | memoryview]]) -> None:
        self._start = start
        self._responses: Iterator[replay_service_pb2.ReadResponse | memoryview] | None = None
        self._parts: Iterator[ReadPart] = iter(())
        self._done: set[Name] = set()

    def advance(self) -> Packed | fragment_pb2.FragmentName | None:
        """Returns the next fragment that was not returned before, or the name of a missing one; None at the end."""
        if self._responses is None:
            self._responses = self._start()
            self._parts = (part for response in self._responses for part in parts_in(response))
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


def _item(part: ReadPart, rest: Iterator[ReadPart]) -> Packed | fragment_pb2.FragmentName:
    if isinstance(part, memoryview):
        raise InternalError("replay sent a piece of no fragment")
    if part.WhichOneof("part") == "missing":
        return part.missing
    header, received, received_bytes = part.header, list[Piece](), 0
    while received_bytes < header.payload_bytes:
        following = next(rest, NOTHING)
        piece = following if isinstance(following, memoryview) else following.payload
        if not piece:
            raise InternalError(f"replay broke off fragment {header.name.stream}/{header.name.sequence}")
        received.append(piece)
        received_bytes += len(piece)
    return header, b"".join(received)

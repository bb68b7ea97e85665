"""A host's stream to its actor."""

import queue
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress

import grpc

from minefleet.core.errors import FleetError, UnavailableError
from minefleet.rpc.message_pieces import bundled
from minefleet.rpc.retrier import StoppedError
from minefleet.rpc.rpc_errors import from_rpc_error
from minefleet.v1 import worlds_service_pb2, worlds_service_pb2_grpc

WELCOME_POLL_S = 1.0


class ActorStream:
    """A stream to the actor, read by a thread."""

    def __init__(self, channel: grpc.Channel, hello: worlds_service_pb2.Hello) -> None:
        self._channel = channel
        self._outbox = queue.SimpleQueue[worlds_service_pb2.PlayRequest | None]()
        self._inbox = queue.SimpleQueue[worlds_service_pb2.PlayResponse | FleetError]()
        self.wake: Callable[[], None] = lambda: None
        """Called by the thread for each message."""
        self._outbox.put(worlds_service_pb2.PlayRequest(hello=hello))
        self._stream = worlds_service_pb2_grpc.WorldsServiceStub(channel).Play(iter(self._outbox.get, None))
        threading.Thread(target=self._read, name="commands", daemon=True).start()

    def welcome(self, stopping: threading.Event) -> worlds_service_pb2.Welcome:
        """Waits for the first message.

        Raises:
            StoppedError: If `stopping` is set before.
            FleetError: If the actor refuses this host, or is away.
        """
        while not stopping.is_set():
            with suppress(queue.Empty):
                return self._legible(self._inbox.get(timeout=WELCOME_POLL_S)).welcome
        raise StoppedError("stopped while waiting for the actor's welcome")

    def take(self) -> list[worlds_service_pb2.Command]:
        """The commands that have come. Raises a `FleetError` where the stream has ended."""
        commands: list[worlds_service_pb2.Command] = []
        while not self._inbox.empty():
            commands.extend(self._legible(self._inbox.get()).commands.commands)
        return commands

    def send(self, results: Iterable[worlds_service_pb2.Result]) -> None:
        """Sends results, some to a message."""
        for bundle in bundled((result, result.ByteSize()) for result in results):
            message = worlds_service_pb2.Results(results=bundle)
            self._outbox.put(worlds_service_pb2.PlayRequest(results=message))

    def close(self) -> None:
        """Ends the stream."""
        self._outbox.put(None)
        self._stream.cancel()
        self._channel.close()

    def _legible(self, message: worlds_service_pb2.PlayResponse | FleetError) -> worlds_service_pb2.PlayResponse:
        if isinstance(message, FleetError):
            raise message
        return message

    def _read(self) -> None:
        end: FleetError = UnavailableError("the actor has ended the stream")
        try:
            for response in self._stream:
                self._inbox.put(response)
                self.wake()
        except grpc.RpcError as error:
            end = from_rpc_error(error)
        self._inbox.put(end)
        self.wake()

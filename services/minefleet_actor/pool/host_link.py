"""One host's stream, as the pool of its actor sees it."""

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from queue import SimpleQueue

import grpc
import numpy as np
from numpy.typing import NDArray

from minefleet.core.errors import FleetError, RejectedError, UnavailableError
from minefleet.core.schema import Schema
from minefleet.core.tree import flatten
from minefleet.rpc.tensor_compression import unpack_bytes
from minefleet.v1 import worlds_service_pb2
from minefleet_actor.pool.pool_results import Failure
from minefleet_env.process_messages import FAILURES, MAX_FRAME_BYTES, Command, EpisodeEnd, Kind
from minefleet_env.shared_slot_arrays import Arrays
from minefleet_env.wrappers.action_mask_rows import allow_nothing, masks_of

MAX_WAITING = 8
"""Messages of a host that may wait for the loop; it is not read from beyond."""
END_TIMEOUT_S = 5.0
"""Time in which a host reads why it is cut off."""
Inbox = SimpleQueue["Arrived | None"]
"""Messages of all hosts, and None for `wake`."""


class WorldFailedError(Exception):
    """A world returned what it must not; the others of its host go on."""


@dataclass(frozen=True, slots=True)
class Arrived:
    """Something has come from a host."""

    link: "HostLink"
    results: worlds_service_pb2.Results | None = None
    """None where the host has just dialled in, or has gone."""
    end: FleetError | None = None
    """The reason for which it has gone."""


@dataclass(frozen=True, slots=True)
class WorldOutcome:
    """The outcome of one world's command."""

    slot: int
    kind: Kind
    ending: EpisodeEnd | None = None
    failure: Failure | None = None


class HostLink:
    """The stream of one host. World i plays for `slots[i]`.

    The loop's thread sends and applies; `read` and `responses` belong to threads of the server.
    """

    def __init__(
        self, name: str, slots: Sequence[int], timeouts_s: Mapping[int, float] | None, cancel: Callable[[], object]
    ) -> None:
        self.name = name
        self.slots = np.asarray(slots, np.intp)
        self._cancel = cancel
        """Cancels the stream's call."""
        self._timeouts_s = timeouts_s
        """The longest that each command may take, seconds; None where the host keeps time itself."""
        self._asked = np.zeros(len(slots), np.uint8)
        """[W] uint8, each world's `Command` under way."""
        self._due_s = np.full(len(slots), np.inf)
        self._outbox = SimpleQueue[worlds_service_pb2.PlayResponse | FleetError | None]()
        self._room = threading.Semaphore(MAX_WAITING)
        self._is_over = False

    def read(self, requests: Iterable[worlds_service_pb2.PlayRequest], inbox: Inbox) -> None:
        """Passes on what the host says, until the stream ends."""
        end: FleetError = UnavailableError(f"host {self.name} has gone")
        try:
            for request in requests:
                self._room.acquire()
                if self._is_over:
                    return
                inbox.put(Arrived(self, request.results))
        except grpc.RpcError:
            pass  # The line broke, or the host died.
        except FleetError as error:
            end = error
        inbox.put(Arrived(self, end=end))

    def responses(self) -> Iterator[worlds_service_pb2.PlayResponse]:
        """Yields what is to be sent, until the link is ended; raises the reason, where it has one."""
        while (response := self._outbox.get()) is not None:
            if isinstance(response, FleetError):
                raise response
            yield response

    def welcome(self, welcome: worlds_service_pb2.Welcome) -> None:
        """Sends the first message."""
        self._outbox.put(worlds_service_pb2.PlayResponse(welcome=welcome))

    def end(self, error: FleetError | None = None) -> None:
        """Ends the stream once what was sent before has left; a host that does not read it is not waited for."""
        self._is_over = True
        self._room.release()  # Nobody applies what still waits.
        self._outbox.put(error)
        timer = threading.Timer(END_TIMEOUT_S, self._cancel)
        timer.daemon = True
        timer.start()

    @property
    def idle(self) -> NDArray[np.bool_]:
        """[W] bool: the worlds without a command under way."""
        is_idle: NDArray[np.bool_] = self._asked == Command.NONE
        return is_idle

    @property
    def due_s(self) -> float:
        """When the first command is overdue, on the monotonic clock."""
        return float(self._due_s.min())

    def send(self, worlds: NDArray[np.intp], commands: NDArray[np.uint8], arrays: Arrays) -> None:
        """Sends commands, one per world; steps with the actions in their slots' rows, resets with the seeds."""
        now_s = time.monotonic()
        message = worlds_service_pb2.Commands()
        for world, command in zip(worlds.tolist(), commands.tolist(), strict=True):
            slot = self.slots[world]
            sent = message.commands.add(world=world, film=bool(arrays.film[slot]))
            if command == Command.STEP:
                sent.actions.extend([leaf[slot].tobytes() for leaf in arrays.action.values()])
            else:
                sent.task = bytes(arrays.task[slot]).decode()
                if arrays.seed[slot] >= 0:
                    sent.seed = int(arrays.seed[slot])
            self._asked[world] = command
            if self._timeouts_s is not None:
                self._due_s[world] = now_s + self._timeouts_s[command]
        self._outbox.put(worlds_service_pb2.PlayResponse(commands=message))

    def apply(self, results: worlds_service_pb2.Results, schema: Schema, arrays: Arrays) -> list[WorldOutcome]:
        """Writes results to their slots' rows.

        Raises:
            RejectedError: If they are none that were asked for.
        """
        self._room.release()
        if not results.results:
            raise RejectedError("every message after Hello must hold results")
        if self._outbox.qsize() > len(self.slots):
            raise RejectedError("commands are answered that have not been read")
        return [self._outcome(result, schema, arrays) for result in results.results]

    def _outcome(self, result: worlds_service_pb2.Result, schema: Schema, arrays: Arrays) -> WorldOutcome:
        world = result.world
        if world >= len(self.slots):
            raise RejectedError(f"there is no world {world}: the actor has slots for {len(self.slots)}")
        slot, command = int(self.slots[world]), int(self._asked[world])
        if command == Command.NONE:
            raise RejectedError(f"world {world} was not asked for anything")
        if len(result.task) + sum(map(len, result.metrics)) > MAX_FRAME_BYTES:
            raise RejectedError(f"task and names of metrics may take {MAX_FRAME_BYTES} bytes")
        self._asked[world], self._due_s[world] = Command.NONE, np.inf
        if result.failure:
            if result.failure not in FAILURES:
                raise RejectedError(f"there is no failure {result.failure[:100]!r}; there are {', '.join(FAILURES)}")
            ending = EpisodeEnd(task=result.task)
            return WorldOutcome(slot, Kind.FAILED, ending, Failure(result.failure, result.text[-MAX_FRAME_BYTES:]))
        is_step = command == Command.STEP
        try:
            write_obs(result, slot, schema, arrays)
            discounted = result.discounted_reward if result.duration > 1 else result.reward
            if not np.isfinite([result.reward, discounted, *result.metrics.values()]).all():
                raise WorldFailedError(f"the reward and metrics must be finite, got {result.reward}")
            is_over = is_step and (result.terminated or result.truncated)
            if not is_over:
                refuse_empty_masks(slot, schema, arrays)
        except WorldFailedError as error:
            return WorldOutcome(
                slot, Kind.FAILED, EpisodeEnd(task=result.task), Failure("contract", f"{self.name}: {error}")
            )
        arrays.reward[slot] = result.reward if is_step else 0.0
        arrays.discounted_reward[slot], arrays.duration[slot] = discounted, max(result.duration, 1)
        arrays.terminated[slot] = is_step and result.terminated
        arrays.truncated[slot] = is_step and result.truncated
        if is_step and not is_over:
            return WorldOutcome(slot, Kind.STEP)
        ending = EpisodeEnd(metrics=dict(result.metrics) if is_step else {}, task=result.task)
        return WorldOutcome(slot, Kind.STEP if is_step else Kind.RESET, ending if is_step or result.task else None)


def write_obs(result: worlds_service_pb2.Result, slot: int, schema: Schema, arrays: Arrays) -> None:
    """Writes an observation, and a frame, to a slot's rows.

    Raises:
        RejectedError: If the arrays have other sizes than the schema says.
        WorldFailedError: If a value is none of its space.
    """
    leaves = flatten(schema.obs)
    if len(result.obs) != len(leaves):
        raise RejectedError(f"an observation has {len(leaves)} arrays, got {len(result.obs)}")
    for (path, leaf), data in zip(leaves.items(), result.obs, strict=True):
        row = arrays.obs[path]
        value = np.frombuffer(unpack_bytes(path, result.codec, data, row[slot].nbytes), row.dtype)
        if row.dtype.kind == "f" and not np.isfinite(value).all():
            raise WorldFailedError(f"observation {path!r} must be finite")
        if row.dtype == np.bool_ and value.view(np.uint8).max(initial=0) > 1:
            raise WorldFailedError(f"observation {path!r} must be of bytes 0 and 1")
        if leaf.categories and not ((value >= 0) & (value < leaf.categories)).all():
            raise WorldFailedError(f"observation {path!r} must count categories below {leaf.categories}, got {value}")
        row[slot] = value.reshape(leaf.shape)
    frame = arrays.frame[slot]
    if frame.size and result.frame:
        frame[...] = np.frombuffer(unpack_bytes("frame", result.codec, result.frame, frame.nbytes), np.uint8).reshape(
            frame.shape
        )


def refuse_empty_masks(slot: int, schema: Schema, arrays: Arrays) -> None:
    """Raises `WorldFailedError` where a mask of a slot's observation allows no action."""
    rows = {path: row[slot, ...] for path, row in arrays.obs.items()}
    if allow_nothing(masks_of(rows, {path: leaf.categories for path, leaf in flatten(schema.action).items()})):
        raise WorldFailedError("the observation's mask allows no action")

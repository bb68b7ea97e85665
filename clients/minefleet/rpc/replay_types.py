"""The requests and answers of replay, as its client gives them: plain values, in seconds and versions."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from minefleet.rpc.durations import in_seconds
from minefleet.v1 import fragment_pb2, replay_service_pb2

Order = Literal["least_used", "uniform", "oldest"]
Outcome = Literal["stored", "duplicate", "expired"]
ORDERS: dict[Order, replay_service_pb2.LeaseOrder.ValueType] = {
    "least_used": replay_service_pb2.LEASE_ORDER_LEAST_USED,
    "uniform": replay_service_pb2.LEASE_ORDER_UNIFORM,
    "oldest": replay_service_pb2.LEASE_ORDER_OLDEST,
}
OUTCOMES: dict[Outcome, replay_service_pb2.AppendOutcome.ValueType] = {
    "stored": replay_service_pb2.APPEND_OUTCOME_STORED,
    "duplicate": replay_service_pb2.APPEND_OUTCOME_DUPLICATE,
    "expired": replay_service_pb2.APPEND_OUTCOME_EXPIRED,
}
Name = tuple[str, int]
"""A stream, and the number of a chunk or fragment in it."""
Packed = tuple[fragment_pb2.FragmentHeader, bytes]
"""A fragment as it travels: its header and its payload."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Position:
    """Identity of a caller: its run and, for the learner, its position in it."""

    run_id: str = ""
    epoch: int = 0
    """Fencing token, issued by parameters; 0 for actors."""
    version: int = 0
    """The newest version that the learner has published."""
    resumed_version: int = 0
    """The version of the checkpoint that the epoch started from."""
    first_version: int = 0
    """The first version that the epoch published; 0 before it has."""


NO_POSITION = Position()


@dataclass(frozen=True, kw_only=True, slots=True)
class Reservation:
    """Replay's answer to a Reserve."""

    granted: list[bool]
    """One per asked chunk, in its order."""
    retry_after_s: float
    """When to ask again for what was not granted."""
    newest_version: int
    """The newest policy version that replay knows."""
    wants_newer_weights: bool = False
    """Whether chunks could be granted now to newer weights, and none to these."""
    too_slow: Sequence[bool] = ()
    """One per asked chunk: whether it is refused because its stream is too slow."""
    ahead: Sequence[bool] = ()
    """One per asked chunk: whether it is refused because others have had fewer steps."""
    tasks: Sequence[str] = ()
    """One per asked chunk: the task of episodes that begin from now on; empty where none is named."""
    closing: "LeaseForecast | None" = None
    """None while replay knows too little."""
    longest_chunk_s: float = math.inf
    """Longest duration of a chunk; a longer one must be cut in time."""

    @classmethod
    def from_proto(cls, response: replay_service_pb2.ReserveResponse) -> "Reservation":
        """As replay sends it."""
        has_longest = response.HasField("longest_chunk")
        return cls(
            granted=list(response.granted),
            too_slow=list(response.too_slow),
            ahead=list(response.ahead),
            tasks=list(response.tasks),
            closing=LeaseForecast.from_proto(response.closing) if response.HasField("closing") else None,
            longest_chunk_s=in_seconds(response.longest_chunk) if has_longest else math.inf,
            retry_after_s=in_seconds(response.retry_after),
            newest_version=response.newest_version,
            wants_newer_weights=response.wants_newer_weights,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class LeaseForecast:
    """Until when the lease that is being filled takes what is made for it, as replay expects it."""

    use_version: int
    """That the lease is for."""
    closes_in_s: Sequence[float]
    """Until fragments should have come that are long enough: for it, and each after it that may hold what acts now."""
    waits_s: float
    """So much longer a lease waits at most for those that are not, and would be too stale for the next one."""
    interval_s: float
    """Between the ends of two leases that wait for nothing."""

    @classmethod
    def from_proto(cls, closing: replay_service_pb2.Closing) -> "LeaseForecast":
        """As replay sends it."""
        return cls(
            use_version=closing.use_version,
            closes_in_s=[in_seconds(closes_in) for closes_in in closing.closes_in],
            waits_s=in_seconds(closing.waits),
            interval_s=in_seconds(closing.interval),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class AppendResult:
    """The fate of appended fragments. They are durable."""

    outcomes: list[Outcome]
    """One per fragment, in their order."""
    newest_version: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Lease:
    """Leased chunks; none when the wait ran out, and then nothing was charged."""

    number: int
    chunks: list[replay_service_pb2.LeasedChunk]
    env_steps: int
    """Environment steps that actors have reported, in total."""
    env_failures: int
    """Environment failures that actors have reported, in total."""
    tasks: Sequence[replay_service_pb2.StepAccount]
    """The fate of each task's steps since replay started."""
    starved_streams: Sequence[replay_service_pb2.StepAccount]
    """The same of some streams of which less than half of the steps are trained on."""
    window_s: float
    """From a version to the end of the last lease that may hold what it acted, seconds; 0 while that is not known."""
    interval_s: float
    """Between the ends of two leases, likewise."""

    @classmethod
    def from_proto(cls, number: int, response: replay_service_pb2.LeaseResponse) -> "Lease":
        """As replay sends it."""
        return cls(
            number=number,
            chunks=list(response.chunks),
            env_steps=response.env_steps,
            env_failures=response.env_failures,
            tasks=response.tasks,
            starved_streams=response.starved_streams,
            window_s=in_seconds(response.window),
            interval_s=in_seconds(response.interval),
        )

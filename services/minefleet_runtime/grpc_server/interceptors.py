"""Server interceptors: servicers raise `FleetError`, callers get a status, and every call is counted and timed."""

import asyncio
import inspect
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, nullcontext
from functools import partial
from typing import Any, TypeAlias

import grpc
from google.protobuf.message import DecodeError

from minefleet.core.errors import FleetError, OverloadedError, RejectedError, StrangerError
from minefleet_runtime.grpc_server.access import Access, is_open
from minefleet_runtime.grpc_server.error_status import status_of
from minefleet_runtime.metrics import Rpc, RpcMetrics

Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"
MaybeHandler: TypeAlias = "grpc.RpcMethodHandler[Any, Any] | None"
Behaviour = Callable[[Any, Any], Any]
Deserializer: TypeAlias = Callable[[bytes], Any] | None

_GARBLED = object()
"""Marks a request that is no message."""

_CODES = {code.value[0]: code for code in grpc.StatusCode}

MAX_PROBES = 4
"""Calls of each kind that need no token and may be open at once: everyone who reaches the port can make them last."""
PROBE_RETRY_S = 1.0


class RpcInterceptor(grpc.ServerInterceptor):
    """For sync servers."""

    def __init__(self, metrics: RpcMetrics, access: Access) -> None:
        self._metrics = metrics
        self._access = access
        self._probes = _few(), _few()

    def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], MaybeHandler],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> MaybeHandler:
        """Wraps the handler. Methods that nobody serves stay uncounted, so that labels stay bounded."""
        handler = continuation(handler_call_details)
        if handler is None:
            return None
        rpc = _rpc(handler, handler_call_details.method)
        try:
            self._access.let_in(str(rpc), handler_call_details.invocation_metadata)
        except StrangerError as error:
            return grpc.stream_unary_rpc_method_handler(self._refusal(rpc, error))
        parse = _lenient(handler.request_deserializer)
        if is_open(str(rpc)):
            return _rebuilt(handler, self._probe(rpc, handler), parse, request_streaming=True)
        return _rebuilt(handler, self._wrap(rpc, handler), parse)

    def _refusal(self, rpc: Rpc, error: FleetError) -> Behaviour:
        def refuse(requests: Any, context: Any) -> None:
            with self._answering(rpc, context, error):
                pass

        return refuse

    def _probe(self, rpc: Rpc, handler: Handler) -> Behaviour:
        """Takes a probe's request as a stream: gRPC would wait for it with one of our threads before it calls us."""
        behaviour = _behaviour(handler)

        def unary(requests: Iterator[Any], context: Any) -> Any:
            with self._answering(rpc, context), _one_of(self._probes[handler.response_streaming]):
                return behaviour(_legible(next(requests, _GARBLED)), context)

        def stream(requests: Iterator[Any], context: Any) -> Iterator[Any]:
            with self._answering(rpc, context), _one_of(self._probes[handler.response_streaming]):
                yield from behaviour(_legible(next(requests, _GARBLED)), context)

        return stream if handler.response_streaming else unary

    def _wrap(self, rpc: Rpc, handler: Handler) -> Behaviour:
        behaviour, legible = _behaviour(handler), _all_legible if handler.request_streaming else _legible

        def unary(request: Any, context: Any) -> Any:
            with self._answering(rpc, context):
                return behaviour(legible(request), context)

        def stream(request: Any, context: Any) -> Iterator[Any]:
            with self._answering(rpc, context):
                yield from behaviour(legible(request), context)

        return stream if handler.response_streaming else unary

    @contextmanager
    def _answering(self, rpc: Rpc, context: Any, refusal: FleetError | None = None) -> Iterator[None]:
        with self._metrics.observe(rpc) as outcome:
            try:
                if refusal is not None:
                    raise refusal
                self._access.check(str(rpc), context)
                yield
                outcome.code = _code(context)
            except (grpc.RpcError, GeneratorExit):
                outcome.code = grpc.StatusCode.CANCELLED
                raise
            except Exception as error:
                outcome.code = _code(context)
                if outcome.code is not grpc.StatusCode.OK:
                    raise
                status = status_of(error, str(rpc))
                outcome.code = status.code
                context.abort_with_status(status)


class AioRpcInterceptor(grpc.aio.ServerInterceptor):
    """For aio servers."""

    def __init__(self, metrics: RpcMetrics, access: Access) -> None:
        self._metrics = metrics
        self._access = access
        self._probes = _few(), _few()

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[MaybeHandler]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> MaybeHandler:
        """Wraps the handler, as `RpcInterceptor` does."""
        handler = await continuation(handler_call_details)
        if handler is None:
            return None
        rpc = _rpc(handler, handler_call_details.method)
        try:
            self._access.let_in(str(rpc), handler_call_details.invocation_metadata)
        except StrangerError as error:
            return grpc.stream_unary_rpc_method_handler(self._refusal(rpc, error))
        parse = _refusing(handler.request_deserializer)
        return _rebuilt(handler, self._wrap(rpc, handler), parse, request_streaming=True)

    def _refusal(self, rpc: Rpc, error: FleetError) -> Behaviour:
        async def refuse(requests: Any, context: Any) -> None:
            async with self._answering(rpc, context, error):
                pass

        return refuse

    def _wrap(self, rpc: Rpc, handler: Handler) -> Behaviour:
        """Takes every request as a stream: one that never comes, gRPC would leave without an answer."""
        behaviour, taken = _behaviour(handler), _all if handler.request_streaming else _first
        few = self._probes[handler.response_streaming]
        limit = partial(_one_of, few) if is_open(str(rpc)) else nullcontext

        async def call(requests: AsyncIterator[Any], context: Any) -> Any:
            async with self._answering(rpc, context):
                with limit():
                    return await behaviour(await taken(requests), context)

        async def stream(requests: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:
            async with self._answering(rpc, context):
                with limit():
                    async for response in behaviour(await taken(requests), context):
                        yield response

        return stream if inspect.isasyncgenfunction(behaviour) else call

    @asynccontextmanager
    async def _answering(self, rpc: Rpc, context: Any, refusal: FleetError | None = None) -> AsyncIterator[None]:
        with self._metrics.observe(rpc) as outcome:
            try:
                if refusal is not None:
                    raise refusal
                self._access.check(str(rpc), context)
                yield
                outcome.code = _code(context)
            except (grpc.RpcError, GeneratorExit, asyncio.CancelledError):
                outcome.code = grpc.StatusCode.CANCELLED
                raise
            except Exception as error:
                outcome.code = _code(context)
                if outcome.code is not grpc.StatusCode.OK:
                    raise
                status = status_of(error, str(rpc))
                outcome.code = status.code
                await _abort(context, status)


async def _all(requests: AsyncIterator[Any]) -> AsyncIterator[Any]:
    return requests


async def _first(requests: AsyncIterator[Any]) -> Any:
    return _legible(await anext(requests, _GARBLED))


async def _abort(context: Any, status: grpc.Status) -> None:
    try:
        await context.abort(status.code, status.details, status.trailing_metadata)
    except grpc.aio.InternalError:
        # The call is over already, by gRPC's own doing: nobody is there to receive it.
        raise asyncio.CancelledError from None


def _code(context: Any) -> grpc.StatusCode:
    """The status that the handler has set so far; sync contexts know a code or None, aio ones its number."""
    code = context.code()
    if isinstance(code, grpc.StatusCode):
        return code
    return _CODES[code or 0]


def _rpc(handler: Handler, path: str) -> Rpc:
    _, service, method = path.split("/")
    kind = {
        (False, False): "unary",
        (True, False): "client_stream",
        (False, True): "server_stream",
        (True, True): "bidi_stream",
    }[handler.request_streaming, handler.response_streaming]
    return Rpc(kind, service, method)


def _behaviour(handler: Handler) -> Behaviour:
    chosen = handler.unary_unary or handler.unary_stream or handler.stream_unary or handler.stream_stream
    if chosen is None:
        raise ValueError("expected a handler with a behaviour, got an empty one")
    return chosen


def _lenient(deserialize: Deserializer) -> Callable[[bytes], Any]:
    """Makes the handler refuse requests that cannot be parsed.

    gRPC would answer UNKNOWN or INTERNAL by itself. A sync server would also end a stream of requests for the handler
    as if all had come, and then wait for ever for the status that it cannot send twice: it could never stop.
    """

    def parse(data: bytes) -> Any:
        try:
            return deserialize(data) if deserialize is not None else data
        except DecodeError:
            return _GARBLED

    return parse


def _refusing(deserialize: Deserializer) -> Deserializer:
    """Refuses what cannot be parsed where the handler awaits it: what parsing raises in an aio stream goes there."""
    parse = _lenient(deserialize)
    return lambda data: _legible(parse(data))


def _legible(request: Any) -> Any:
    if request is _GARBLED:
        raise RejectedError("the bytes are no message of the type that this method takes")
    return request


def _all_legible(requests: Iterator[Any]) -> Iterator[Any]:
    return map(_legible, requests)


def _few() -> threading.BoundedSemaphore:
    return threading.BoundedSemaphore(MAX_PROBES)


@contextmanager
def _one_of(few: threading.BoundedSemaphore) -> Iterator[None]:
    if not few.acquire(blocking=False):
        raise OverloadedError(f"{MAX_PROBES} probes are under way", PROBE_RETRY_S)
    try:
        yield
    finally:
        few.release()


def _rebuilt(
    handler: Handler, behaviour: Behaviour, deserialize: Deserializer, *, request_streaming: bool | None = None
) -> Handler:
    is_stream = handler.request_streaming if request_streaming is None else request_streaming
    make = {
        (False, False): grpc.unary_unary_rpc_method_handler,
        (True, False): grpc.stream_unary_rpc_method_handler,
        (False, True): grpc.unary_stream_rpc_method_handler,
        (True, True): grpc.stream_stream_rpc_method_handler,
    }[is_stream, handler.response_streaming]
    return make(behaviour, deserialize, handler.response_serializer)

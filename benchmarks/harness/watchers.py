"""Many watchers of parameters in one process, for `benchmarks/weights_watchers.py`. Speaks JSON lines.

    python -m harness.watchers ADDRESS PREFIX

Each watcher has a connection of its own and does on it what an actor's client does: it introduces itself, watches, and
opens its watch anew when it ends. It fetches nothing.

    {"watchers": n, "tensors": n}    opens so many watches, ends surplus ones; answers once all have heard something
    {"version": v, "since_s": time}  once all have heard of that version since then: when each did, and its publish time
"""

import asyncio
import json
import random
import sys
import time
from collections.abc import Callable

import grpc

from harness.fleet_actors import OPTIONS
from minefleet.rpc.channel import CALL_TIMEOUT_S
from minefleet.rpc.parameters_client import WATCH_TIMEOUT_S
from minefleet.rpc.retrier import FIRST_DELAY_S, MAX_DELAY_S
from minefleet.rpc.weights.manifest import fingerprint_of
from minefleet.v1 import parameters_service_pb2 as pb
from minefleet.v1 import status_service_pb2

SHAPE = (16,)


def main() -> None:
    address, prefix = sys.argv[1:]
    asyncio.run(answer_all(address, prefix))


async def answer_all(address: str, prefix: str) -> None:
    """Answers until standard input ends."""
    crowd = Crowd(address, prefix)
    while question := await asyncio.to_thread(sys.stdin.readline):
        asked = json.loads(question)
        answer = await (crowd.grow(**asked) if "watchers" in asked else crowd.hear(**asked))
        print(json.dumps(answer), flush=True)


def tensor_names(tensors: int) -> list[str]:
    """Names of the tensors that are published."""
    return [f"layer.{number}.weight" for number in range(tensors)]


class Watcher:
    """One watch, opened again whenever it ends."""

    def __init__(self, address: str, name: str, tensors: int, on_news: Callable[[], None]) -> None:
        self.version = 0
        self.heard_s = 0.0
        """By the wall clock, as the server's times are."""
        self.published_s = 0.0
        architecture = dict.fromkeys(tensor_names(tensors), ("float32", SHAPE))
        request = pb.WatchRequest(watcher=name, architecture_fingerprint=fingerprint_of(architecture))
        self._request = request.SerializeToString()
        self._channel = grpc.aio.insecure_channel(address, options=OPTIONS)
        self._on_news = on_news
        self._delay_s = FIRST_DELAY_S
        self._task = asyncio.create_task(self._follow())

    async def close(self) -> None:
        """Ends the watch and the connection."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        await self._channel.close()

    async def _follow(self) -> None:
        while True:
            try:
                await self._watch()
            except grpc.aio.AioRpcError as error:
                if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                    continue
            await asyncio.sleep(self._delay_s * random.uniform(0.5, 1.0))
            self._delay_s = min(2 * self._delay_s, MAX_DELAY_S)

    async def _watch(self) -> None:
        describe: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = self._channel.unary_unary(
            "/minefleet.v1.StatusService/Describe"
        )
        await describe(status_service_pb2.DescribeRequest().SerializeToString(), timeout=CALL_TIMEOUT_S)
        watch: grpc.aio.UnaryStreamMultiCallable[bytes, bytes] = self._channel.unary_stream(
            "/minefleet.v1.ParametersService/Watch"
        )
        async for message in watch(self._request, timeout=random.uniform(*WATCH_TIMEOUT_S)):
            self.heard_s = time.time()
            newest = pb.WatchResponse.FromString(message).newest
            self.version, self.published_s = newest.version, newest.publish_time.ToNanoseconds() / 1e9
            self._delay_s = FIRST_DELAY_S
            self._on_news()


class Crowd:
    """The watchers."""

    def __init__(self, address: str, prefix: str) -> None:
        self._address = address
        self._prefix = prefix
        self._watchers: list[Watcher] = []
        self._news = asyncio.Event()

    async def grow(self, *, watchers: int, tensors: int) -> int:
        """Lets so many watch."""
        surplus, self._watchers = self._watchers[watchers:], self._watchers[:watchers]
        await asyncio.gather(*(watcher.close() for watcher in surplus))
        for number in range(len(self._watchers), watchers):
            self._watchers.append(Watcher(self._address, f"{self._prefix}-{number}", tensors, self._news.set))
        await self._wait_for(1, 0.0)
        return len(self._watchers)

    async def hear(self, *, version: int, since_s: float) -> list[tuple[float, float]]:
        """Waits until all have heard of a version."""
        await self._wait_for(version, since_s)
        return [(watcher.heard_s, watcher.published_s) for watcher in self._watchers]

    async def _wait_for(self, version: int, since_s: float) -> None:
        lacking = self._watchers
        while lacking := [each for each in lacking if each.version < version or each.heard_s < since_s]:
            self._news.clear()
            await self._news.wait()


if __name__ == "__main__":
    main()

"""Any bytes, sent to any method of any role, get an answer by its contract; the role lives, works, and does not
grow."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from hypothesis import strategies as st
from tests.fuzz.contracts import Method, methods_of
from tests.fuzz.fleet import GROWTH_BYTES, ROLES, Server, send
from tests.fuzzing import EXTENTS, fuzz, messages, mutated

EXAMPLES = 240
"""Of each role, spread over its methods."""

Drawing = Callable[[Server, Method], st.SearchStrategy[Any]]


@pytest.fixture(scope="module", params=ROLES)
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with ROLES[request.param](tmp_path_factory.mktemp(request.param)) as server:
        yield server


def any_messages(server: Server, method: Method) -> st.SearchStrategy[list[bytes]]:
    message = messages(method.request, server.known).map(lambda message: message.SerializeToString())
    return st.lists(message, min_size=1, max_size=3)


def almost_a_message(server: Server, method: Method) -> st.SearchStrategy[list[bytes]]:
    message = messages(method.request, server.known).map(lambda message: message.SerializeToString())
    return message.flatmap(mutated).map(lambda mutant: [mutant])


def any_bytes(server: Server, method: Method) -> st.SearchStrategy[list[bytes]]:
    return st.lists(st.binary(max_size=200), max_size=3)


@pytest.mark.parametrize("drawing", [any_messages, almost_a_message, any_bytes])
@EXTENTS
def test_role_sent_arbitrary_messages_answers_by_contract_and_does_not_grow(
    server: Server, drawing: Drawing, extent: int
) -> None:
    with server.channel() as channel:
        methods = methods_of(*server.services)
        for method in methods:
            send(channel, method, [b""])
            before = server.role.rss_bytes()
            fuzz(extent, EXAMPLES // len(methods), drawing(server, method), partial(send, channel, method))
            assert server.role.rss_bytes() < before + GROWTH_BYTES, method.path
    server.check()


KEYS = st.from_regex(r"[a-z0-9_.-]{1,20}", fullmatch=True).filter(lambda key: not key.startswith("grpc-"))
TEXTS = st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E), max_size=200)
PAIRS = st.one_of(
    st.tuples(KEYS.filter(lambda key: not key.endswith("-bin")), TEXTS),
    st.tuples(KEYS.map(lambda key: f"{key}-bin"), st.binary(max_size=200)),
    st.tuples(st.just("authorization"), TEXTS),
)


@EXTENTS
def test_role_sent_arbitrary_metadata_answers_by_contract(server: Server, extent: int) -> None:
    pairs = st.lists(PAIRS, max_size=5)
    with server.channel() as channel:
        methods = methods_of(*server.services)
        for method in methods:
            fuzz(extent, EXAMPLES // len(methods) // 3, pairs, partial(send, channel, method, [b""]))
    server.check()

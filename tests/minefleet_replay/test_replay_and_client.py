"""The client and the service together. `make_server` is in conftest."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from minefleet.core.errors import ContractError, FencedError, NotFoundError
from minefleet.monitoring.slot_queries import StreamSteps, count_steps
from minefleet.rpc.credentials import NOTHING
from minefleet.rpc.replay_types import Position
from minefleet.v1 import episode_pb2, replay_service_pb2

Servers = Callable[..., Any]


def fill(server: Any, client: Any, *names: tuple[str, int], payload: bytes = b"payload") -> None:
    for stream, sequence in names:
        client.append([(server.header(stream, sequence, payload), payload)])


def test_replay_passes_a_chunk_from_an_actor_to_a_learner_and_drops_it(make_server: Servers) -> None:
    server = make_server(fragments_per_chunk=2, max_staleness=0)
    payload = bytes(range(256)) * 8192
    with server.serve(), server.client() as client:
        answer = client.reserve(1, [("s", 0), ("s", 1)])
        assert (answer.granted, answer.newest_version) == ([True, False], 0)
        assert answer.retry_after_s > 0
        assert client.reserve(1, [("t", 0)], returned=[("s", 0), ("u", 9)]).granted == [True]
        assert client.reserve(1, [("s", 0)], returned=[("t", 0)]).granted == [True]
        progress = replay_service_pb2.ActorProgress(actor="a", env_steps=64, env_failures=1)
        assert client.append([(server.header("s", 0, payload), payload)], progress=progress).outcomes == ["stored"]
        assert client.append([(server.header("s", 0, payload), payload)]).outcomes == ["duplicate"]
        assert client.append([(server.header("s", 1), b"payload")]).outcomes == ["stored"]
        lease = client.lease(7, steps=2, use_version=1, wait_s=5.0)
        assert (lease.env_steps, lease.env_failures) == (64, 1)
        assert [(one.name.stream, one.name.chunk, one.fragments, one.uses) for one in lease.chunks] == [("s", 0, 2, 0)]
        assert [(header.name.sequence, body) for header, body in client.read(7)] == [(0, payload), (1, b"payload")]
        assert client.ack(7) == 64
        assert client.lease(8, steps=2, use_version=1, wait_s=0.0).chunks == []


def test_replay_counts_the_steps_of_a_stream_as_trained_or_dropped(make_server: Servers) -> None:
    server = make_server(fragments_per_chunk=1, max_staleness=1)
    with server.serve() as replay, server.client() as client:
        card = {"name": "replay", "role": "ROLE_REPLAY", "address": server.address}
        fill(server, client, ("s", 0), ("s", 1), ("s", 2), ("t", 0))
        steps = server.header("s", 0).length
        client.lease(1, steps=1, use_version=1, wait_s=5.0, order="oldest")
        client.ack(1)
        assert count_steps(card, NOTHING, ["t", "s", "x"]) == {"t": (0, 0), "s": (steps, 0)}
        client.position = replace(client.position, version=9)
        client.read_episodes(0, 1)
        replay.tick()
        counted = count_steps(card, NOTHING, ["s", "t"])
    assert counted == {"s": (steps, 2 * steps), "t": (0, steps)}
    assert [one.trained_share for one in counted.values()] == [pytest.approx(1 / 3), 0.0]
    assert StreamSteps(0, 0).trained_share is None


def test_replay_client_reads_episodes_from_a_cursor(make_server: Servers) -> None:
    server = make_server()
    with server.serve(), server.client() as client:
        records = [episode_pb2.EpisodeRecord(stream="s", episode=number, episode_return=0.5) for number in range(3)]
        assert client.append(episodes=records).outcomes == []
        page = client.read_episodes(0, 2)
        assert page.episodes == records[:2]
        assert client.read_episodes(page.next_cursor, 9).episodes == records[2:]


def test_replay_client_sends_the_learners_position_with_every_call(make_server: Servers) -> None:
    server = make_server()
    with server.serve() as replay, server.client() as older, server.client() as newer:
        older.read_episodes(0, 1)
        newer.position = replace(newer.position, epoch=2, version=5, resumed_version=1, first_version=5)
        newer.read_episodes(0, 1)
        assert replay.stats()["newest_version"] == 5
        assert newer.reserve(5, []).newest_version == 5
        for call in (
            lambda: older.lease(1, steps=2, use_version=1, wait_s=0.0),
            lambda: list(older.read(1)),
            lambda: older.ack(1),
            lambda: older.release(1),
            lambda: older.read_episodes(0, 1),
        ):
            with pytest.raises(FencedError):
                call()


def test_replay_refuses_another_run_or_configuration_with_what_differs(make_server: Servers) -> None:
    server = make_server()
    with server.serve(), server.client() as client:
        client.reserve(0, [])
        client.position = Position(run_id="run-2")
        with pytest.raises(ContractError, match=r"run-1.*run-2"):
            client.reserve(0, [])
        identity = server.run.identity(1)
        identity.contract["schema"] = '"other"'
        with server.client(identity=identity) as stranger, pytest.raises(ContractError, match="schema"):
            stranger.reserve(0, [])


def test_replay_client_waits_for_replay_and_goes_on_where_it_stood(make_server: Servers) -> None:
    server, waits = make_server(), list[str | None]()
    with server.serve():
        pass
    with server.client(report=waits.append) as client:
        with server.serve():
            fill(server, client, ("s", 0), ("s", 1))
            client.lease(1, steps=2, use_version=1, wait_s=5.0, order="oldest")
            reading = client.read(1)
            first, _ = next(reading)
        with server.serve():
            assert (first.name.sequence, [header.name.sequence for header, _ in reading]) == (0, [1])
            assert client.append([(server.header("s", 1), b"payload")]).outcomes == ["duplicate"]
            client.release(1)


def test_replay_client_reading_a_lease_reports_corrupt_fragments_and_leaves_them_out(make_server: Servers) -> None:
    server, missing = make_server(), list[tuple[str, int]]()
    with server.serve() as replay, server.client() as client:
        fill(server, client, ("s", 0), ("s", 1))
        (place,) = (chunk.fragments[0].place for chunk in replay.transactions.state.index if chunk.id == 1)
        with replay.transactions.payloads.path(place.file).open("r+b") as file:
            file.seek(place.offset)
            file.write(b"!")
        client.lease(1, steps=2, use_version=1, wait_s=5.0, order="oldest")
        for _ in range(2):
            assert [header.name.sequence for header, _ in client.read(1, missing=missing.append)] == [0]
        assert missing == [("s", 1), ("s", 1)]
        client.ack(1)
        with pytest.raises(NotFoundError):
            list(client.read(1))


def test_replay_client_reads_some_chunks_of_a_lease_alone(make_server: Servers) -> None:
    server = make_server()
    with server.serve(), server.client() as client:
        fill(server, client, ("s", 0), ("s", 1))
        lease = client.lease(1, steps=2, use_version=1, wait_s=5.0, order="oldest")
        assert [header.name.sequence for header, _ in client.read(1, lease.chunks[1:])] == [1]


def test_replay_describe_names_the_run(make_server: Servers) -> None:
    server = make_server()
    with server.serve(), server.client() as client:
        client.reserve(0, [])
        assert client.describe().run_id == "run-1"

import random
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace

import pytest

from minefleet.config import EndpointConfig, ServicesConfig
from minefleet.core.errors import ConfigError
from minefleet.launch import ports
from minefleet.launch.ports import EPHEMERAL_RANGE, are_given, claim, free_port, is_elsewhere


@pytest.fixture
def taken() -> Iterator[str]:
    """An address that somebody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"127.0.0.1:{listener.getsockname()[1]}"


def addresses(services: ServicesConfig) -> list[str]:
    endpoints = (*services.replay, services.parameters, services.learner)
    return [address for endpoint in endpoints for address in (endpoint.address, endpoint.metrics_address)]


def test_every_endpoint_gets_a_port_of_its_own() -> None:
    claimed = addresses(claim(ServicesConfig()))
    assert len(set(claimed)) == 6
    assert not any(address.endswith(":0") for address in claimed)


def test_free_ports_are_none_that_the_kernel_gives_to_clients() -> None:
    first, last = (int(text) for text in EPHEMERAL_RANGE.read_text().split())
    ports = [int(address.rpartition(":")[2]) for address in addresses(claim(ServicesConfig()))]
    assert not any(first <= port <= last for port in ports)


def test_a_port_is_given_once_though_nobody_listens_there_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(random, "sample", lambda among, tries: among[:tries])
    assert free_port("127.0.0.1") != free_port("127.0.0.1")


OTHER = """
import sys
from minefleet.config import EndpointConfig, ServicesConfig
from minefleet.launch import ports
from minefleet.launch.ports import claim
print(claim(ServicesConfig()).learner.address, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def claimed_elsewhere() -> Iterator[str]:
    """An address that another launcher has claimed, though nobody listens there."""
    command = [sys.executable, "-c", OTHER]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        yield other.stdout.readline().strip()
        other.communicate()


def test_a_port_that_another_launcher_has_claimed_is_not_free_though_its_service_is_not_up(
    claimed_elsewhere: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = int(claimed_elsewhere.rpartition(":")[2])
    monkeypatch.setattr(ports, "FIRST_PORT", port)
    monkeypatch.setattr(ports, "MAX_TRIES", 1)
    monkeypatch.setattr(random, "sample", lambda among, _: [among[0]])
    with pytest.raises(ConfigError, match="no port is free"):
        claim(ServicesConfig())
    last = ServicesConfig(learner=EndpointConfig(address=claimed_elsewhere))
    monkeypatch.undo()
    assert claim(last, last).learner.address != claimed_elsewhere


def test_claim_keeps_a_given_port_that_is_free() -> None:
    free = claim(ServicesConfig()).learner.address
    assert claim(ServicesConfig(learner=EndpointConfig(address=free))).learner.address == free


def test_a_given_port_in_use_is_refused_with_one_that_is_free(taken: str) -> None:
    services = ServicesConfig(parameters=EndpointConfig(metrics_address=taken))
    message = rf"services\.parameters\.metrics_address: cannot listen on {taken}: .* 127\.0\.0\.1:\d+ is free"
    with pytest.raises(ConfigError, match=message):
        claim(services)


def test_ports_of_a_role_that_listens_elsewhere_than_callers_look_are_not_checked() -> None:
    away = EndpointConfig(address="parameters:7000", listen="0.0.0.0:7000", metrics_address="0.0.0.0:9100")
    services = ServicesConfig(parameters=away, replay=[away], learner=away)
    assert claim(services) == services
    assert are_given(services)
    assert not are_given(replace(services, learner=EndpointConfig(address="127.0.0.1:7000")))
    with pytest.raises(ConfigError, match=r"services\.learner\.address: cannot listen.*`listen` beside it"):
        claim(replace(services, learner=EndpointConfig(address="192.0.2.77:7000")))


def test_a_port_given_twice_is_refused() -> None:
    free = claim(ServicesConfig()).replay[0].address
    twice = ServicesConfig(replay=[EndpointConfig(address=free)], learner=EndpointConfig(address=free))
    with pytest.raises(ConfigError, match=rf"services\.learner\.address={free} is taken by services\.replay\.address"):
        claim(twice)


def test_a_port_of_the_last_launch_moves_when_somebody_else_has_it_now(taken: str) -> None:
    before = ServicesConfig(replay=[EndpointConfig(address=taken)])
    assert claim(before, before).replay[0].address != taken


def test_a_port_of_the_last_launch_stays_while_it_is_free() -> None:
    before = claim(ServicesConfig())
    assert claim(before, before) == before


def test_every_shard_gets_ports_of_its_own() -> None:
    shards = claim(ServicesConfig(replay=[EndpointConfig()] * 3)).replay
    assert len({address for shard in shards for address in (shard.address, shard.metrics_address)}) == 6


def test_a_port_that_two_shards_share_is_refused() -> None:
    free = claim(ServicesConfig()).replay[0].address
    services = ServicesConfig(replay=[EndpointConfig(address=free)] * 2)
    with pytest.raises(ConfigError, match=rf"replay\[1\]\.address={free} is taken by services\.replay\[0\]\.address"):
        claim(services)


def test_a_shard_on_another_machine_keeps_its_address() -> None:
    elsewhere = EndpointConfig(address="192.0.2.1:7000", metrics_address="0.0.0.0:7001")
    claimed = claim(ServicesConfig(replay=[EndpointConfig(), elsewhere]))
    assert claimed.replay[1] == elsewhere
    assert [is_elsewhere(shard.address) for shard in claimed.replay] == [False, True]
    with pytest.raises(ConfigError, match="cannot listen"):
        claim(ServicesConfig(parameters=elsewhere))

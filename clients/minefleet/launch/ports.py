"""Addresses of a local fleet: free ports where none is given, and the check of those that are.

A port stays free until its service is up, and while that restarts. So that no other fleet takes it then, the launcher
that has claimed it binds a name for as long as it lives: an abstract Unix socket, of which each network namespace has
one of a name, as it has one of a port.
"""

import errno
import random
import socket
from dataclasses import replace
from pathlib import Path

from minefleet.config import EndpointConfig, ServicesConfig
from minefleet.core.errors import ConfigError

SINGLE_SERVICES = ("parameters", "learner")
KEYS = ("address", "metrics_address")
EPHEMERAL_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
FIRST_PORT = 10_000
MAX_TRIES = 200
_NAMES: dict[int, int] = {}
"""By port: the descriptor of the socket that says that this process has claimed it."""


def claim(services: ServicesConfig, previous: ServicesConfig | None = None) -> ServicesConfig:
    """Gives every endpoint an address that is free now.

    Args:
        services: What is asked for; port 0 means any free port.
            Actors take theirs themselves, and so does who listens elsewhere than its callers look.
        previous: Addresses of an earlier launch of the run. One that is kept from there moves when it is in use.

    Raises:
        ConfigError: If an address that is asked for is in use, is given twice, or is not this machine's. A shard of
            replay may listen on another machine, where it is started by hand; its address is taken as it is.
    """
    claimed: dict[str, str] = {}
    kept = _endpoints(previous) if previous is not None else {}
    endpoints = {
        name: _claim_endpoint(name, endpoint, kept.get(name), claimed)
        for name, endpoint in _endpoints(services).items()
    }
    return replace(
        services,
        replay=list(endpoints.values())[: len(services.replay)],
        parameters=endpoints["services.parameters"],
        learner=endpoints["services.learner"],
    )


def are_given(services: ServicesConfig) -> bool:
    """Whether no port of the services is left open."""
    endpoints = _endpoints(services).values()
    return not any(getattr(endpoint, key).endswith(":0") for endpoint in endpoints for key in KEYS)


def is_elsewhere(address: str) -> bool:
    """Whether an address with a port is another machine's."""
    host, _, port = address.rpartition(":")
    error = listen_error(host, 0)
    return port != "0" and error is not None and error.errno == errno.EADDRNOTAVAIL


def _endpoints(services: ServicesConfig) -> dict[str, EndpointConfig]:
    """All endpoints by name, those of replay first."""
    shards = services.replay
    names = ["services.replay"] if len(shards) == 1 else [f"services.replay[{index}]" for index in range(len(shards))]
    singles = {f"services.{service}": getattr(services, service) for service in SINGLE_SERVICES}
    return dict(zip(names, shards, strict=True)) | singles


def _claim_endpoint(
    name: str, endpoint: EndpointConfig, kept: EndpointConfig | None, claimed: dict[str, str]
) -> EndpointConfig:
    if endpoint.listen or (name.startswith("services.replay") and is_elsewhere(endpoint.address)):
        return endpoint
    for key in KEYS:
        address = getattr(endpoint, key)
        may_move = kept is not None and address == getattr(kept, key)
        claimed[f"{name}.{key}"] = _claim(f"{name}.{key}", address, claimed, may_move=may_move)
    return EndpointConfig(**{key: claimed[f"{name}.{key}"] for key in KEYS})


def _claim(name: str, address: str, claimed: dict[str, str], *, may_move: bool) -> str:
    host, _, port = address.rpartition(":")
    if port == "0":
        return _free(host)
    if address in claimed.values():
        other = next(key for key, value in claimed.items() if value == address)
        raise ConfigError(f"{name}={address} is taken by {other}; port 0 takes a free one")
    is_ours, error = _reserve(int(port)), listen_error(host, int(port))
    if may_move and (error or not is_ours):
        return _free(host)
    if error is None:
        return address
    if is_elsewhere(address):
        raise ConfigError(
            f"{name}: cannot listen on {address}: it is no address of this machine. Where a container has the role, "
            "`listen` beside it says where that listens"
        )
    free = _free(host)
    raise ConfigError(f"{name}: cannot listen on {address}: {error.strerror}. {free} is free; port 0 takes a free one")


def free_port(host: str) -> int:
    """A port that is free now, from among those that `claim` takes; never the same twice in one process."""
    return int(_free(host).rpartition(":")[2])


def _free(host: str) -> str:
    """A free address below the ports from which the kernel serves outgoing connections, which nobody has claimed.

    One from among those could be lost, while its service restarts, to a client that tries to connect to it. One that
    this process has claimed before looks free until its service is up.
    """
    first_ephemeral = int(EPHEMERAL_RANGE.read_text().split()[0])
    ports = range(FIRST_PORT, first_ephemeral) or range(FIRST_PORT, 65536)
    for port in random.sample(ports, MAX_TRIES):
        address = f"{host}:{port}"
        if port not in _NAMES and _reserve(port) and listen_error(host, port) is None:
            return address
    error = listen_error(host, 0)
    raise ConfigError(f"no port is free on {host}" + (f": {error.strerror}" if error else ""))


def _reserve(port: int) -> bool:
    """Claims a port until this process ends; returns whether no other launcher has."""
    if port not in _NAMES:
        name = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            name.bind(f"\0minefleet-port-{port}")
        except OSError:
            name.close()
            return False
        _NAMES[port] = name.detach()
    return True


def listen_error(host: str, port: int) -> OSError | None:
    """The error of listening there now; None where that works."""
    try:
        with socket.create_server((host, port)):
            return None
    except OSError as error:
        return error

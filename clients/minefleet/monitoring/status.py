"""Queries every role of a run, and names the stage that limits it with the key to turn."""

import json
from collections.abc import Container, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from minefleet.core.errors import DeadlineError, FleetError, UnavailableError
from minefleet.monitoring.bottleneck import Bottleneck, find_in
from minefleet.monitoring.jsonl_tail import last_row
from minefleet.rpc.channel import connect
from minefleet.rpc.credentials import KEY_FILE, OPERATOR, ROLES, Credentials, read_credentials
from minefleet.rpc.durations import in_seconds
from minefleet.rpc.enum_names import role_word, state_word
from minefleet.rpc.rpc_errors import translated
from minefleet.runs.run_yaml import METRICS_FILE, Run, read_run
from minefleet.v1 import status_service_pb2, status_service_pb2_grpc

ROLES_DIRECTORY = "roles"
CARD_KEYS = {"name": str, "role": str, "pid": int, "address": str, "metrics_address": str}
NO_PROCESS = {"pid": 0, "metrics_address": ""}
TIMEOUT_S = 2.0
LOOPBACK_HOSTS = ("127.0.0.1", "localhost", "[::1]")
"""Only there does a card's pid mean a process of this machine."""
TLS_FAILURES = {
    "CERTIFICATE_VERIFY_FAILED": "its certificate is of another authority, or not valid now",
    "Hostname Verification Check failed": "its certificate is another role's",
    "WRONG_VERSION_NUMBER": "it speaks no TLS, and this run has certificates",
}
"""Part of gRPC's message -> the reason for people. Other reasons of a role that is away say nothing to them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RoleStatus:
    """One role's answer, or why there is none."""

    name: str
    pid: int
    address: str
    metrics_address: str
    state: str = "unreachable"
    detail: str = ""
    run_id: str = ""
    uptime_s: float = 0.0
    stats: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class RunStatus:
    """All roles of a run, its newest numbers, and what holds it up."""

    run_dir: str
    roles: list[RoleStatus]
    metrics: Mapping[str, Any]
    """The last line of `metrics.jsonl`; empty before the first."""
    bottleneck: Bottleneck | None
    """The bottleneck; None while it is unknown, or training is paused."""

    @property
    def pause(self) -> str:
        """The reason why training is paused; "" while it is not."""
        return next((role.detail for role in self.roles if role.name == "learner" and role.state == "paused"), "")

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        found = self.bottleneck
        return asdict(self) | {"bottleneck": asdict(found) | {"sentence": found.sentence} if found else {}}


def read_status(directory: Path, credentials: Credentials | None = None) -> RunStatus:
    """Asks every role of a run, as its operator.

    Args:
        directory: Of the run.
        credentials: The operator's; None reads the run for them, which takes a tenth of a second, and asks services of
            other machines, too.

    Raises:
        ConfigError: If there is no run in the directory, or the operator's certificate or token cannot be read.
    """
    cards = read_cards(directory)
    if credentials is None:
        run = read_run(directory)
        credentials = read_credentials(run.config.services.security, _caller(run.config.services.security.certificates))
        cards += _cards_elsewhere(run, {card["name"] for card in cards})
    with ThreadPoolExecutor(max(1, len(cards))) as pool:
        roles = list(pool.map(partial(ask, credentials=credentials), cards))
    status = RunStatus(run_dir=str(directory), roles=roles, metrics=last_row(directory / METRICS_FILE), bottleneck=None)
    return status if status.pause else replace(status, bottleneck=find_in(role.stats for role in roles))


def read_cards(directory: Path) -> list[dict[str, Any]]:
    """The cards that the roles of a run have left; files that are none of ours are left out."""
    cards = []
    for path in sorted((directory / ROLES_DIRECTORY).glob("*.json")):
        with suppress(OSError, ValueError, RecursionError):  # A role that ends removes its own.
            card = json.loads(path.read_text())
            if isinstance(card, dict) and all(isinstance(card.get(key), kind) for key, kind in CARD_KEYS.items()):
                cards.append(card)
    return cards


def ask(card: Mapping[str, Any], credentials: Credentials) -> RoleStatus:
    """Asks the role that left this card."""
    known = RoleStatus(**{key: card[key] for key in ("name", "pid", "address", "metrics_address")})
    if not known.address:
        return _absent(known, "starting", "no port is open yet")
    try:
        peer = role_word(status_service_pb2.Role.Value(card["role"]))
        with connect(known.address, peer, credentials) as channel, translated():
            stub = status_service_pb2_grpc.StatusServiceStub(channel)
            answer = stub.Describe(status_service_pb2.DescribeRequest(), timeout=TIMEOUT_S)
    except (UnavailableError, DeadlineError) as error:
        return _absent(
            known, "unreachable", next((TLS_FAILURES[part] for part in TLS_FAILURES if part in str(error)), "")
        )
    except ValueError:
        return replace(known, state="unreachable", detail="its card names a role that there is not")
    except FleetError as error:
        return replace(known, state="unreachable", detail=str(error))
    return replace(
        known,
        state=state_word(answer.state),
        detail=answer.detail,
        run_id=answer.run_id,
        uptime_s=in_seconds(answer.uptime),
        stats=dict(answer.stats),
    )


def is_answering(card: Mapping[str, Any], credentials: Credentials) -> bool:
    """Whether the role that left this card is there: as a process of this machine, or by its answer."""
    if is_of_this_machine(card["address"] or card["metrics_address"]):
        return Path(f"/proc/{card['pid']}").exists()
    return ask(card, credentials).state != "unreachable"


def is_of_this_machine(address: str) -> bool:
    """Whether the pid on a card with this address is of a process here."""
    return address.rpartition(":")[0] in LOOPBACK_HOSTS


def _caller(certificates: str) -> str:
    """The operator, or the one role whose certificate is here, as in a pod: every role may ask for a status."""
    here = [role for role in ROLES if (Path(certificates) / role / KEY_FILE).exists()]
    return here[0] if len(here) == 1 else OPERATOR


def _cards_elsewhere(run: Run, known: Container[str]) -> list[dict[str, Any]]:
    """Cards as services of other machines would leave them, by their addresses in the configuration."""
    services = {name: getattr(run.config.services, name) for name in ("parameters", "learner")}
    services |= {shard.name: shard.endpoint for shard in run.shards}
    addresses = {name: each.address for name, each in services.items() if not is_of_this_machine(each.address)}
    return [
        {"name": name, "role": f"ROLE_{name.partition('-')[0].upper()}", "address": address} | NO_PROCESS
        for name, address in addresses.items()
        if name not in known
    ]


def _absent(known: RoleStatus, state: str, detail: str = "") -> RoleStatus:
    """A role that does not answer: in that state, unless it was one of this machine that died and left its card."""
    if is_of_this_machine(known.address or known.metrics_address) and not Path(f"/proc/{known.pid}").exists():
        state, detail = "gone", f"process {known.pid} has ended"
    return replace(known, state=state, detail=detail)

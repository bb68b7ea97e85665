"""compose.yaml against the code: command lines, certificates, and ports."""

import re
import shlex
from typing import Any

import pytest
import yaml
from tests.deploy.committed import ROOT

from minefleet.cli import make_parser
from minefleet.config.load import load
from minefleet.rpc.credentials import HOST, OPERATOR, ROLES

COMPOSE = yaml.safe_load((ROOT / "compose.yaml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
HOLDERS = {role: (role,) for role in ROLES} | {OPERATOR: ("cli", "watch")}
"""The services that show each role's certificate."""
VARIABLE = re.compile(r"\$\{\w+:-([^}]*)\}")
OURS = ("certificates", "prepare", "watch", *(role for role in ROLES if role != OPERATOR))


def words_of(service: str) -> list[str]:
    """The command line of a service, as it is without any variable."""
    return shlex.split(VARIABLE.sub(r"\1", SERVICES[service]["command"]))


@pytest.mark.parametrize("service", OURS)
def test_command_line_of_each_compose_service_parses(service: str) -> None:
    words = words_of(service)
    assert make_parser().parse_args(words).command == words[0]


@pytest.mark.parametrize("role", ROLES)
def test_compose_makes_a_certificate_per_role_and_mounts_it_where_it_is_needed(role: str) -> None:
    volume, folder = f"certificate-{role}", f"/certs/{role}"
    assert volume in COMPOSE["volumes"]
    assert f"{volume}:{folder}" in SERVICES["certificates"]["volumes"]
    assert f" {folder}" in (ROOT / "deploy/Dockerfile").read_text()
    holders = {name for name, each in SERVICES.items() if f"{volume}:{folder}:ro" in each.get("volumes", ())}
    assert holders == set(HOLDERS[role])


def test_ports_are_published_on_loopback_only() -> None:
    published = {name: VARIABLE.sub(r"\1", port) for name, each in SERVICES.items() for port in each.get("ports", ())}
    assert published == {
        "grafana": "127.0.0.1:3000:3000",
        "prometheus": "127.0.0.1:9090:9090",
        "watch": "127.0.0.1:8800:8800",
    }


def test_watch_service_asks_for_a_token_and_mounts_read_only() -> None:
    arguments = make_parser().parse_args(words_of("watch"))
    assert (arguments.listen, arguments.token, arguments.no_browser) == ("0.0.0.0:8800", "", True)
    assert "${WATCH_TOKEN:-}" in SERVICES["watch"]["command"]
    assert all(volume.endswith(":ro") for volume in SERVICES["watch"]["volumes"])


def test_hosts_start_when_they_are_asked_for_and_play_what_is_trained() -> None:
    host = SERVICES[HOST]
    assert host["scale"] == 0
    assert host["image"] == SERVICES["actor"]["image"]
    words = words_of(HOST)
    assert words[-4:] == ["--actor", "actor:7000", "--metrics-address", "0.0.0.0:9100"]
    played = load(words[1], words[2:-4])
    assert played.env == load("crafter").env
    assert played.services.security.certificates == "/certs"
    assert all(" ${CONFIG:-crafter} " in SERVICES[name]["command"] for name in ("prepare", HOST))

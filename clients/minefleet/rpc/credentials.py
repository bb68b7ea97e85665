"""Credentials of a process: certificates, a token, or, within one machine, none.

    certificates/
      ca.pem, ca.key            the fleet's own authority; the key stays with the operator
      actor/{ca,cert,key}.pem   what a role needs: one folder for each
      learner/ ...

A certificate says a role, not a host: its name is `actor.minefleet`, `replay.minefleet`, ... A client asks for the role
that it wants to talk to, wherever that lives; `minefleet_runtime.grpc_server.access` says what a server lets it do.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc

from minefleet.config.security import SecurityConfig
from minefleet.core.errors import ConfigError

OPERATOR = "operator"
"""The user of the command line."""
HOST = "host"
"""A process that runs environments for actors."""
ROLES = ("actor", HOST, "learner", OPERATOR, "parameters", "replay")
"""Holders of certificates."""
DOMAIN = ".minefleet"
CA_FILE, CERTIFICATE_FILE, KEY_FILE = "ca.pem", "cert.pem", "key.pem"
MIN_TOKEN_CHARACTERS = 16
"""Characters of a token."""
TOKEN_KEY = "authorization"
"""Of the metadata that a token travels as: `Bearer TOKEN`."""


@dataclass(frozen=True, slots=True)
class KeyPair:
    """A role's certificate and key, and whose signature it trusts, as PEM."""

    authority: bytes
    certificate: bytes
    key: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Credentials:
    """A process's certificates and token; without both it stays within one machine."""

    pair: KeyPair | None = None
    token: str = field(default="", repr=False)
    insecure: bool = False

    @property
    def protects(self) -> bool:
        """Whether callers must show anything."""
        return self.pair is not None or bool(self.token)

    def channel(self, address: str, peer: str, options: Sequence[tuple[str, object]]) -> grpc.Channel:
        """Opens a channel to a role."""
        if self.pair is None:
            channel = grpc.insecure_channel(address, options=options)
        else:
            trust = grpc.ssl_channel_credentials(self.pair.authority, self.pair.key, self.pair.certificate)
            name = ("grpc.ssl_target_name_override", peer + DOMAIN)
            channel = grpc.secure_channel(address, trust, options=(*options, name))
        return grpc.intercept_channel(channel, _Token(self.token)) if self.token else channel

    def server(self) -> grpc.ServerCredentials | None:
        """Server credentials; None for an open port."""
        if self.pair is None:
            return None
        own = [(self.pair.key, self.pair.certificate)]
        return grpc.ssl_server_credentials(own, self.pair.authority, require_client_auth=True)


NOTHING = Credentials()


def read_credentials(config: SecurityConfig, role: str) -> Credentials:
    """Reads what the configuration names for a role.

    Raises:
        ConfigError: If a file is missing, empty or damaged, or the certificate is another role's, of another authority,
            or not valid now.
    """
    pair = _read_pair(Path(config.certificates) / role, role) if config.certificates else None
    token = _read_token(Path(config.token_file)) if config.token_file else ""
    return Credentials(pair=pair, token=token, insecure=config.insecure)


def role_among(names: Sequence[str]) -> str:
    """The role among the names of a certificate; empty where there is not exactly one."""
    roles = [name.removesuffix(DOMAIN) for name in names if name.endswith(DOMAIN)]
    return roles[0] if len(roles) == 1 and roles[0] in ROLES else ""


def _read_pair(folder: Path, role: str) -> KeyPair:
    from minefleet.rpc.certificates import (
        verify,  # `cryptography` takes a tenth of a second, and few runs have certificates.
    )

    pair = KeyPair(*(_read(folder / name) for name in (CA_FILE, CERTIFICATE_FILE, KEY_FILE)))
    verify(pair, folder, role)
    return pair


def _read_token(path: Path) -> str:
    token = _read(path).decode(errors="replace").strip()
    if len(token) < MIN_TOKEN_CHARACTERS or not token.isascii() or not token.isprintable() or " " in token:
        raise ConfigError(f"{path} must hold one word of at least {MIN_TOKEN_CHARACTERS} ASCII characters")
    return token


def _read(path: Path) -> bytes:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    if not content:
        raise ConfigError(f"{path} is empty")
    return content


class _Token(grpc.UnaryUnaryClientInterceptor, grpc.UnaryStreamClientInterceptor, grpc.StreamUnaryClientInterceptor):
    """Shows the token with every call. gRPC's own call credentials refuse to travel unencrypted."""

    def __init__(self, token: str) -> None:
        self._shown = (TOKEN_KEY, f"Bearer {token}")

    def intercept_unary_unary(self, continuation: Any, client_call_details: Any, request: Any) -> Any:
        """The call, with the token."""
        metadata = [*(client_call_details.metadata or ()), self._shown]
        return continuation(client_call_details._replace(metadata=metadata), request)

    intercept_unary_stream = intercept_unary_unary

    def intercept_stream_unary(self, continuation: Any, client_call_details: Any, request_iterator: Any) -> Any:
        """Likewise."""
        return self.intercept_unary_unary(continuation, client_call_details, request_iterator)

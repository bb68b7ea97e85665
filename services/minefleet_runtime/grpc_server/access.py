"""Access control: the calls that each role may make.

A caller is known by the role in its certificate. One that shows the token, where no certificates are asked for, may
call everything; so may anybody where nothing is asked for, which is for one machine.
"""

import hmac
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

from minefleet.core.errors import AuthError, StrangerError
from minefleet.rpc.credentials import HOST, ROLES, TOKEN_KEY, Credentials, role_among

EVERYBODY = frozenset(ROLES)
LEARNER, ACTOR, OPERATOR = frozenset({"learner"}), frozenset({"actor"}), frozenset({"operator"})
HEALTH = "grpc.health.v1.Health/"
"""Methods of probes, which have no token."""
ALLOWED: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        "minefleet.v1.StatusService/Describe": EVERYBODY,
        "minefleet.v1.SlotsService/ListSlots": OPERATOR,
        "minefleet.v1.SlotsService/GetFrame": OPERATOR,
        "minefleet.v1.WorldsService/Play": frozenset({HOST}),
        "minefleet.v1.ReplayService/Reserve": ACTOR,
        "minefleet.v1.ReplayService/Append": ACTOR,
        "minefleet.v1.ReplayService/Lease": LEARNER,
        "minefleet.v1.ReplayService/Read": LEARNER,
        "minefleet.v1.ReplayService/Ack": LEARNER,
        "minefleet.v1.ReplayService/Release": LEARNER,
        "minefleet.v1.ReplayService/ReadEpisodes": LEARNER,
        "minefleet.v1.ReplayService/WhyDropped": LEARNER | OPERATOR,
        "minefleet.v1.ReplayService/CountSteps": OPERATOR,
        "minefleet.v1.ParametersService/OpenEpoch": LEARNER,
        "minefleet.v1.ParametersService/Publish": LEARNER,
        "minefleet.v1.ParametersService/Watch": LEARNER | ACTOR | OPERATOR,
        "minefleet.v1.ParametersService/Fetch": LEARNER | ACTOR | OPERATOR,
        "minefleet.v1.ParametersService/ListVersions": LEARNER | OPERATOR,
        "minefleet.v1.ParametersService/Pin": OPERATOR,
    }
)
"""The roles that may call a method; what is not here nobody may."""


class Access:
    """Admits callers by their certificate or token."""

    def __init__(self, credentials: Credentials) -> None:
        self._asks_for_role = credentials.pair is not None
        self._token = credentials.token.encode()

    def let_in(self, method: str, metadata: Iterable[tuple[str, str | bytes]] | None) -> None:
        """Turns strangers away by what comes before their request, so that they cannot have a server wait for it.

        Raises:
            StrangerError: If the caller does not show the token that is asked for.
        """
        if self._token and not is_open(method) and not hmac.compare_digest(_shown(metadata), b"Bearer " + self._token):
            raise StrangerError("no token, or a wrong one: give the fleet's as services.security.token_file")

    def check(self, method: str, context: Any) -> None:
        """Refuses a call that is not allowed, before anything of it is handled.

        Raises:
            AuthError: If the caller's role may not call this.
        """
        if not self._asks_for_role or is_open(method):
            return
        role = role_among([name.decode() for name in context.auth_context().get("x509_subject_alternative_name", ())])
        if role not in ALLOWED.get(method, frozenset()):
            raise AuthError(f"the certificate is for {role or 'no role'}, which may not call {method}")


def is_open(method: str) -> bool:
    """Whether a call needs no token and no role."""
    return method.startswith(HEALTH)


def _shown(metadata: Iterable[tuple[str, str | bytes]] | None) -> bytes:
    """The token that a caller shows; empty where it shows none, or several."""
    shown = [value for key, value in metadata or () if key == TOKEN_KEY]
    if len(shown) != 1:
        return b""
    return shown[0].encode() if isinstance(shown[0], str) else bytes(shown[0])

"""Who may call what.

A caller is known by the role in its certificate. One that shows the token, where no certificates are asked for, may
call everything; so may anybody where nothing is asked for, which is for one machine.
"""

import hmac
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from minefleet.credentials import TOKEN_KEY, Credentials, role_among
from minefleet.errors import AuthError, StrangerError

EVERYBODY = frozenset({"actor", "learner", "operator", "parameters", "replay"})
LEARNER, ACTOR, OPERATOR = frozenset({"learner"}), frozenset({"actor"}), frozenset({"operator"})
HEALTH = "grpc.health.v1.Health/"
"""What probes ask, which have no token."""
ALLOWED: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        "minefleet.v1.StatusService/Describe": EVERYBODY,
        "minefleet.v1.ReplayService/Reserve": ACTOR,
        "minefleet.v1.ReplayService/Append": ACTOR,
        "minefleet.v1.ReplayService/Lease": LEARNER,
        "minefleet.v1.ReplayService/Read": LEARNER,
        "minefleet.v1.ReplayService/Ack": LEARNER,
        "minefleet.v1.ReplayService/Release": LEARNER,
        "minefleet.v1.ReplayService/ReadEpisodes": LEARNER,
        "minefleet.v1.ReplayService/WhyDropped": LEARNER | OPERATOR,
        "minefleet.v1.ParametersService/OpenEpoch": LEARNER,
        "minefleet.v1.ParametersService/Publish": LEARNER,
        "minefleet.v1.ParametersService/Watch": LEARNER | ACTOR | OPERATOR,
        "minefleet.v1.ParametersService/Fetch": LEARNER | ACTOR | OPERATOR,
        "minefleet.v1.ParametersService/Claim": ACTOR,
        "minefleet.v1.ParametersService/ListVersions": LEARNER | OPERATOR,
        "minefleet.v1.ParametersService/Pin": OPERATOR,
    }
)
"""The roles that may call a method; what is not here nobody may."""


class Access:
    """Lets callers in by what they show."""

    def __init__(self, credentials: Credentials) -> None:
        self._asks_for_role = credentials.pair is not None
        self._token = credentials.token.encode()

    def check(self, method: str, context: Any) -> None:
        """Refuses a call that is not allowed, before anything of it is handled.

        Raises:
            StrangerError: If the caller does not show what is asked for.
            AuthError: If its role may not call this.
        """
        if method.startswith(HEALTH):
            return
        if self._token and not hmac.compare_digest(_shown(context), b"Bearer " + self._token):
            raise StrangerError("no token, or a wrong one: give the fleet's as services.security.token_file")
        if not self._asks_for_role:
            return
        role = role_among([name.decode() for name in context.auth_context().get("x509_subject_alternative_name", ())])
        if role not in ALLOWED.get(method, frozenset()):
            raise AuthError(f"the certificate is for {role or 'no role'}, which may not call {method}")


def _shown(context: Any) -> bytes:
    """What a caller shows as its token; empty where it shows none, or several."""
    shown = [value for key, value in context.invocation_metadata() or () if key == TOKEN_KEY]
    if len(shown) != 1:
        return b""
    return shown[0].encode() if isinstance(shown[0], str) else bytes(shown[0])

"""Keeps strangers out of the page: by the host that they name, and by a token where other machines reach it."""

import hmac
import re
from collections.abc import Awaitable, Callable

from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response

from minefleet.core.surrogate_replacement import readable
from minefleet.monitoring.status import LOOPBACK_HOSTS

COOKIE = "minefleet-watch"
HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^:\[\]]+)(?::\d+)?")
WILDCARD_HOSTS = ("0.0.0.0", "::")
HEADERS = {
    "cache-control": "no-store",
    "content-security-policy": "default-src 'self'; img-src 'self' data: blob:; style-src 'self' 'unsafe-inline'; "
    "frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}
Handler = Callable[[Request], Awaitable[Response]]


class Gate:
    """Lets in callers that name this server by its own host and show the token, if there is one.

    A page elsewhere whose name was pointed at this machine names another host: it gets nothing. A server on all
    addresses knows none of its names, and has its token instead.
    """

    def __init__(self, host: str, token: str) -> None:
        self._hosts = {name.strip("[]") for name in (host, *LOOPBACK_HOSTS)}
        self._has_any_name = host.strip("[]") in WILDCARD_HOSTS
        self._token = token
        if self._has_any_name and not token:
            raise ValueError("a server on all addresses needs a token")

    async def __call__(self, request: Request, handle: Handler) -> Response:
        """Answers a request, or refuses it."""
        answer = self._refusal(request) or await handle(request)
        answer.headers.update(HEADERS)
        return answer

    def _refusal(self, request: Request) -> Response | None:
        named = HOST.fullmatch(request.headers.get("host", ""))
        if not self._has_any_name and (named is None or named[1].strip("[]").lower() not in self._hosts):
            return refusal(403, "this address is not the one that the page is served on")
        if "\0" in request.url.path:
            return refusal(404, "there is no such page")
        if not self._token:
            return None
        shown = request.query_params.get("token")
        if shown is not None and self._is_right(shown):
            answer = RedirectResponse("/", 303)
            answer.set_cookie(COOKIE, shown, httponly=True, samesite="strict", max_age=30 * 86400)
            return answer
        cookie = request.cookies.get(COOKIE) or request.headers.get("authorization", "").removeprefix("Bearer ")
        return None if self._is_right(cookie) else refusal(401, "open the address that minefleet watch printed")

    def _is_right(self, shown: str) -> bool:
        return hmac.compare_digest(shown.encode(), self._token.encode())


def refusal(code: int, text: str) -> Response:
    """An answer that says in one sentence why there is no other."""
    return JSONResponse({"error": readable(text)}, code)

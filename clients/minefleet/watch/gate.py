"""Keeps strangers out of the page: by the host that they name, and by a token where others than this machine reach it."""

import hmac
from collections.abc import Awaitable, Callable

from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response

from minefleet.monitoring.status import LOOPBACK_HOSTS

COOKIE = "minefleet-watch"
HEADERS = {
    "cache-control": "no-store",
    "content-security-policy": "default-src 'self'; img-src 'self' data: blob:; style-src 'self' 'unsafe-inline'; "
    "frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}
Handler = Callable[[Request], Awaitable[Response]]


class Gate:
    """Lets in who names this server by its own host and shows the token, if there is one.

    A page elsewhere whose name was pointed at this machine names another host: it gets nothing.
    """

    def __init__(self, host: str, token: str) -> None:
        self._hosts = {name.strip("[]") for name in (host, *LOOPBACK_HOSTS)}
        self._token = token

    async def __call__(self, request: Request, handle: Handler) -> Response:
        """Answers a request, or refuses it."""
        answer = self._refusal(request) or await handle(request)
        answer.headers.update(HEADERS)
        return answer

    def _refusal(self, request: Request) -> Response | None:
        if not self._token:
            known = (request.url.hostname or "") in self._hosts
            return None if known else _sorry(403, "this address is not the one that the page is served on")
        shown = request.query_params.get("token")
        if shown is not None and self._is_right(shown):
            answer = RedirectResponse(request.url.path, 303)
            answer.set_cookie(COOKIE, shown, httponly=True, samesite="strict", max_age=30 * 86400)
            return answer
        cookie = request.cookies.get(COOKIE) or request.headers.get("authorization", "").removeprefix("Bearer ")
        return None if self._is_right(cookie) else _sorry(401, "open the address that minefleet watch printed")

    def _is_right(self, shown: str) -> bool:
        return hmac.compare_digest(shown.encode(), self._token.encode())


def _sorry(code: int, text: str) -> Response:
    return JSONResponse({"error": text}, code)

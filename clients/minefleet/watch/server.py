"""Serves the page and its JSON API: read-only, everything on request, nothing while nobody looks."""

import math
import time
from collections.abc import Callable, Sequence
from io import BytesIO
from pathlib import Path
from threading import Lock
from typing import Any

from PIL import Image
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from minefleet.core.errors import ContractError, FleetError, NotFoundError, RejectedError
from minefleet.core.file_tail import last_lines
from minefleet.core.surrogate_replacement import readable
from minefleet.monitoring.jsonl_tail import AXES
from minefleet.runs.run_yaml import METRICS_FILE
from minefleet.watch import watched_runs as runs
from minefleet.watch.machine_load import machine_load
from minefleet.watch.page_access import Gate, refusal
from minefleet.watch.thinned_metrics_reader import read_curves

PAGE = Path(__file__).parent / "page"
FRESH_S = 0.5
"""Answers of roles are this old at most: many viewers cost as one."""
MAX_POINTS, MAX_KEYS = 5000, 100
MAX_LOG_BYTES = 2**20
MAX_ERROR, MAX_DIGITS = 500, 400
"""Characters of an error, and of a number, that are looked at."""

MOMENTS = ("now", "failure")
"""Of a slot's pictures."""

Answer = Callable[[Path, Request], Any]


def make_app(places: Sequence[Path], *, host: str, token: str = "") -> Starlette:
    """The application for the runs in and among `places`; a token is asked for unless it is empty."""
    server = _Server(places)
    of_run: dict[str, Answer] = {
        "": lambda directory, request: runs.details(request.path_params["run"], directory),
        "/curves": _curves,
        "/marks": lambda directory, _: runs.marks(directory),
        "/status": lambda directory, _: server.fresh(runs.status, directory),
        "/slots": lambda directory, _: server.fresh(runs.slots, directory),
        "/failures": lambda directory, _: runs.failures(directory, server.fresh(runs.slots, directory)["actors"]),
        "/slots/{actor}/{slot}/frame": _frame,
        "/logs": _logs,
        "/logs/{name}": _log,
        "/videos": lambda directory, _: {"videos": runs.videos(directory)},
        "/videos/{name}": _video,
        "/difference/{other}": lambda directory, request: {
            "keys": runs.difference(directory, server.find(request.path_params["other"]))
        },
    }
    routes = [
        Route("/api/runs", _threaded(lambda _: {"runs": server.summaries()})),
        Route("/api/machine", _threaded(lambda _: machine_load(Path.cwd()))),
        *(Route(f"/api/runs/{{run}}{path}", _threaded(server.for_run(answer))) for path, answer in of_run.items()),
        Mount("/", StaticFiles(directory=PAGE, html=True)),
    ]
    gate = Middleware(BaseHTTPMiddleware, dispatch=Gate(host, token))
    handlers: Any = {FleetError: _refuse, HTTPException: _refuse, OSError: _refuse, RuntimeError: _refuse}
    return Starlette(routes=routes, middleware=[gate], exception_handlers=handlers)


class _Server:
    """The runs, and answers of their roles that are still fresh."""

    def __init__(self, places: Sequence[Path]) -> None:
        self._places = places
        self._answers: dict[tuple[Any, Path], tuple[float, Any]] = {}
        self._locks: dict[tuple[Any, Path], Lock] = {}
        self._lock = Lock()

    def summaries(self) -> list[dict[str, Any]]:
        """Each run's newest numbers."""
        return [runs.summary(name, directory) for name, directory in runs.find_runs(self._places).items()]

    def find(self, name: str) -> Path:
        """The directory of a run.

        Raises:
            NotFoundError: If there is none of this name.
        """
        found = runs.find_runs(self._places)
        if name not in found:
            raise NotFoundError("there is no such run")
        return found[name]

    def for_run(self, answer: Answer) -> Callable[[Request], Any]:
        """Answers for the run that a request names."""
        return lambda request: answer(self.find(request.path_params["run"]), request)

    def fresh(self, ask: Callable[[Path], Any], directory: Path) -> Any:
        """The answer of a run's roles, who are asked unless they have just been."""
        with self._lock:
            lock = self._locks.setdefault((ask, directory), Lock())
        with lock:
            at_s, known = self._answers.get((ask, directory), (-math.inf, None))
            if time.monotonic() - at_s > FRESH_S:
                known = ask(directory)
                self._answers[ask, directory] = time.monotonic(), known
            return known


def _threaded(answer: Callable[[Request], Any]) -> Callable[[Request], Any]:
    """An endpoint that reads files and asks roles in a thread."""

    async def endpoint(request: Request) -> Response:
        made = await run_in_threadpool(_answered, answer, request)
        return made if isinstance(made, Response) else JSONResponse(made)

    return endpoint


def _answered(answer: Callable[[Request], Any], request: Request) -> Any:
    try:
        made = answer(request)
        return made if isinstance(made, Response) else _finite(made)
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
        text = f"the files of the run hold something unexpected ({type(error).__name__}: {error})"
        return refusal(503, text[:MAX_ERROR])


def _finite(data: Any) -> Any:
    """Plain data without numbers and characters that JSON does not have."""
    if isinstance(data, dict):
        return {readable(str(key)): _finite(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [_finite(value) for value in data]
    if isinstance(data, str):
        return readable(data)
    return None if isinstance(data, float) and not math.isfinite(data) else data


def _refuse(_: Request, error: Exception) -> Response:
    """One sentence, and the status that fits."""
    if isinstance(error, HTTPException):
        return refusal(error.status_code, error.detail)
    is_absent = isinstance(error, NotFoundError | FileNotFoundError)
    code = 404 if is_absent else 400 if isinstance(error, RejectedError) else 503
    return refusal(code, str(error)[:MAX_ERROR])


def _curves(directory: Path, request: Request) -> Any:
    asked = request.query_params
    axis = asked.get("axis", AXES[0])
    if axis not in AXES:
        raise RejectedError(f"axis must be one of {', '.join(AXES)}")
    found = read_curves(
        directory / METRICS_FILE,
        points=max(2, min(_number(asked.get("points", "1000")), MAX_POINTS)),
        axis=axis,
        begin=_bound(asked.get("from", "-inf")),
        end=_bound(asked.get("to", "inf")),
    )
    axes = {name: [row[name] for row in found.rows] for name in AXES}
    columns = found.columns(asked.getlist("key")[:MAX_KEYS])
    return axes | {"columns": columns, "total": found.total, "is_thinned": found.is_thinned}


def _number(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise RejectedError("a number is too large, or none")
    return int(text)


def _bound(text: str) -> float:
    try:
        bound = float(text[:MAX_DIGITS])
    except ValueError:
        bound = math.nan
    if math.isnan(bound):
        raise RejectedError("from and to must be numbers")
    return bound


def _frame(directory: Path, request: Request) -> Response:
    moment = request.query_params.get("of", "now")
    if moment not in MOMENTS:
        raise RejectedError(f"of must be one of {', '.join(MOMENTS)}")
    actor, slot = request.path_params["actor"], _number(request.path_params["slot"])
    try:
        picture = runs.frame(directory, actor, slot, before_failure=moment == "failure")
    except ContractError as error:
        raise NotFoundError(str(error)) from error  # The environment shows no pixels, or the actor is an older one.
    if not picture.size:
        return Response(status_code=204)  # It has only begun to render.
    file = BytesIO()
    Image.fromarray(picture).save(file, "PNG", compress_level=1)
    return Response(file.getvalue(), media_type="image/png")


def _logs(directory: Path, _: Request) -> Any:
    files = runs.log_files(directory).items()
    return {"logs": [{"name": name, "bytes": path.stat().st_size} for name, path in files]}


def _log(directory: Path, request: Request) -> Response:
    size = min(_number(request.query_params.get("bytes", "65536")), MAX_LOG_BYTES)
    return PlainTextResponse(last_lines(_named(runs.log_files(directory), request), size))


def _video(directory: Path, request: Request) -> Response:
    return FileResponse(_named(runs.video_files(directory), request), media_type="video/mp4")


def _named(files: dict[str, Path], request: Request) -> Path:
    """The file that a request names, which must be one of these."""
    name = request.path_params["name"]
    if name not in files:
        raise NotFoundError("there is no such file")
    return files[name]

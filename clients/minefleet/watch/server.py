"""Serves the page and its JSON API: read-only, everything on request, nothing while nobody looks."""

import math
import time
from collections.abc import Callable, Sequence
from io import BytesIO
from pathlib import Path
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

from minefleet.core.errors import ConfigError, FleetError, NotFoundError
from minefleet.watch import watched_runs as runs
from minefleet.watch.gate import Gate
from minefleet.watch.curves import AXES, read_curves
from minefleet.watch.machine_load import machine_load

PAGE = Path(__file__).parent / "page"
FRESH_S = 0.5
"""Answers of roles are this old at most: many viewers cost as one."""
MAX_POINTS, MAX_KEYS = 5000, 100
MAX_LOG_BYTES = 2**20

Answer = Callable[[Path, Request], Any]


def make_app(places: Sequence[Path], *, host: str, token: str = "") -> Starlette:
    """The application for the runs in and among `places`; a token is asked for unless it is empty."""
    server = _Server(places)
    of_run: dict[str, Answer] = {
        "": lambda directory, request: runs.details(request.path_params["run"], directory),
        "/curves": _curves,
        "/marks": lambda directory, _: runs.marks(directory),
        "/status": server.fresh("status", runs.status),
        "/slots": server.fresh("slots", lambda directory: {"actors": runs.slots(directory)}),
        "/failures": server.fresh("failures", runs.failures),
        "/slots/{actor}/{slot:int}/frame": _frame,
        "/logs": lambda directory, _: {
            "logs": [{"name": n, "bytes": p.stat().st_size} for n, p in _logs(directory).items()]
        },
        "/logs/{name}": _log,
        "/videos": _videos,
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
    handlers: Any = {FleetError: _refuse, HTTPException: _refuse, OSError: _refuse, ValueError: _refuse}
    return Starlette(routes=routes, middleware=[gate], exception_handlers=handlers)


class _Server:
    """The runs, and answers of their roles that are still fresh."""

    def __init__(self, places: Sequence[Path]) -> None:
        self._places = places
        self._answers: dict[tuple[str, Path], tuple[float, Any]] = {}

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

    def fresh(self, kind: str, ask: Callable[[Path], Any]) -> Answer:
        """Asks roles, unless they have just been asked."""

        def answer(directory: Path, _: Request) -> Any:
            at_s, known = self._answers.get((kind, directory), (-math.inf, None))
            if time.monotonic() - at_s > FRESH_S:
                known = ask(directory)
                self._answers[kind, directory] = time.monotonic(), known
            return known

        return answer


def _threaded(answer: Callable[[Request], Any]) -> Callable[[Request], Any]:
    """An endpoint that reads files and asks roles in a thread."""

    async def endpoint(request: Request) -> Response:
        made = await run_in_threadpool(answer, request)
        return made if isinstance(made, Response) else JSONResponse(_finite(made))

    return endpoint


def _finite(data: Any) -> Any:
    """Plain data without numbers that JSON does not have."""
    if isinstance(data, dict):
        return {str(key): _finite(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [_finite(value) for value in data]
    return None if isinstance(data, float) and not math.isfinite(data) else data


def _refuse(_: Request, error: Exception) -> Response:
    """One sentence, and the status that fits."""
    if isinstance(error, HTTPException):
        return JSONResponse({"error": error.detail}, error.status_code)
    code = (
        404
        if isinstance(error, NotFoundError | ConfigError | OSError)
        else 400
        if isinstance(error, ValueError)
        else 503
    )
    return JSONResponse({"error": str(error)}, code)


def _curves(directory: Path, request: Request) -> Any:
    asked = request.query_params
    axis = asked.get("axis", AXES[0])
    if axis not in AXES:
        raise ValueError(f"axis must be one of {', '.join(AXES)}")
    keys = [key for key in asked.get("keys", "").split(",") if key][:MAX_KEYS]
    found = read_curves(
        runs.open_run(directory).metrics,
        points=max(2, min(_number(asked.get("points", "1000")), MAX_POINTS)),
        axis=axis,
        begin=float(asked.get("from", "-inf")),
        end=float(asked.get("to", "inf")),
    )
    axes = {name: [row[name] for row in found.rows] for name in AXES}
    return axes | {"columns": found.columns(keys), "total": found.total, "is_thinned": found.is_thinned}


def _number(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise ValueError("a number is too large, or none")
    return int(text)


def _frame(directory: Path, request: Request) -> Response:
    picture = runs.frame(directory, request.path_params["actor"], min(request.path_params["slot"], 2**31))
    file = BytesIO()
    Image.fromarray(picture).save(file, "PNG", compress_level=1)
    return Response(file.getvalue(), media_type="image/png")


def _logs(directory: Path) -> dict[str, Path]:
    return runs.files_in(runs.open_run(directory).logs, "*.log")


def _log(directory: Path, request: Request) -> Response:
    size = min(_number(request.query_params.get("bytes", "65536")), MAX_LOG_BYTES)
    return PlainTextResponse(runs.end_of(_named(_logs(directory), request), size))


def _video_files(directory: Path) -> dict[str, Path]:
    run = runs.open_run(directory)
    return runs.files_in(run.directory / run.config.rollout_config.worker_config.video_output_dir, "*.mp4")


def _videos(directory: Path, _: Request) -> Any:
    found = [(path.stat(), name) for name, path in _video_files(directory).items()]
    newest = sorted(found, key=lambda video: video[0].st_mtime, reverse=True)
    return {"videos": [{"name": name, "bytes": each.st_size, "written_s": each.st_mtime} for each, name in newest]}


def _video(directory: Path, request: Request) -> Response:
    return FileResponse(_named(_video_files(directory), request), media_type="video/mp4")


def _named(files: dict[str, Path], request: Request) -> Path:
    """The file that a request names, which must be one of these."""
    name = request.path_params["name"]
    if name not in files:
        raise NotFoundError("there is no such file")
    return files[name]

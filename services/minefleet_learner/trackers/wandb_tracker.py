"""Logs to wandb; offline where there is no key, or no server answers."""

import http.client
import logging
import netrc
import os
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from minefleet_env.errors import in_one_line
from minefleet_learner.trackers.tracker import TrackedRun, Tracker

logger = logging.getLogger(__name__)

WANDB_HOST = "api.wandb.ai"
PROBE_S = 5.0
"""Longest wait for the server's answer before the run is logged offline; wandb itself would try for 90 s."""
SETTINGS = {"console": "off"}
"""Unless the configuration says otherwise. Capturing the console would send what the training logs through wandb, in
the training's own thread."""


class WandbTracker(Tracker):
    """A wandb run; its axis is `env_steps`."""

    def start(self, run: TrackedRun) -> None:
        """Goes on with the run of this id, or begins it."""
        import wandb

        arguments = wandb_arguments(run)
        reason = ""
        if arguments["mode"] == "online":
            reason = unreachable(str(wandb.setup().settings.base_url))
        if not reason:
            try:
                self._run = wandb.init(**arguments)
            except Exception as error:  # noqa: BLE001  # A wrong key, a lost network, a server's fault: all go offline.
                reason = in_one_line(error)
                wandb.teardown()  # Otherwise the id stays in use.
        if reason:
            logger.warning("wandb: %s; training goes on", reason)
            self._run = wandb.init(**arguments | {"mode": "offline"})
        if self._run.offline:
            files = run.directory / "wandb" / f"offline-run-*-{run.run_id}"
            logger.warning("wandb logs offline; to send it afterwards: wandb sync %s", files)
        self._video = wandb.Video
        self._run.define_metric("*", step_metric="env_steps")

    def log(self, numbers: Mapping[str, float], step: int) -> None:
        """Logs a row; wandb keeps it in a file and sends it in a process of its own."""
        self._run.log({**numbers, "env_steps": step})

    def log_video(self, name: str, path: Path, caption: str, step: int) -> None:
        """Logs a video."""
        self._run.log({name: self._video(str(path), caption=caption, format="mp4"), "env_steps": step})

    def close(self) -> None:
        """Ends the wandb run, once all is sent."""
        self._run.finish()


def wandb_arguments(run: TrackedRun) -> dict[str, Any]:
    """The keyword arguments of `wandb.init`."""
    given = dict(run.config["logger_config"]["init"])
    return {
        "project": run.project,
        "name": run.name,
        "id": run.run_id,
        "resume": "allow",
        "dir": str(run.directory),
        "config": dict(run.config),
        "mode": os.environ.get("WANDB_MODE") or ("online" if _has_key() else "offline"),
        **given,
        "settings": SETTINGS | dict(given.get("settings") or {}),
    }


def unreachable(url: str) -> str:
    """The reason why no server answers there; empty where one does, whatever it answers."""
    try:
        urllib.request.urlopen(url, timeout=PROBE_S).close()
    except (urllib.error.HTTPError, http.client.HTTPException):
        return ""
    except OSError as error:
        return f"{url} does not answer: {getattr(error, 'reason', error)}"
    return ""


def _has_key() -> bool:
    if os.environ.get("WANDB_API_KEY"):
        return True
    try:
        return netrc.netrc().authenticators(WANDB_HOST) is not None
    except (OSError, netrc.NetrcParseError):
        return False

"""An installed package that offers trackers by entry points: one that hangs, one that fails, one that writes a file."""

from pathlib import Path

MODULE = """
import json, threading
from minefleet_learner.trackers import Tracker

class Hanging(Tracker):
    def start(self, run): threading.Event().wait()

class Failing(Tracker):
    def start(self, run): pass
    def log(self, numbers, step): raise SystemExit("out of order")
    def close(self): raise OSError("no disk")

class Unmade(Tracker):
    def __init__(self): raise ImportError("a library is missing")

class Writing(Tracker):
    def start(self, run):
        self.file = (run.directory / "written.jsonl").open("a")
        self.say("start", [run.run_id, run.name, run.project, run.step, run.config["seed"]])
    def say(self, *words): print(json.dumps(words), file=self.file, flush=True)
    def log(self, numbers, step): self.say("log", numbers, step)
    def log_video(self, name, path, caption, step): self.say("video", name, str(path), caption, step)
    def close(self):
        self.say("close")
        self.file.close()
"""
NAMES = ("Hanging", "Failing", "Unmade", "Writing")


def write(place: Path) -> Path:
    """Writes the package, as pip would; returns the folder that belongs on the search path."""
    info = place / "odd_trackers-1.0.dist-info"
    info.mkdir(parents=True)
    (place / "odd_trackers.py").write_text(MODULE)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: odd-trackers\nVersion: 1.0\n")
    points = "".join(f"{name.lower()} = odd_trackers:{name}\n" for name in NAMES)
    (info / "entry_points.txt").write_text(f"[minefleet.trackers]\n{points}")
    return place

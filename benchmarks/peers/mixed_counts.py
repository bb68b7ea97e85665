"""Counts the played and the trained steps of each task, alike for all peers of `benchmarks/mixed.py`."""

import json
import os
import sys
import time
from collections import Counter, deque
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "harness"))

import mixed_run

LATELY = 100 * mixed_run.STEPS
COUNTS = Path(os.environ["COUNTS"])
"""A folder."""


class Counted(mixed_run.Mixed):
    """Writes a byte at the end of each episode into a file of its task."""

    def step(self, action):
        answer = super().step(action)
        if answer[3]:
            with (COUNTS / answer[4]["task"]).open("ab", buffering=0) as file:
                file.write(b"x")
        return answer


class Trained:
    """Of the process that trains: steps by task, and what the last of each were paid."""

    def __init__(self):
        self.steps, self.rewards = Counter(), {task: deque(maxlen=LATELY) for task in ("fast", "slow")}
        self.written_at = 0.0

    def add(self, slow, rewards):
        """Takes in steps: whether each was slow, and its reward."""
        for is_slow, reward in zip(slow, rewards, strict=True):
            task = "slow" if is_slow else "fast"
            self.steps[task] += 1
            self.rewards[task].append(float(reward))
        if time.monotonic() - self.written_at > 1.0:
            self.write()

    def write(self):
        """Says how it stands."""
        self.written_at = time.monotonic()
        text = json.dumps({"steps": self.steps, "returns": {name: self.mean(name) for name in self.rewards}})
        (COUNTS / "trained.new").write_text(text)
        (COUNTS / "trained.new").rename(COUNTS / "trained.json")

    def mean(self, task):
        """Return of an episode, at what its last steps were paid."""
        rewards = self.rewards[task]
        return mixed_run.STEPS * sum(rewards) / len(rewards) if rewards else None


def summary(seconds):
    """The figures of a run that took so long."""
    played = {task: mixed_run.STEPS * (COUNTS / task).stat().st_size for task in ("fast", "slow")}
    trained = json.loads((COUNTS / "trained.json").read_text())
    return {
        "steps_per_s": sum(played.values()) / seconds,
        "trained_share": trained["steps"].get("slow", 0) / played["slow"],
        "share_of_trained": trained["steps"].get("slow", 0) / sum(trained["steps"].values()),
        "return_fast": trained["returns"]["fast"],
        "return_slow": trained["returns"]["slow"],
    }

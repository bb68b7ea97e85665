"""An environment with many kinds of spaces that writes down what it shows and what it is given."""

import json
import uuid
from itertools import pairwise
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, Tuple

STEPS = 12


class Logging(gymnasium.Env[Any, Any]):
    """Masks parts of its action at random; each instance logs to a file of its own in `folder`."""

    observation_space = Dict(
        {
            "place": Box(-1, 1, (3,), np.float32),
            "kind": Discrete(3, start=-1),
            "action_mask": Dict({"0": Box(0, 1, (4,), np.int8), "2": Box(0, 1, (4,), np.int8)}),
        }
    )
    action_space = Tuple((Discrete(4, start=1), Box(-0.5, 0.5, (2,), np.float32), MultiBinary(2)))

    def __init__(self, folder: str = "") -> None:
        self._log = Path(folder) / f"{uuid.uuid4().hex}.jsonl" if folder else None
        self._steps = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._steps = 0
        return self._look(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        category, box, binary = action
        self._write({"action": [category, box.tolist(), binary.tolist()]})
        assert self.action_space.contains(action), action
        assert self._mask["0"][category - 1] and all(self._mask["2"][np.array([0, 2]) + binary]), (self._mask, action)
        self._steps += 1
        return self._look(), 1.0, False, self._steps == STEPS, {}

    def _look(self) -> Any:
        draw = self.np_random
        self._mask = {"0": draw.integers(0, 2, 4, np.int8), "2": draw.integers(0, 2, 4, np.int8)}
        self._mask["0"][draw.integers(4)] = 1
        self._mask["2"][[draw.integers(2), 2 + draw.integers(2)]] = 1
        place, kind = draw.uniform(-1, 1, 3).astype(np.float32), int(draw.integers(-1, 2))
        mask = {key: one.tolist() for key, one in self._mask.items()}
        self._write({"first": self._steps == 0, "obs": [place.tolist(), kind, mask]})
        return {"place": place, "kind": kind, "action_mask": {key: one.copy() for key, one in self._mask.items()}}

    def _write(self, row: dict[str, Any]) -> None:
        if self._log is not None:
            with self._log.open("a") as file:
                file.write(json.dumps(row) + "\n")


def logged(folder: Path) -> list[tuple[bool, Any, Any]]:
    """Every step of all instances: whether it began an episode, the observation, and the action that was taken."""
    steps = []
    for path in folder.iterdir():
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        for seen, done in pairwise(rows):
            if "obs" in seen and "action" in done:
                place, kind, mask = seen["obs"]
                masks = {key: np.array(one, np.int8) for key, one in mask.items()}
                obs = {"place": np.array(place, np.float32), "kind": kind, "action_mask": masks}
                steps.append((seen["first"], obs, done["action"]))
    return steps

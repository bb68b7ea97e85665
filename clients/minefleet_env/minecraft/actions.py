"""VPT's action space and its mapping to keys and mouse.

    policy                            engine
    buttons 0..8640, camera 0..120    {key: 0 or 1, "camera": degrees}

As published: `lib/action_mapping.py` (`CameraHierarchicalMapping`) and `lib/actions.py` (`ActionTransformer`) of
OpenAI's Video-Pre-Training, with the settings of its `agent.py`. MineStudio's `minestudio.utils.vpt_lib` is the same.

A value of `buttons` is one choice out of each of `GROUPS` and whether the camera turns, as digits of a number, the last
of them the lowest; the highest value is the inventory alone. A value of `camera` is 11 × pitch bin + yaw bin.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    Ints = NDArray[np.int64]

HOTBAR = tuple(f"hotbar.{slot}" for slot in range(1, 10))
BUTTONS = (
    *("attack", "back", "forward", "jump", "left", "right", "sneak", "sprint", "use", "drop", "inventory"),
    *HOTBAR,
)
"""The keys."""
GROUPS = (
    HOTBAR,
    ("forward", "back"),
    ("left", "right"),
    ("sprint", "sneak"),
    ("use",),
    ("drop",),
    ("attack",),
    ("jump",),
)
"""Keys that exclude each other."""
CHOICES = (*(len(group) + 1 for group in GROUPS), 2)
"""Values of each digit: none of a group's keys or one of them; last, whether the camera turns."""
INVENTORY = int(np.prod(CHOICES))
NUM_BUTTONS = INVENTORY + 1
CAMERA_BINS = 11
"""Bins of each axis of the camera."""
NUM_CAMERA = CAMERA_BINS**2
NULL_CAMERA = NUM_CAMERA // 2
"""The camera at rest."""
MAX_DEGREES = 10.0
BIN_DEGREES = 2.0
"""Width of a bin, in degrees after the compression."""
MU = 10.0


def camera_degrees(bins: Any) -> NDArray[np.float64]:
    """Degrees that the camera turns for bins 0..10: the middle of each, μ-law expanded (ITU-T G.711, μ = 10)."""
    compressed = (np.asarray(bins) * BIN_DEGREES - MAX_DEGREES) / MAX_DEGREES
    expanded: NDArray[np.float64] = np.sign(compressed) / MU * ((1 + MU) ** np.abs(compressed) - 1) * MAX_DEGREES
    return expanded


def to_engine(action: Mapping[str, Any]) -> dict[str, Any]:
    """One action of the policy, `{"buttons": ..., "camera": ...}`, as the engine takes it: a new dict.

    Raises:
        ValueError: If a value is out of range.
    """
    buttons = one("buttons", action["buttons"], NUM_BUTTONS)
    camera = one("camera", action["camera"], NUM_CAMERA)
    degrees = _DEGREES[camera if _TURNS[buttons] else NULL_CAMERA]
    return dict(zip(BUTTONS, _PRESSED[buttons].tolist()), camera=degrees.copy())


def one(name: str, value: Any, count: int) -> int:
    """A single value, an array of one included, without the price of arrays: it is paid in every step.

    Raises:
        ValueError: If it is no integer, or not below `count`.
    """
    number = value.item() if isinstance(value, np.ndarray) and value.size == 1 else value
    if not isinstance(number, (int, np.integer)) or not 0 <= number < count:
        raise ValueError(f"{name} must be an integer from 0 to {count - 1}, got {value}")
    return int(number)


def _tables() -> tuple[Ints, NDArray[np.bool_]]:
    """[8641, 20] which keys are pressed, [8641] whether the camera may turn: the inventory leaves it as it is."""
    pressed = np.zeros((NUM_BUTTONS, len(BUTTONS)), np.int64)
    digits = np.stack(np.unravel_index(np.arange(INVENTORY), CHOICES))
    for group, digit in zip(GROUPS, digits):
        for place, key in enumerate(group, start=1):
            pressed[:INVENTORY, BUTTONS.index(key)] = digit == place
    pressed[INVENTORY, BUTTONS.index("inventory")] = 1
    return pressed, np.append(digits[-1] == 1, True)


_PRESSED, _TURNS = _tables()
_DEGREES = camera_degrees(np.stack(np.divmod(np.arange(NUM_CAMERA), CAMERA_BINS), axis=-1))
"""[121, 2] float64, degrees of pitch and yaw."""

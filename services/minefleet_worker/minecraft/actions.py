"""VPT's action space and its mapping to keys and mouse, both ways.

    policy                          factored                           engine
    buttons 0..8640, camera 0..120  pressed [..., 20], bins [..., 2]   {key: 0 or 1, "camera": degrees}

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
"""The keys, in the order of factored actions."""
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
"""Keys that exclude each other. Of several that are pressed the last one counts; `OPPOSITES` undo each other."""
OPPOSITES = (GROUPS[1], GROUPS[2])
CHOICES = (*(len(group) + 1 for group in GROUPS), 2)
"""Values of each digit: none of a group's keys or one of them; last, whether the camera turns."""
INVENTORY = int(np.prod(CHOICES))
NUM_BUTTONS = INVENTORY + 1
CAMERA_BINS = 11
"""Bins of each axis of the camera."""
NUM_CAMERA = CAMERA_BINS**2
NULL_BIN = CAMERA_BINS // 2
NULL_CAMERA = NUM_CAMERA // 2
"""The camera at rest."""
MAX_DEGREES = 10.0
BIN_DEGREES = 2.0
"""Width of a bin, in degrees after the compression."""
MU = 10.0


def to_factored(buttons: Any, camera: Any) -> tuple[Ints, Ints]:
    """Returns which keys are pressed and where the camera turns. It rests where `buttons` says that it does not turn.

    Args:
        buttons: [...] integers, 0..8640.
        camera: [...] integers, 0..120.

    Returns:
        [..., 20] int64, 0 or 1, in the order of `BUTTONS`; [..., 2] int64, 0..10, bins of pitch and yaw.

    Raises:
        ValueError: If a value is out of range.
    """
    buttons, camera = _counted("buttons", buttons, NUM_BUTTONS), _counted("camera", camera, NUM_CAMERA)
    turns = _TURNS[buttons]
    return _PRESSED[buttons], np.where(turns[..., None], _unravelled(camera), NULL_BIN)


def from_factored(pressed: Any, bins: Any) -> tuple[Ints, Ints]:
    """Inverts `to_factored`; what has no counterpart becomes what is nearest by the rules of `GROUPS`.

    Args:
        pressed: [..., 20], 0 or 1, in the order of `BUTTONS`.
        bins: [..., 2] integers, 0..10.

    Returns:
        buttons and camera, [...] int64. With the inventory nothing else is pressed and the camera rests.

    Raises:
        ValueError: If a bin is out of range.
    """
    pressed, bins = np.asarray(pressed) != 0, _counted("a camera bin", bins, CAMERA_BINS)
    camera = bins[..., 0] * CAMERA_BINS + bins[..., 1]
    digits = [*(_choice(pressed, group) for group in GROUPS), camera != NULL_CAMERA]
    buttons = np.ravel_multi_index([np.asarray(digit, np.int64) for digit in digits], CHOICES)
    opens = pressed[..., BUTTONS.index("inventory")]
    return np.where(opens, INVENTORY, buttons), np.where(opens, NULL_CAMERA, camera)


def camera_degrees(bins: Any) -> NDArray[np.float64]:
    """Degrees that the camera turns for bins 0..10: the middle of each, μ-law expanded (ITU-T G.711, μ = 10)."""
    compressed = (np.asarray(bins) * BIN_DEGREES - MAX_DEGREES) / MAX_DEGREES
    expanded: NDArray[np.float64] = np.sign(compressed) / MU * ((1 + MU) ** np.abs(compressed) - 1) * MAX_DEGREES
    return expanded


def camera_bins(degrees: Any) -> Ints:
    """Inverts `camera_degrees`, for any degrees: clipped to ±10, compressed, and rounded to a bin.

    Raises:
        ValueError: If an angle is not finite.
    """
    degrees = np.asarray(degrees)
    if not np.isfinite(degrees).all():
        raise ValueError(f"the camera must turn by finite degrees, got {degrees.tolist()}")
    share = np.clip(degrees, -MAX_DEGREES, MAX_DEGREES) / MAX_DEGREES
    compressed = np.sign(share) * (np.log(1 + MU * np.abs(share)) / np.log(1 + MU)) * MAX_DEGREES
    bins: Ints = np.round((compressed + MAX_DEGREES) / BIN_DEGREES).astype(np.int64)
    return bins


def to_engine(action: Mapping[str, Any]) -> dict[str, Any]:
    """One action of the policy, `{"buttons": ..., "camera": ...}`, as the engine takes it: a new dict.

    Raises:
        ValueError: If a value is out of range.
    """
    buttons = one("buttons", action["buttons"], NUM_BUTTONS)
    camera = one("camera", action["camera"], NUM_CAMERA)
    degrees = _DEGREES[camera if _TURNS[buttons] else NULL_CAMERA]
    return dict(zip(BUTTONS, _PRESSED[buttons].tolist()), camera=degrees.copy())


def from_engine(action: Mapping[str, Any]) -> dict[str, int]:
    """Inverts `to_engine`; keys that are missing are not pressed, and those that VPT does not know are ignored.

    Raises:
        ValueError: If the camera's angles are not finite.
    """
    pressed = [int(np.asarray(action.get(key, 0)).item()) for key in BUTTONS]
    buttons, camera = from_factored(pressed, camera_bins(action.get("camera", (0.0, 0.0))))
    return {"buttons": int(buttons), "camera": int(camera)}


def _counted(name: str, values: Any, count: int) -> Ints:
    array = np.asarray(values)
    if array.dtype.kind not in "iu":
        raise ValueError(f"{name} must be an integer, got {array.dtype}")
    if array.size and not (array.min() >= 0 and array.max() < count):
        wrong = array[(array < 0) | (array >= count)].flat[0]
        raise ValueError(f"{name} must be from 0 to {count - 1}, got {wrong}")
    counted: Ints = array.astype(np.int64)
    return counted


def one(name: str, value: Any, count: int) -> int:
    """A single value, an array of one included, without the price of arrays: it is paid in every step.

    Raises:
        ValueError: If it is no integer, or not below `count`.
    """
    number = value.item() if isinstance(value, np.ndarray) and value.size == 1 else value
    if not isinstance(number, (int, np.integer)) or not 0 <= number < count:
        raise ValueError(f"{name} must be an integer from 0 to {count - 1}, got {value}")
    return int(number)


def _unravelled(camera: Ints) -> Ints:
    return np.stack(np.divmod(camera, CAMERA_BINS), axis=-1)


def _choice(pressed: NDArray[np.bool_], group: tuple[str, ...]) -> Ints:
    """0 for none of the group, else 1 + the place of the key that counts."""
    keys = pressed[..., [BUTTONS.index(key) for key in group]]
    if group in OPPOSITES:
        keys = keys & ~keys.all(axis=-1, keepdims=True)
    places: Ints = (keys * np.arange(1, len(group) + 1)).max(axis=-1)
    return places


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
_DEGREES = camera_degrees(_unravelled(np.arange(NUM_CAMERA)))
"""[121, 2] float64, degrees of pitch and yaw."""

"""Positions, and the target of the crosshair. Angles are Minecraft's: degrees, yaw 0 faces +z, 90 faces -x."""

import math
from dataclasses import dataclass

EYE = 1.62
"""Height of the eyes above the feet, metres."""


@dataclass(slots=True)
class Pose:
    """The player's position and direction; metres and degrees. A pitch above 0 looks down."""

    x: float = 0.0
    y: float = 64.0
    z: float = 0.0
    yaw: float = 0.0
    pitch: float = 0.0

    def turn(self, pitch: float, yaw: float) -> None:
        """Turns by so many degrees."""
        self.pitch = min(90.0, max(-90.0, self.pitch + pitch))
        self.yaw = wrap(self.yaw + yaw)

    def walk(self, ahead: float, right: float) -> None:
        """Walks so many metres."""
        sine, cosine = math.sin(math.radians(self.yaw)), math.cos(math.radians(self.yaw))
        self.x += -sine * ahead - cosine * right
        self.z += cosine * ahead - sine * right


@dataclass(frozen=True, slots=True)
class Box:
    """An upright box that faces the player, wherever he stands: metres, `bottom` above the ground he stands on."""

    x: float
    z: float
    width: float
    height: float
    bottom: float = 0.0


@dataclass(frozen=True, slots=True)
class View:
    """A box as the player sees it: degrees from the crosshair, to the right and down, and metres."""

    left: float
    right: float
    top: float
    bottom: float
    distance: float

    @property
    def in_crosshair(self) -> bool:
        """Whether the crosshair is on it."""
        return self.left <= 0.0 <= self.right and self.top <= 0.0 <= self.bottom


def view(pose: Pose, box: Box) -> View:
    """A box as the player sees it."""
    dx, dz = box.x - pose.x, box.z - pose.z
    distance = max(math.hypot(dx, dz), 0.1)
    middle = wrap(math.degrees(math.atan2(-dx, dz)) - pose.yaw)
    half = math.degrees(math.atan2(box.width / 2, distance))
    top = math.degrees(math.atan2(EYE - box.bottom - box.height, distance)) - pose.pitch
    bottom = math.degrees(math.atan2(EYE - box.bottom, distance)) - pose.pitch
    return View(middle - half, middle + half, top, bottom, distance)


def wrap(degrees: float) -> float:
    """The same angle in [-180, 180)."""
    return (degrees + 180.0) % 360.0 - 180.0

"""Draws the world: sky and ground with the pitch, landmarks with the yaw, and boxes for all that stands on the ground.

The picture is linear in angle, which is not quite a perspective and costs a copy of the panorama and a few rectangles.
"""

from collections.abc import Iterator
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from .geometry import Box, View, view
from .landscape import tufts
from .report import DAY_TICKS, NIGHT_FROM
from .world import World

WIDTH_DEG = 102.4
"""Field of view of a 16:9 window at Minecraft's default of 70 degrees high."""
HEIGHT_DEG = 70.0
SIGHT_M = 32.0
SKY = np.array([120, 170, 255])
GROUND = np.array([90, 150, 60])
LANDMARK_DEG = 15
"""Width of the stripes on the ground and in the sky, each of another shade."""
TRUNK, CROWN, TUFT, BLOCK, PANEL = (100, 75, 45), (45, 95, 35), (60, 120, 40), (150, 110, 180), (198, 198, 198)
MOBS = {
    "chicken": ((240, 240, 240), (200, 40, 30)),
    "cow": ((85, 50, 30), (235, 225, 215)),
    "pig": ((240, 160, 160), (210, 110, 110)),
    "sheep": ((225, 225, 225), (110, 90, 80)),
}
STRANGER = ((160, 40, 160), (40, 160, 160))

Picture = NDArray[np.uint8]
Colour = tuple[int, int, int]


def draw(world: World) -> Picture:
    """The picture that the player sees [height, width, 3], the top row first; the last one is first in memory."""
    width, height = world.mission.width, world.mission.height
    panorama = _panorama(width, height)
    top = round((world.pose.pitch + 90.0) * height / HEIGHT_DEG)
    left = round((world.pose.yaw + 180.0) * width / WIDTH_DEG)
    picture = np.empty((height, width, 3), np.uint8)[::-1]
    picture[:] = panorama[top : top + height, left : left + width]
    for seen, colours in sorted(_visible(world), key=lambda each: -each[0].distance):
        _paint(picture, seen, *colours)
    _overlay(picture, world)
    return picture


@lru_cache(maxsize=2)
def _panorama(width: int, height: int) -> Picture:
    """All directions [from straight up to straight down, once around and a picture's width more, 3]."""
    rows = 1 + round(180.0 * height / HEIGHT_DEG) + height
    columns = 1 + round(360.0 * width / WIDTH_DEG) + width
    elevation = 90.0 - (np.arange(rows) - height / 2) * HEIGHT_DEG / height
    yaw = (np.arange(columns) - width / 2) * WIDTH_DEG / width % 360.0
    shade = np.random.default_rng(0).uniform(0.75, 1.0, 360 // LANDMARK_DEG)[(yaw // LANDMARK_DEG).astype(int)]
    depth = 1.0 - np.abs(np.clip(elevation, -90.0, 90.0)) / 180.0
    base = np.where(elevation[:, None] > 0, SKY, GROUND) * depth[:, None]
    panorama: Picture = (base[:, None, :] * shade[None, :, None]).astype(np.uint8)
    return panorama


def _visible(world: World) -> Iterator[tuple[View, tuple[Colour, Colour]]]:
    """The boxes before the player, and their colours: of the body, and of the upper third."""
    for box, colours in _boxes(world):
        seen = view(world.pose, box)
        if seen.distance <= SIGHT_M and seen.left < WIDTH_DEG / 2 and seen.right > -WIDTH_DEG / 2:
            yield seen, colours


def _boxes(world: World) -> Iterator[tuple[Box, tuple[Colour, Colour]]]:
    for tuft in tufts(world.seed, world.pose.x, world.pose.z):
        yield tuft, (TUFT, TUFT)
    for tree in world.standing_trees():
        yield tree.crown, (CROWN, CROWN)
        yield tree.trunk, (TRUNK, TRUNK)
    for x, y, z in world.blocks:
        yield Box(x, z, 1.0, 1.0, y - world.pose.y), (BLOCK, BLOCK)
    for mob in world.mobs:
        yield mob.box, MOBS.get(mob.kind, STRANGER)


def _paint(picture: Picture, seen: View, body: Colour, head: Colour) -> None:
    height, width = picture.shape[:2]
    left, right = (max(0, _pixel(degrees, width, WIDTH_DEG)) for degrees in (seen.left, seen.right))
    top, bottom = (_pixel(degrees, height, HEIGHT_DEG) for degrees in (seen.top, seen.bottom))
    neck = top + (bottom - top) // 3
    picture[max(0, neck) : max(0, bottom), left:right] = body
    picture[max(0, top) : max(0, neck), left:right] = head


def _pixel(degrees: float, size: int, field_deg: float) -> int:
    return round(size / 2 + degrees * size / field_deg)


def _overlay(picture: Picture, world: World) -> None:
    """The layers over the world: the night, the inventory, the crosshair."""
    height, width = picture.shape[:2]
    if (world.time + world.tick) % DAY_TICKS >= NIGHT_FROM:
        picture >>= 1
    if world.gui_open:
        picture[height // 5 : height * 4 // 5, width // 4 : width * 3 // 4] = PANEL
    else:
        arm = max(1, height // 60)
        picture[height // 2 - 1 : height // 2 + 1, width // 2 - arm : width // 2 + arm] = 255
        picture[height // 2 - arm : height // 2 + arm, width // 2 - 1 : width // 2 + 1] = 255

"""The engine's report beside the picture, as both packages' handlers read it."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from .inventory import SLOTS, WORN
from .world import World

LIFE_STATS = {"is_alive": True, "life": 20.0, "score": 0, "food": 20, "saturation": 5.0, "xp": 0, "air": 300}
DAY_TICKS = 24000
NIGHT_FROM = 13000


def report(world: World, commands: Mapping[str, str]) -> bytes:
    """The info of a step, JSON; what the step asked to see, voxels and mobs, is in it."""
    told = _player(world) | {"inventory": _inventory(world), "equipped_items": _equipped(world)} | world.events
    if "voxels" in commands:
        told["voxels"] = list(_voxels(world, _bounds(commands["voxels"])))
    if "mobs" in commands:
        told["mobs"] = list(_mobs(world, _bounds(commands["mobs"])))
    return json.dumps(told).encode()


def _player(world: World) -> dict[str, Any]:
    pose, is_day = world.pose, (world.time + world.tick) % DAY_TICKS < NIGHT_FROM
    return {
        "xpos": pose.x,
        "ypos": pose.y,
        "zpos": pose.z,
        "yaw": pose.yaw,
        "pitch": pose.pitch,
        "isGuiOpen": world.gui_open,
        "health": LIFE_STATS["life"],
        "food_level": LIFE_STATS["food"],
        "life_stats": LIFE_STATS,
        "is_raining": int(world.weather != "clear"),
        "sun_brightness": 0.94 if is_day else 0.1,
        "can_see_sky": 1,
    }


def _inventory(world: World) -> list[dict[str, Any]]:
    stacks = world.inventory.stacks
    return [
        {"slot_id": slot, "type": kind, "quantity": quantity}
        for slot in range(SLOTS)
        for kind, quantity in (stacks.get(slot, ("none", 0)),)
    ]


def _equipped(world: World) -> dict[str, str]:
    items = {"mainhand": world.inventory.held} | {slot: world.inventory.worn.get(slot, "air") for slot in WORN}
    return {slot: json.dumps({"type": item, "damage": 0, "maxDamage": 0}) for slot, item in items.items()}


def _voxels(world: World, bounds: tuple[range, range, range]) -> Iterator[dict[str, Any]]:
    """Blocks that are not air, at places relative to the player: what stands there, and the surface of the ground."""
    here_x, here_y, here_z = round(world.pose.x), round(world.pose.y), round(world.pose.z)
    xs, ys, zs = bounds
    for (x, y, z), block in world.blocks.items():
        place = (x - here_x, y - here_y, z - here_z)
        if place[0] in xs and place[1] in ys and place[2] in zs:
            yield dict(zip("xyz", place, strict=True), type=block)
    if -1 in ys:
        yield from ({"x": x, "y": -1, "z": z, "type": "grass_block"} for x in xs for z in zs)


def _mobs(world: World, bounds: tuple[range, range, range]) -> Iterator[dict[str, Any]]:
    xs, _, zs = bounds
    for mob in world.mobs:
        x, z = mob.x - world.pose.x, mob.z - world.pose.z
        if round(x) in xs and round(z) in zs:
            yield {"name": mob.kind, "x": x, "y": 0.0, "z": z, "health": mob.health}


def _bounds(text: str) -> tuple[range, range, range]:
    """`x0,x1,y0,y1,z0,z1`, both ends included."""
    x0, x1, y0, y1, z0, z1 = map(int, text.split(","))
    return range(x0, x1 + 1), range(y0, y1 + 1), range(z0, z1 + 1)

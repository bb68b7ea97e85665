"""Slash commands, as the callbacks of MineStudio send them. One that is not known is ignored."""

import re
import shlex
from collections.abc import Callable

from .inventory import HOTBAR
from .world import World

EXECUTE = re.compile(r"^execute .*? run ")
HEALTH_TAG = re.compile(r"Health:\s*([\d.]+)")
HAND = {"weapon.mainhand", "weapon"}
PLAYERS = ("@a", "@p", "@s", "")
Words = list[str]


def obey(world: World, line: str) -> None:
    """Carries out a command."""
    command = EXECUTE.sub("", line.removeprefix("/"))
    head, brace, tags = command.partition("{")
    words = shlex.split(head)
    if words and (known := COMMANDS.get(words[0])):
        known(world, words[1:] + ([brace + tags] if brace else []))


def _summon(world: World, words: Words) -> None:
    x, _, z = _place(world, words[1:4])
    health = HEALTH_TAG.search(words[4]) if len(words) > 4 else None
    world.summon(_bare(words[0]), x, z, float(health[1]) if health else None)


def _kill(world: World, words: Words) -> None:
    target = words[0] if words else ""
    if target in PLAYERS:
        world.respawn()
    elif target == "@e[type=!player]":
        world.mobs.clear()
    elif kind := re.match(r"@e\[type=(?:minecraft:)?(\w+)", target):
        world.mobs[:] = [mob for mob in world.mobs if mob.kind != kind[1]]


def _give(world: World, words: Words) -> None:
    world.inventory.add(_bare(words[1]), int(words[2]) if len(words) > 2 else 1)


def _clear(world: World, words: Words) -> None:
    world.inventory.clear()


def _replace_item(world: World, words: Words) -> None:
    place, item, quantity = words[2], _bare(words[3]), int(words[4]) if len(words) > 4 else 1
    where, _, number = place.partition(".")
    if place in HAND:
        world.inventory.put(world.inventory.selected, item, quantity)
    elif where == "hotbar":
        world.inventory.put(int(number), item, quantity)
    elif where == "inventory":
        world.inventory.put(HOTBAR + int(number), item, quantity)
    else:
        world.inventory.worn[number] = item


def _teleport(world: World, words: Words) -> None:
    place = words[1:] if words[0].startswith("@") else words
    world.pose.x, world.pose.y, world.pose.z = _place(world, place[:3])
    if len(place) >= 5:
        world.pose.yaw, world.pose.pitch = (
            _coordinate(text, now) for text, now in zip(place[3:5], (world.pose.yaw, world.pose.pitch), strict=True)
        )


def _teleport_biome(world: World, words: Words) -> None:
    world.biome = _bare(words[1])
    if len(words) >= 5:
        world.pose.x, world.pose.y, world.pose.z = _place(world, words[2:5])
    world.spawn = (world.pose.x, world.pose.z)


def _time(world: World, words: Words) -> None:
    if words[0] == "set":
        world.time = {"day": 1000, "night": 13000}.get(words[1]) or int(words[1])


def _weather(world: World, words: Words) -> None:
    world.weather = words[0]


def _set_block(world: World, words: Words) -> None:
    x, y, z = map(round, _place(world, words[:3]))
    world.blocks.pop((x, y, z), None)
    if (block := _bare(words[3])) != "air":
        world.blocks[x, y, z] = block


COMMANDS: dict[str, Callable[[World, Words], None]] = {
    "clear": _clear,
    "give": _give,
    "kill": _kill,
    "replaceitem": _replace_item,
    "setblock": _set_block,
    "summon": _summon,
    "teleport": _teleport,
    "teleportbiome": _teleport_biome,
    "time": _time,
    "tp": _teleport,
    "weather": _weather,
}


def _place(world: World, words: Words) -> tuple[float, float, float]:
    pose = world.pose
    if len(words) < 3:
        return pose.x, pose.y, pose.z
    x, y, z = (_coordinate(text, now) for text, now in zip(words, (pose.x, pose.y, pose.z), strict=True))
    return x, y, z


def _coordinate(text: str, now: float) -> float:
    return now + float(text[1:] or 0) if text.startswith("~") else float(text)


def _bare(name: str) -> str:
    return name.removeprefix("minecraft:")

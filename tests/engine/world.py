"""A small flat world that follows from its seed and from what the player does: cows, trees, blocks and counted events.

It has what reward functions look at, and no more of Minecraft than that: animals stand still, nothing attacks, and
there is one player.
"""

import random
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from .geometry import Box, Pose, view
from .inventory import HOTBAR, Inventory
from .landscape import LOGS, Tree, trees
from .protocol import Mission

REACH = 3.0
"""Metres at which a mob can be hit."""
MINING_REACH = 4.5
HEALTH = {"chicken": 4.0, "cow": 10.0, "pig": 10.0, "sheep": 8.0}
DAMAGE = {"wooden_sword": 4.0, "stone_sword": 5.0, "iron_sword": 6.0, "diamond_sword": 7.0}
DROPS = {"chicken": "chicken", "cow": "beef", "pig": "porkchop", "sheep": "mutton"}
TICKS_TO_MINE = 30
TICKS_TO_MINE_WITH_AXE = 10
LOOKS_DOWN = 30.0
"""Pitch from which the crosshair is on the ground."""
STEP_M = 0.216
"""Metres walked in a tick."""
RECIPES = (("oak_log", 1, "oak_planks", 4), ("oak_planks", 4, "crafting_table", 1))
NATIVES = 6
PLACEABLE = ("_log", "_planks", "dirt", "obsidian", "cobblestone", "crafting_table", "_block", "stone")


@dataclass(slots=True)
class Mob:
    """An animal."""

    kind: str
    x: float
    z: float
    health: float

    @property
    def box(self) -> Box:
        """The box in which it can be hit: a little taller than in Minecraft, so that it can be hit without looking
        down."""
        return Box(self.x, self.z, 0.9, 1.9)


@dataclass(slots=True)
class World:
    """All that there is."""

    mission: Mission
    seed: int
    tick: int = 0
    pose: Pose = field(default_factory=Pose)
    spawn: tuple[float, float] = (0.0, 0.0)
    biome: str = ""
    time: int = 0
    weather: str = "clear"
    gui_open: bool = False
    dead: bool = False
    inventory: Inventory = field(default_factory=Inventory)
    mobs: list[Mob] = field(default_factory=list)
    blocks: dict[tuple[int, int, int], str] = field(default_factory=dict)
    felled: dict[Tree, int] = field(default_factory=dict)
    """Logs taken from each tree."""
    events: dict[str, dict[str, int]] = field(default_factory=lambda: defaultdict(lambda: defaultdict(int)))
    """Counts since the world was made, by kind of event and by object."""
    mining: int = 0
    pressed: frozenset[str] = frozenset()

    def step(self, commands: Mapping[str, str]) -> None:
        """One tick: the player turns, walks and acts."""
        self.tick += 1
        self.dead = False
        down = frozenset(verb for verb, value in commands.items() if value == "1")
        if "camera" in commands and not self.gui_open:
            self.pose.turn(*map(float, commands["camera"].split()))
        self._select(down)
        if self.gui_open:
            self._craft(down)
        else:
            self._walk(down)
            self._attack("attack" in down)
            self._use(down)
        if "inventory" in down - self.pressed:
            self.gui_open = not self.gui_open
        self.pressed = down

    def summon(self, kind: str, x: float, z: float, health: float | None = None) -> None:
        """Puts an animal somewhere."""
        self.mobs.append(Mob(kind, x, z, HEALTH.get(kind, 20.0) if health is None else health))

    def respawn(self) -> None:
        """The player dies and is back at the spawn, with nothing."""
        self.pose = Pose(x=self.spawn[0], z=self.spawn[1])
        self.inventory.clear()
        self.events["custom"]["deaths"] += 1
        self.dead = True

    def standing_trees(self) -> Iterator[Tree]:
        """Trees near the player that have logs left."""
        near = trees(self.seed, self.biome, self.pose.x, self.pose.z)
        return (tree for tree in near if self.felled.get(tree, 0) < LOGS)

    def _select(self, down: frozenset[str]) -> None:
        for slot in range(HOTBAR):
            if f"hotbar.{slot + 1}" in down:
                self.inventory.selected = slot
        if "drop" in down - self.pressed and (item := self.inventory.held) != "air":
            self.inventory.remove(item, 1)
            self.events["drop"][item] += 1

    def _walk(self, down: frozenset[str]) -> None:
        speed = STEP_M * (1.3 if "sprint" in down else 0.3 if "sneak" in down else 1.0)
        ahead, right = ("forward" in down) - ("back" in down), ("right" in down) - ("left" in down)
        self.pose.walk(speed * ahead, speed * right)
        self.events["custom"]["walk_one_cm"] += round(100 * speed) * bool(ahead or right)
        self.events["custom"]["jump"] += "jump" in down - self.pressed

    def _attack(self, attacking: bool) -> None:
        if not attacking:
            self.mining = 0
        elif (mob := self._mob_in_crosshair()) is not None:
            self._hit(mob)
        elif (tree := self._tree_in_crosshair()) is not None:
            if self._mined():
                self.felled[tree] = self.felled.get(tree, 0) + 1
                self._collect("oak_log", "oak_log")
        elif self.pose.pitch >= LOOKS_DOWN and self._mined():
            self._collect("grass_block", "dirt")

    def _mob_in_crosshair(self) -> Mob | None:
        seen = ((view(self.pose, mob.box), mob) for mob in self.mobs)
        hit = [(seen.distance, index, mob) for index, (seen, mob) in enumerate(seen) if seen.in_crosshair]
        return min(hit)[2] if hit and min(hit)[0] <= REACH else None

    def _tree_in_crosshair(self) -> Tree | None:
        for tree in self.standing_trees():
            seen = view(self.pose, tree.trunk)
            if seen.in_crosshair and seen.distance <= MINING_REACH:
                return tree
        return None

    def _hit(self, mob: Mob) -> None:
        damage = DAMAGE.get(self.inventory.held, 1.0)
        mob.health -= damage
        self.events["custom"]["damage_dealt"] += round(10 * damage)
        if mob.health <= 0:
            self.mobs.remove(mob)
            self.events["kill_entity"][mob.kind] += 1
            self.events["custom"]["mob_kills"] += 1
            self._pick_up(DROPS.get(mob.kind, "bone"))

    def _mined(self) -> bool:
        """Whether what is being mined breaks with this tick."""
        self.mining += 1
        ticks = TICKS_TO_MINE_WITH_AXE if self.inventory.held.endswith("_axe") else TICKS_TO_MINE
        if self.mining < ticks:
            return False
        self.mining = 0
        return True

    def _collect(self, block: str, item: str) -> None:
        self.events["mine_block"][block] += 1
        self._pick_up(item)

    def _pick_up(self, item: str) -> None:
        self.inventory.add(item, 1)
        self.events["pickup"][item] += 1

    def _use(self, down: frozenset[str]) -> None:
        item = self.inventory.held
        if "use" not in down - self.pressed or item == "air":
            return
        self.events["use_item"][item] += 1
        if item.endswith(PLACEABLE) and self.pose.pitch >= LOOKS_DOWN:
            self.inventory.remove(item, 1)
            self._place(item)

    def _place(self, block: str) -> None:
        """Puts a block before the player's feet, upon what is there."""
        ahead = Pose(self.pose.x, self.pose.y, self.pose.z, self.pose.yaw)
        ahead.walk(2.0, 0.0)
        x, y, z = round(ahead.x), round(self.pose.y), round(ahead.z)
        while (x, y, z) in self.blocks:
            y += 1
        self.blocks[x, y, z] = block

    def _craft(self, down: frozenset[str]) -> None:
        """A click in the open inventory makes the first thing that can be made."""
        if "attack" in down - self.pressed:
            for needed, count, made, yields in RECIPES:
                if self.inventory.count(needed) >= count:
                    self.inventory.remove(needed, count)
                    self.inventory.add(made, yields)
                    self.events["craft_item"][made] += yields
                    return


def new_world(mission: Mission, seed: int) -> World:
    """The world of a mission as it is at first: with a few animals around the player."""
    world = World(mission, seed, biome=mission.biome)
    for slot, item, quantity in mission.inventory:
        world.inventory.put(slot, item.removeprefix("minecraft:"), quantity)
    chance = random.Random(seed)
    for _ in range(NATIVES):
        bearing, distance = Pose(yaw=chance.uniform(-180.0, 180.0)), chance.uniform(4.0, 16.0)
        bearing.walk(distance, 0.0)
        world.summon(chance.choice(("cow", "cow", "sheep", "pig")), bearing.x, bearing.z)
    return world

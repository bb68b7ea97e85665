"""The stand-in's world, without a socket: what hits, what is drawn, what is counted, and the marks in its pictures."""

import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from tests.engine import marks
from tests.engine.engine import Engine
from tests.engine.faults import Faults

MEADOW = "<PreferredSpawnBiome>plains</PreferredSpawnBiome>"
COW = [[85, 50, 30], [235, 225, 215]]
"""Of body and head."""


def begin(biome: str = MEADOW, seed: int = 7) -> Engine:
    engine = Engine(Faults())
    engine.begin(biome, f"uid:0:0:1:true:{seed}")
    say(engine, "/kill @e[type=!player]")
    return engine


def say(engine: Engine, command: str) -> dict[str, Any]:
    return step(engine, f"chat {command}")


def step(engine: Engine, *commands: str) -> dict[str, Any]:
    return dict(json.loads(engine.step("<StepClient0>" + "\n".join(commands) + "</StepClient0 >").info))


def picture(engine: Engine) -> NDArray[np.uint8]:
    return np.frombuffer(engine.look().picture, np.uint8).reshape(360, 640, 3)[::-1]


def summon(engine: Engine, bearing: float, distance: float) -> None:
    x, z = -math.sin(math.radians(bearing)) * distance, math.cos(math.radians(bearing)) * distance
    say(engine, f"/execute as @p at @p run summon minecraft:cow ~{x} ~3 ~{z} {{Health:1f}}")


@given(bearing=st.floats(-180, 180), turned=st.floats(-180, 180), distance=st.floats(1.0, 4.0))
def test_a_cow_is_hit_exactly_where_the_crosshair_is_drawn_upon_it_within_reach(
    bearing: float, turned: float, distance: float
) -> None:
    engine = begin()
    summon(engine, bearing, distance)
    step(engine, f"camera 0 {turned}")
    middle = picture(engine)[200, 310:330]
    cow = (middle[:, None] == COW).all(-1).any(-1)
    killed = "kill_entity" in step(engine, "attack 1")
    if cow.all() and distance < 3.0:
        assert killed
    if not cow.any() or distance > 3.0:
        assert not killed


def test_engine_of_the_same_seed_and_commands_draws_the_same_pictures() -> None:
    walks = [begin("", seed) for seed in (1, 1, 2)]
    for engine in walks:
        for _ in range(5):
            step(engine, "forward 1", "camera 3 10")
    first, second, third = (engine.look() for engine in walks)
    assert first == second
    assert first.picture != third.picture


def test_wood_is_mined_and_crafted_and_what_is_held_is_placed() -> None:
    engine = begin()
    say(engine, "/give @p minecraft:oak_log 1")
    step(engine, "inventory 1")
    told = step(engine, "attack 1")
    assert told["craft_item"] == {"oak_planks": 4}
    step(engine, "inventory 1")
    step(engine, "camera 45 0")
    step(engine, "use 1")
    told = step(engine, "voxels -3,3,-1,1,-3,3")
    assert told["use_item"] == {"oak_planks": 1}
    assert {"x": 0, "y": 0, "z": 2, "type": "oak_planks"} in told["voxels"]
    for _ in range(30):
        told = step(engine, "attack 1")
    assert told["mine_block"] == {"grass_block": 1}
    assert {"slot_id": 0, "type": "oak_planks", "quantity": 3} in told["inventory"]


@pytest.mark.parametrize(
    ("command", "key", "value"),
    [
        ("/tp @a 10 64 -5", "zpos", -5.0),
        ("/tp @p ~ ~ ~ 90 30", "yaw", 90.0),
        ("/teleportbiome @a forest 100 ~0 200", "xpos", 100.0),
        ("/time set 18000", "sun_brightness", 0.1),
        ("/weather rain", "is_raining", 1),
        ("/effect @p 5 9999 255 true", "health", 20.0),
    ],
)
def test_engine_obeys_commands_and_ignores_unknown_ones(command: str, key: str, value: float) -> None:
    engine = begin()
    say(engine, command)
    assert step(engine)[key] == value


def test_engine_death_empties_the_hands_and_ends_a_mission_that_ends_with_it() -> None:
    engine = begin(MEADOW + "<DoneOnDeath/>")
    say(engine, "/replaceitem entity @p weapon.mainhand minecraft:iron_sword 1")
    assert json.loads(step(engine)["equipped_items"]["mainhand"])["type"] == "iron_sword"
    shown = engine.step("<StepClient0>chat /kill</StepClient0 >")
    assert shown.done
    assert json.loads(json.loads(shown.info)["equipped_items"]["mainhand"])["type"] == "air"


@given(engine=st.integers(0, 2**24 - 1), tick=st.integers(0, 2**24 - 1), size=st.sampled_from([(360, 640), (64, 64)]))
def test_engine_mark_is_read_as_it_was_drawn_and_none_from_other_pictures(
    engine: int, tick: int, size: tuple[int, int]
) -> None:
    frame = np.random.default_rng(tick).integers(0, 256, (*size, 3), np.uint8)
    assert marks.read(frame) is None
    marks.draw(frame, marks.Mark(engine, tick))
    assert marks.read(frame) == marks.Mark(engine, tick)

"""Plays the real MineStudio, in its own interpreter: `drive_minestudio.py hunt|steps`. The last line is JSON."""

import json
import os
import random
import sys
from typing import Any

import numpy as np
from minestudio.simulator import MinecraftSim
from minestudio.simulator.callbacks import (
    CommandsCallback,
    FastResetCallback,
    JudgeResetCallback,
    RewardsCallback,
    SummonMobsCallback,
    VoxelsCallback,
)
from minestudio.simulator.minerl.env import _multiagent

EPISODE = 100
SOCKET_TIMEOUT_S = 2.0
COWS = {"event": "kill_entity", "objects": ["cow"], "reward": 1.0, "identity": "cow", "max_reward_times": 30}


def hunt() -> dict[str, Any]:
    """Two episodes, with the callbacks of the seeds' example and voxels."""
    sim = make()
    first, second = episode(sim), episode(sim)
    sim.close()
    return {"first": first, "second": second}


def steps() -> dict[str, Any]:
    """Steps until something is wrong, and what that was."""
    taken = 0
    try:
        sim = make()
        sim.reset()
        while taken < 2 * EPISODE:
            _, _, terminated, _, _ = sim.step(turn(sim))
            taken += 1
            if terminated:
                sim.reset()
    except Exception as error:  # noqa: BLE001  # Whatever it is, it is what the test asks for.
        return {"steps": taken, "raised": type(error).__name__, "says": str(error)}
    return {"steps": taken}


def make() -> Any:
    random.seed(0)
    np.random.seed(0)  # The callbacks draw from it.
    sim = MinecraftSim(
        action_type="env",
        obs_size=(128, 128),
        preferred_spawn_biome="plains",
        callbacks=[
            SummonMobsCallback([{"name": "cow", "number": 10, "range_x": [-3, 3], "range_z": [-3, 3]}]),
            RewardsCallback([COWS]),
            CommandsCallback(commands=["/give @p minecraft:iron_sword 1", "/setblock ~1 ~ ~1 minecraft:obsidian"]),
            FastResetCallback(biomes=["plains"], random_tp_range=1000),
            JudgeResetCallback(EPISODE),
            VoxelsCallback(),
        ],
    )
    sim.np_random = np.random.default_rng(0)
    return sim


def episode(sim: Any) -> dict[str, Any]:
    obs, info = sim.reset()
    before, paid, taken, over, frames = info["kill_entity"]["cow"], 0.0, 0, False, [obs["image"]]
    start = info["player_pos"]
    while not over:
        obs, reward, terminated, truncated, info = sim.step(turn(sim))
        paid, taken, over = paid + reward, taken + 1, terminated or truncated
        frames.append(obs["image"])
    return {
        "steps": taken,
        "paid": paid,
        "killed": float(info["kill_entity"]["cow"] - before),
        "held": info["equipped_items"]["mainhand"]["type"],
        "voxels": sorted({voxel["type"] for voxel in info["voxels"]}),
        "start": [start["x"], start["z"]],
        "pictures": len({frame.tobytes() for frame in frames}),
    }


def turn(sim: Any) -> dict[str, Any]:
    return dict(sim.noop_action(), attack=1, camera=np.array([0.0, 7.0]))


if __name__ == "__main__":
    _multiagent.SOCKTIME = SOCKET_TIMEOUT_S
    told = {"hunt": hunt, "steps": steps}[sys.argv[1]]()
    sys.stdout.write("\n" + json.dumps(told) + "\n")
    sys.stdout.flush()
    os._exit(0)

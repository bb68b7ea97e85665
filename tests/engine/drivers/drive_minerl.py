"""Plays the real MineRL 1.0, in its own interpreter: `drive_minerl.py survive|steps`. The last line is JSON."""

import json
import os
import sys
from typing import Any

import gym
import minerl  # noqa: F401  # Registers its environments.
from minerl.env import _multiagent

STEPS = 200
SOCKET_TIMEOUT_S = 2.0


def survive() -> dict[str, Any]:
    """An environment that observes all there is: what it saw and counted."""
    env = gym.make("MineRLHumanSurvival-v0")
    env.seed(7)
    obs = env.reset()
    pictures, before = {obs["pov"].tobytes()}, obs["location_stats"]["xpos"]
    for _ in range(60):
        obs, _, _, _ = env.step(dict(env.action_space.no_op(), attack=1, forward=1, camera=[20.0, 5.0]))
        pictures.add(obs["pov"].tobytes())
    env.close()
    return {
        "pictures": len(pictures),
        "shape": obs["pov"].shape,
        "walked": bool(before != obs["location_stats"]["xpos"]),
        "mined": int(obs["mine_block"]["grass_block"]),
        "dirt": int(obs["inventory"]["dirt"]),
        "alive": bool(obs["life_stats"]["is_alive"]),
    }


def steps() -> dict[str, Any]:
    """Steps of a BASALT environment until something is wrong, and what that was."""
    env, taken = gym.make("MineRLBasaltFindCave-v0"), 0
    try:
        env.reset()
        while taken < STEPS:
            _, _, done, info = env.step(env.action_space.no_op())
            if done:
                return {"steps": taken, "info": info}
            taken += 1
    except Exception as error:  # noqa: BLE001  # Whatever it is, it is what the test asks for.
        return {"steps": taken, "raised": type(error).__name__, "says": str(error)}
    return {"steps": taken}


if __name__ == "__main__":
    _multiagent.SOCKTIME = SOCKET_TIMEOUT_S
    told = {"survive": survive, "steps": steps}[sys.argv[1]]()
    sys.stdout.write("\n" + json.dumps(told) + "\n")
    sys.stdout.flush()
    os._exit(0)

"""The users' example: MineStudio with the callbacks of their guide, cows to be killed with a sword."""

from typing import Any

from minestudio.simulator import MinecraftSim
from minestudio.simulator.callbacks import (
    CommandsCallback,
    FastResetCallback,
    JudgeResetCallback,
    MaskActionsCallback,
    RewardsCallback,
    SummonMobsCallback,
)


def make(*, time_limit: int = 600) -> Any:
    """Makes it; episodes are of so many steps."""
    return MinecraftSim(
        obs_size=(128, 128),
        preferred_spawn_biome="plains",
        action_type="agent",
        timestep_limit=1000,
        callbacks=[
            SummonMobsCallback([{"name": "cow", "number": 10, "range_x": [-5, 5], "range_z": [-5, 5]}]),
            MaskActionsCallback(inventory=0),
            RewardsCallback(
                [
                    {
                        "event": "kill_entity",
                        "objects": ["cow"],
                        "reward": 1.0,
                        "identity": "chop_tree",
                        "max_reward_times": 30,
                    }
                ]
            ),
            CommandsCallback(
                commands=[
                    "/give @p minecraft:iron_sword 1",
                    "/give @p minecraft:diamond 64",
                    "/effect @p 5 9999 255 true",
                ]
            ),
            FastResetCallback(biomes=["plains"], random_tp_range=1000),
            JudgeResetCallback(time_limit),
        ],
    )

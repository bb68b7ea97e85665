"""Environments of MineRL 1.0, by name: `make` is a generator, for an interpreter that has `minerl`.

    action ─▶ keys and mouse ─▶ minerl ─▶ engine (Java)
                                  │
    image ◀─ resize ◀─ pov ◀──────┤◀─ frame, counts
    reward ◀─ rules ◀─ counts ◀───┘

MineRL parses all observables of an environment in each step, which costs more than the step: the specification of the
environment is changed before it is made, so that those that nobody asked for are neither sent nor parsed.

What MineRL returns when its engine is gone (a made-up observation, and `error` in info) never leaves this module: it
raises, and so does every later call.
"""

from __future__ import annotations

import contextlib
import copy
import importlib
from typing import TYPE_CHECKING, Any

import numpy as np

from minefleet_env.errors import EnvError, RefusedError
from minefleet_env.minecraft.actions import NUM_BUTTONS, NUM_CAMERA, to_engine
from minefleet_env.minecraft.display import provide_display
from minefleet_env.minecraft.minerl_engine_process import import_minerl, kill, launched
from minefleet_env.minecraft.minerl_spec_overrides import COUNTS, POV, known_events, prune, registered, start_with
from minefleet_env.minecraft.rewards import Rewards, rules_of
from minefleet_env.minecraft.vpt_resize import resizer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

ACTIONS = ("vpt", "minerl")


def make(
    id: str,  # noqa: A002  # It is the key's name.
    *,
    frame_size: Sequence[int] = (128, 128),
    observables: Sequence[str] = (),
    actions: str = "vpt",
    rewards: Sequence[Mapping[str, Any]] = (),
    time_limit: int = 0,
    resolution: Sequence[int] = (640, 360),
    biome: str = "",
    inventory: Sequence[Mapping[str, Any]] = (),
    ends_at_death: bool = True,
    step_timeout_s: float = 50.0,
) -> MineRLEnv:
    """Makes an environment of MineRL, and starts its engine.

    Args:
        id: `MineRLBasaltFindCave-v0`, `MineRLHumanSurvival-v0`, ...
        frame_size: [height, width] of `image`; VPT's is [128, 128].
        observables: What to show besides `image`, by MineRL's names, for example `life_stats`.
        actions: `vpt`, which is `buttons` and `camera`; or `minerl`, which is the environment's own action space.
        rewards: What is paid, see `rewards.rules_of`; none leaves the environment's own rewards, which are zeros.
        time_limit: Truncate episodes after so many steps; 0 leaves the environment's own limit.
        resolution: [width, height] that the engine draws; VPT's is [640, 360].
        biome: Where to begin, for example `forest`; empty for anywhere.
        inventory: What to begin with, for example [{type: iron_axe, quantity: 1}].
        ends_at_death: Whether the player's death ends the episode.
        step_timeout_s: Longest that the engine may take to answer in a step, seconds. Below the worker's own
            `step_timeout_s`, so that a frozen engine is replaced without its process.

    Raises:
        RefusedError: If MineRL, its engine or a display is missing, or an argument is none that it knows.
    """
    gym = import_minerl()
    if actions not in ACTIONS:
        raise RefusedError(f"actions must be one of {', '.join(ACTIONS)}, got {actions!r}")
    spec = copy.copy(registered(gym, id))
    payer = Rewards(rules_of(rewards, known_events() if rewards else {}))
    prune(spec, observables, payer.events)
    start_with(spec, biome, inventory, ends_at_death=ends_at_death)
    spec.resolution = tuple(resolution)
    spec.reset()
    resize = resizer(frame_size)
    provide_display()
    env = spec.make()
    env.unwrapped.instances.append(launched())
    return MineRLEnv(
        env,
        resize=resize,
        frame_size=frame_size,
        observables=observables,
        rewards=payer,
        takes_vpt=actions == "vpt",
        own_limit=spec.max_episode_steps or 0,
        time_limit=time_limit,
        step_timeout_s=step_timeout_s,
    )


class MineRLEnv:
    """An environment of MineRL with the interface of Gymnasium and, where wanted, the actions of VPT."""

    def __init__(
        self,
        env: Any,
        *,
        resize: Callable[[NDArray[Any]], NDArray[Any]],
        frame_size: Sequence[int],
        observables: Sequence[str],
        rewards: Rewards,
        takes_vpt: bool,
        own_limit: int,
        time_limit: int,
        step_timeout_s: float,
    ) -> None:
        spaces = importlib.import_module("gym.spaces")
        self._env = env
        self._resize = resize
        self._extras = {name: env.observation_space.spaces[name] for name in observables}
        self._rewards = rewards
        self._takes_vpt = takes_vpt
        self._noop = dict(env.action_space.no_op())
        self._own_limit = own_limit
        self._time_limit = time_limit
        self._step_timeout_s = step_timeout_s
        self._steps = 0
        self._failure = ""
        image = spaces.Box(0, 255, (*frame_size, 3), np.uint8)
        self.observation_space = spaces.Dict({"image": image, **self._extras})
        vpt = {"buttons": spaces.Discrete(NUM_BUTTONS), "camera": spaces.Discrete(NUM_CAMERA)}
        self.action_space = spaces.Dict(vpt) if takes_vpt else env.action_space

    def reset(self, *, seed: int | None = None) -> tuple[dict[str, Any], dict[str, Any]]:
        """Begins an episode, in the seed's world.

        Raises:
            EnvError: If the engine is gone.
        """
        self._refuse_broken()
        bare = self._env.unwrapped
        bare.seed(seed, seed_spaces=False)
        with self._noting_failures():
            raw = self._env.reset()
        # MineRL makes a socket per episode, whose own limit of four minutes is one for resets.
        bare.instances[0].client_socket.settimeout(self._step_timeout_s)
        # The wrapper of MineRLObtainDiamondShovel counts on from one episode to the next.
        self._env.num_steps = 0
        self._steps = 0
        self._rewards.reset(raw[COUNTS])
        return self._obs(raw), {}

    def step(self, action: Mapping[str, Any]) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        """Takes a step.

        Raises:
            EnvError: If the engine is gone, or does not answer.
        """
        self._refuse_broken()
        pressed = to_engine(action) if self._takes_vpt else action
        with self._noting_failures():
            raw, reward, done, info = self._env.step({**self._noop, **pressed})
            if info.get("error"):
                raise EnvError(f"Minecraft is gone or does not answer: {info['error']}", "error")
        self._steps += 1
        # Of what ends an episode at MineRL's own limit, nobody can say whether it was the limit.
        is_over = 0 < self._own_limit <= self._steps
        terminated = done and not is_over
        truncated = not terminated and (is_over or 0 < self._time_limit <= self._steps)
        paid = self._rewards.pay(raw[COUNTS]) if self._rewards.events else float(reward)
        return self._obs(raw), paid, terminated, truncated, self._last_info() if terminated or truncated else {}

    def render(self) -> Any:
        """The last frame as the engine drew it."""
        return self._frame

    def close(self) -> None:
        """Kills the engine. MineRL's own way asks it first and waits for some seconds; the world is not kept anyhow."""
        bare = self._env.unwrapped
        for instance in bare.instances:
            bare._TO_MOVE_clean_connection(instance)
            kill(instance)
        bare.instances.clear()

    def _obs(self, raw: Mapping[str, Any]) -> dict[str, Any]:
        self._frame = raw[POV]
        extras = {name: _declared(space, raw[name]) for name, space in self._extras.items()}
        return {"image": self._resize(self._frame), **extras}

    def _last_info(self) -> dict[str, Any]:
        return {"metrics": self._rewards.metrics()}

    def _refuse_broken(self) -> None:
        if self._failure:
            raise EnvError(f"the environment must be made anew: {self._failure}", "error")

    @contextlib.contextmanager
    def _noting_failures(self) -> Iterator[None]:
        try:
            yield
        except BaseException as error:
            self._failure = f"{type(error).__name__}: {error}"
            raise


def _declared(space: Any, value: Any) -> Any:
    """A value with the types that its space says, which those of MineRL do not always have."""
    if hasattr(space, "spaces"):
        return {name: _declared(child, value[name]) for name, child in space.spaces.items()}
    return np.asarray(value, space.dtype).reshape(space.shape) if type(space).__name__ == "Box" else value

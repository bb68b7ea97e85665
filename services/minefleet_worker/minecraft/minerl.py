"""Environments of MineRL 1.0, by name: `make` is a generator, for an interpreter that has `minerl`.

    action ─▶ keys and mouse ─▶ minerl ─▶ engine (Java)
                                  │
    image ◀─ resize ◀─ pov ◀──────┤◀─ frame, counts
    reward ◀─ rules ◀─ counts ◀───┘

MineRL parses all observables of an environment in each step, which costs more than the step: the specification of the
environment is changed before it is made, so that those that nobody asked for are neither sent nor parsed.

What MineRL returns when its engine is gone (a made-up observation, and `error` in info) never leaves this module: it
raises, and so does every later call. The engine is started here without MineRL's watcher, a daemon per engine: whatever
has become of an environment process, its guard ends what it has started.
"""

from __future__ import annotations

import contextlib
import copy
import difflib
import importlib
import os
import signal
import sys
import tempfile
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from minefleet_worker.errors import EnvError, RefusedError
from minefleet_worker.minecraft.actions import NUM_BUTTONS, NUM_CAMERA, to_engine
from minefleet_worker.minecraft.display import provide_display
from minefleet_worker.minecraft.frames import resizer
from minefleet_worker.minecraft.rewards import Rewards, rules_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

GUIDE = "docs/minecraft.md says how to install it"
VERSION = "1."
LAUNCHER = "launchClient.sh"
POV = "pov"
COUNTS = "minefleet_counts"
ACTIONS = ("vpt", "minerl")
LOG_FOLDER = "MALMO_MINECRAFT_OUTPUT_LOGDIR"
"""MineRL's own variable: the folder for the engines' output, below which it makes `logs`."""
TOLD_LINES = 3
"""Lines of the output of an engine that did not start that are passed on."""


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
    gym = _import_minerl()
    if actions not in ACTIONS:
        raise RefusedError(f"actions must be one of {', '.join(ACTIONS)}, got {actions!r}")
    spec = copy.copy(_registered(gym, id))
    payer = Rewards(rules_of(rewards, _known_events() if rewards else {}))
    _prune(spec, observables, payer.events)
    _start_with(spec, biome, inventory, ends_at_death=ends_at_death)
    spec.resolution = tuple(resolution)
    spec.reset()
    resize = resizer(frame_size)
    provide_display()
    env = spec.make()
    env.unwrapped.instances.append(_launched())
    limit = min((steps for steps in (time_limit, spec.max_episode_steps or 0) if steps), default=0)
    return MineRLEnv(env, resize, frame_size, observables, payer, actions == "vpt", limit, step_timeout_s)


class MineRLEnv:
    """An environment of MineRL with the interface of Gymnasium and, where wanted, the actions of VPT."""

    def __init__(
        self,
        env: Any,
        resize: Any,
        frame_size: Sequence[int],
        observables: Sequence[str],
        rewards: Rewards,
        takes_vpt: bool,
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
        truncated = 0 < self._time_limit <= self._steps
        paid = self._rewards.pay(raw[COUNTS]) if self._rewards.events else float(reward)
        ended = done or truncated
        return self._obs(raw), paid, done and not truncated, truncated, self._last_info() if ended else {}

    def render(self) -> Any:
        """The last frame as the engine drew it."""
        return self._frame

    def close(self) -> None:
        """Kills the engine. MineRL's own way asks it first and waits for some seconds; the world is not kept anyhow."""
        bare = self._env.unwrapped
        for instance in bare.instances:
            bare._TO_MOVE_clean_connection(instance)
            _kill(instance)
        bare.instances.clear()

    def _obs(self, raw: Mapping[str, Any]) -> dict[str, Any]:
        self._frame = raw[POV]
        extras = {name: _as_said(space, raw[name]) for name, space in self._extras.items()}
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


class Counts:
    """Has the engine send what it counts, and hands on some of it without a look at the other thousands of numbers.

    To MineRL it is one more handler of observations. It also sees to it that there is a picture, in whose place MineRL
    would show a black one.
    """

    def __init__(self, events: Iterable[str], space: Any) -> None:
        self._events = events
        self.space = space

    def to_string(self) -> str:
        """Its key among the observations."""
        return COUNTS

    def xml(self) -> str:
        """What the mission says of it: nothing where no event is wanted."""
        return "<ObservationFromFullStats/>" if self._events else ""

    def from_hero(self, info: Mapping[str, Any]) -> dict[str, Any]:
        """The counts by event and object."""
        if not info[POV]:
            raise EnvError("Minecraft sent no picture", "error")
        return {event: info.get(event, {}) for event in self._events}


def _import_minerl() -> Any:
    """Imports MineRL, which registers its environments; returns its gym."""
    try:
        version = metadata.version("minerl")
        importlib.import_module("minerl")
    except ImportError as error:
        raise RefusedError(f"{sys.executable} has no MineRL ({error}); {GUIDE}") from error
    if not version.startswith(VERSION):
        raise RefusedError(f"{sys.executable} has MineRL {version}, which is another Minecraft than 1.0's; {GUIDE}")
    return importlib.import_module("gym")


def _registered(gym: Any, name: str) -> Any:
    """The specification that MineRL has registered under a name."""
    specs = gym.envs.registry.env_specs
    if name not in specs or "env_spec" not in specs[name].kwargs:
        known = [each for each, spec in specs.items() if "env_spec" in spec.kwargs]
        nearest = difflib.get_close_matches(name, known) or sorted(known)
        raise RefusedError(f"MineRL has no environment {name!r}; the nearest are {', '.join(nearest)}")
    return specs[name].kwargs["env_spec"]


def _known_events() -> dict[str, set[str]]:
    known: dict[str, set[str]] = {}
    for event, name in importlib.import_module("minerl.herobraine.hero.mc").ALL_STAT_KEYS:
        known.setdefault(event, set()).add(name)
    return known


def _prune(spec: Any, observables: Sequence[str], events: Sequence[str]) -> None:
    """Leaves the frame, what is asked for, and the counts of the events; and no monitors, which nobody reads."""
    known = {handler.to_string() for handler in spec.observables} - {POV}
    for name in observables:
        if name not in known:
            raise RefusedError(f"{spec.name} has no observable {name!r}; it has {', '.join(sorted(known)) or 'none'}")
    all_of_them = spec.create_observables
    spaces = importlib.import_module("minerl.herobraine.hero.spaces")
    counts = Counts(events, spaces.Dict({}))
    wanted = (POV, *observables)
    spec.create_observables = lambda: [*(each for each in all_of_them() if each.to_string() in wanted), counts]
    spec.create_monitors = list


def _start_with(spec: Any, biome: str, inventory: Sequence[Mapping[str, Any]], *, ends_at_death: bool) -> None:
    handlers = importlib.import_module("minerl.herobraine.hero.handlers")
    start = importlib.import_module("minerl.herobraine.hero.handlers.agent.start")
    more = [start.DoneOnDeath()] if ends_at_death else []
    if biome:
        more.append(start.PreferredSpawnBiome(biome))
    if inventory:
        more.append(handlers.SimpleInventoryAgentStart([dict(stack) for stack in inventory]))
    as_before = spec.create_agent_start
    # Of handlers of one kind the last one counts.
    spec.create_agent_start = lambda: [*as_before(), *more]


def _launched() -> Any:
    """Starts an engine, and waits until it is ready."""
    malmo = importlib.import_module("minerl.env.malmo")
    launcher = Path(malmo.InstanceManager.MINECRAFT_DIR) / LAUNCHER
    if not launcher.is_file():
        raise RefusedError(f"MineRL's engine is not built: there is no {launcher.resolve()}; {GUIDE}")
    os.environ.setdefault(LOG_FOLDER, str(Path(tempfile.gettempdir()) / f"minerl-{os.getuid()}"))
    instance = malmo.InstanceManager.get_instance(os.getpid())
    try:
        # To MineRL, an engine that is a daemon needs no watcher; one that is not replaceable stays dead.
        instance.launch(daemonize=True, replaceable=False)
    except BaseException as error:
        _kill(instance)
        if not isinstance(error, EOFError):
            raise
        lines = [line for line in str(error).splitlines() if line.strip()]
        said = "; ".join(lines[-1 - TOLD_LINES : -1]) or "nothing"
        raise EnvError(f"Minecraft ended at its start. It said: {said}. See `minefleet doctor`", "exit") from error
    instance.had_to_clean = False
    return instance


def _kill(instance: Any) -> None:
    """Ends an engine with its group, of which MineRL makes it the leader, and has MineRL forget it."""
    instance.running = False
    manager = importlib.import_module("minerl.env.malmo").InstanceManager
    with contextlib.suppress(ValueError):
        manager._instance_pool.remove(instance)
    process = instance.minecraft_process
    if process is None:
        return
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _as_said(space: Any, value: Any) -> Any:
    """A value with the types that its space says, which those of MineRL do not always have."""
    if hasattr(space, "spaces"):
        return {name: _as_said(child, value[name]) for name, child in space.spaces.items()}
    return np.asarray(value, space.dtype).reshape(space.shape) if type(space).__name__ == "Box" else value

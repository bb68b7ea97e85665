"""Makes the environment that a configuration names, and gives old ones the interface of Gymnasium.

Gymnasium makes it where there is one, else gym. The environment's own library is imported here and nowhere else.
"""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import inspect
from typing import TYPE_CHECKING, Any

from minefleet_env.batched.vector_env_rows import DISABLED, NEXT_STEP, SAME_STEP, EnvBatch, SoleRow, autoreset_mode
from minefleet_env.errors import RefusedError
from minefleet_env.function_loader import load
from minefleet_env.minecraft import minestudio_jar_path
from minefleet_env.wrappers.wrap import wrap

if TYPE_CHECKING:
    from collections.abc import Mapping

ID_PREFIX = "minefleet/"
REGISTERED_BY = {
    ID_PREFIX: "minefleet.envs",
    "ALE/": "ale_py",
    "BabyAI-": "minigrid",
    "MiniGrid-": "minigrid",
    "NetHack": "nle",
    "Vizdoom": "vizdoom.gymnasium_wrapper",
}
"""Modules that register the ids that begin so, where an id names none."""
LIBRARIES = ("gymnasium", "gym")
METHODS = ("reset", "step", "observation_space", "action_space")
GYM_WITH_RENDER_MODE = (0, 26)
_FOR_EACH = "make one environment; rollout_config.worker_config.num_envs says how many of it play"
_FOR_A_PROCESS = f"{_FOR_EACH}; or set env.batched=true and make num_envs of them"
_FOR_ONE = "it has several agents; make a gymnasium.Env that plays one of them"
SEVERAL_AT_ONCE = {
    "gymnasium.vector.vector_env.VectorEnv": _FOR_A_PROCESS,
    "gym.vector.vector_env.VectorEnv": _FOR_EACH,
    "stable_baselines3.common.vec_env.base_vec_env.VecEnv": _FOR_EACH,
    "pettingzoo.utils.env.AECEnv": _FOR_ONE,
    "pettingzoo.utils.env.ParallelEnv": _FOR_ONE,
}
"""Classes that are no environment for one agent, and what to do instead."""
MINESTUDIO = "MinecraftSim"
"""MineStudio's simulator: an environment of Gymnasium by its bases, and not by what it does."""


def make(config: Mapping[str, Any], render_mode: str | None = None) -> Any:
    """Makes the environment that the section `env` of a configuration names, in its wrappers.

    A generator's renders as it is made.

    Raises:
        RefusedError: If there is no such environment, a package of its is missing, or the generator makes none.
    """
    if config["batched"]:
        return SoleRow(EnvBatch(make_batch(config, 1)), is_seeded=takes_seed(config))
    if config["generator"]:
        env = _generated(config)
    elif config["id"]:
        env = _registered(config, render_mode)
    else:
        raise RefusedError("give env.id or env.generator: both are empty")
    return wrap(_adapted(env), config["wrappers"])


def make_batch(config: Mapping[str, Any], num_envs: int, seed: int = 0) -> Any:
    """Makes the environments of a whole process: a `gymnasium.vector.VectorEnv`.

    Args:
        config: The section `env`, whose generator takes `num_envs`, and `seed` where `takes_seed` says so.
        num_envs: How many.
        seed: Of all of them; for a generator that takes it.

    Raises:
        RefusedError: If the generator does not make so many, or does not say how they are reset.
    """
    name = config["generator"]
    if not _takes(load(name), "num_envs"):
        raise RefusedError(f"env.batched: {name} must take num_envs, the number of environments that it is to make")
    more = {"num_envs": num_envs, "seed": seed} if takes_seed(config) else {"num_envs": num_envs}
    env = _called(dict(config, kwargs={**more, **config["kwargs"]}))
    if not {"gymnasium.vector.vector_env.VectorEnv", "gymnasium.vector.vector_env.VectorWrapper"} & _classes(env):
        raise RefusedError(f"env.batched: {name} made a {type(env).__name__}, expected a gymnasium.vector.VectorEnv")
    if env.num_envs != num_envs:
        raise RefusedError(
            f"env.batched: {name} made num_envs={env.num_envs} environments for a process of {num_envs}, which is "
            "rollout_config.worker_config.envs_per_process, or what is left of its num_envs; it must make as many"
        )
    if autoreset_mode(env) not in (NEXT_STEP, SAME_STEP, DISABLED):
        raise RefusedError(
            f"env.batched: {name} must say how its environments are reset: metadata['autoreset_mode'] is "
            f"{(env.metadata or {}).get('autoreset_mode')!r}, expected a gymnasium.vector.AutoresetMode"
        )
    return env


def takes_seed(config: Mapping[str, Any]) -> bool:
    """Whether the generator of a batch has an argument `seed`, as for EnvPool, whose `reset` takes none."""
    return "seed" in inspect.signature(load(config["generator"])).parameters and "seed" not in config["kwargs"]


class OldEnv:
    """An environment of gym, of any age, or of no library, as Gymnasium has them."""

    def __init__(self, env: Any) -> None:
        self._env = env
        self.observation_space = env.observation_space
        self.action_space = env.action_space
        self.unwrapped = getattr(env, "unwrapped", env)
        self._reset_takes_seed = _takes(self.unwrapped.reset, "seed")
        self._shows_pairs = type(env.observation_space).__name__ == "Tuple"

    def reset(self, *, seed: int | None = None, **options: Any) -> tuple[Any, Mapping[str, Any]]:
        """Starts an episode. Returns the observation and the info, an empty one where the environment gives none."""
        if seed is not None and self._reset_takes_seed:
            options["seed"] = seed
        elif seed is not None and callable(getattr(self._env, "seed", None)):
            self._env.seed(seed)
        result = self._env.reset(**options)
        is_pair = isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], dict)
        if is_pair and not (self._shows_pairs and self.observation_space.contains(result)):
            return result[0], result[1]
        return result, {}

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, Mapping[str, Any]]:
        """Takes a step. An old `done` is a truncation where the info says that a time limit made it."""
        result = self._env.step(action)
        if len(result) == 5:
            return result[0], result[1], result[2], result[3], result[4]
        obs, reward, done, info = result
        truncated = bool(done and info.get("TimeLimit.truncated"))
        return obs, reward, bool(done) and not truncated, truncated, info

    def render(self) -> Any:
        """Returns the current frame."""
        if getattr(self._env, "render_mode", None) or not _takes(self._env.render, "mode"):
            return self._env.render()
        return self._env.render(mode="rgb_array")

    def close(self) -> None:
        """Closes the environment, where there is anything to close."""
        if hasattr(self._env, "close"):
            self._env.close()


def _adapted(env: Any) -> Any:
    """The environment if it has the interface of Gymnasium, or adapted to it."""
    if any(cls.__name__ == MINESTUDIO for cls in type(env).__mro__):
        from minefleet_env.minecraft.minestudio_env import Simulator

        return Simulator(env)
    return env if "gymnasium.core.Env" in _classes(env) else OldEnv(env)


def _classes(env: Any) -> set[str]:
    return {f"{cls.__module__}.{cls.__qualname__}" for cls in type(env).__mro__}


def _takes(method: Any, name: str) -> bool:
    """Whether a method has this argument, by name or among any others."""
    parameters = inspect.signature(method).parameters
    return name in parameters or any(each.kind is each.VAR_KEYWORD for each in parameters.values())


def _generated(config: Mapping[str, Any]) -> Any:
    env = _called(config)
    for name in _classes(env) & SEVERAL_AT_ONCE.keys():
        raise RefusedError(f"{config['generator']} made {type(env).__name__}: {SEVERAL_AT_ONCE[name]}")
    missing = [name for name in METHODS if not hasattr(env, name)]
    if missing:
        made = f"{config['generator']} made a {type(env).__name__}"
        raise RefusedError(f"{made}, expected an environment: it has no {', '.join(missing)}")
    return env


def _called(config: Mapping[str, Any]) -> Any:
    """Calls the generator. It cannot prompt the user: there is nothing to read from."""
    generator, kwargs = load(config["generator"]), config["kwargs"]
    try:
        inspect.signature(generator).bind(**kwargs)
    except TypeError as error:
        raise RefusedError(f"env.kwargs do not fit {config['generator']}: {error}") from error
    except ValueError:  # What is made in C shows no signature.
        pass
    try:
        return generator(**kwargs)
    except EOFError as error:
        what_to_do = minestudio_jar_path.missing() or "it must not: nobody is there to answer"
        raise RefusedError(f"{config['generator']} asks a question at the terminal; {what_to_do}") from error


def _registered(config: Mapping[str, Any], render_mode: str | None) -> Any:
    library = _library()
    module, _, name = config["id"].rpartition(":")
    module = module or next((each for start, each in REGISTERED_BY.items() if name.startswith(start)), "")
    kwargs = dict(config["kwargs"])
    if render_mode is not None and _has_render_mode(library):
        kwargs["render_mode"] = render_mode
    if _has_checker(library):
        kwargs["disable_env_checker"] = True
    try:
        if module:
            importlib.import_module(module)
        return library.make(name, **kwargs)
    except (ModuleNotFoundError, library.error.DependencyNotInstalled) as error:
        advice = f"; try `pip install {module.partition('.')[0]}`" if module in REGISTERED_BY.values() else ""
        raise RefusedError(f"env.id {config['id']!r} needs a package that is not installed: {error}{advice}") from error
    except library.error.UnregisteredEnv as error:
        raise RefusedError(f"env.id {config['id']!r}: {error} {_nearest(name)}".rstrip()) from error
    except library.error.Error as error:
        raise RefusedError(f"env.id {config['id']!r}: {error}") from error


def _library() -> Any:
    """Gymnasium, or else gym."""
    for name in LIBRARIES:
        if importlib.util.find_spec(name):
            return importlib.import_module(name)
    raise RefusedError("env.id needs gymnasium or gym, and neither is installed; give env.generator, or install one")


def _has_render_mode(library: Any) -> bool:
    return library.__name__ == "gymnasium" or _version(library) >= GYM_WITH_RENDER_MODE


def _has_checker(library: Any) -> bool:
    return _takes(library.make, "disable_env_checker") and _has_render_mode(library)


def _version(library: Any) -> tuple[int, ...]:
    return tuple(int(part) for part in library.__version__.split(".")[:2])


def known_ids() -> list[str]:
    """The ids that are registered now; none without a library."""
    try:
        library = _library()
    except RefusedError:
        return []
    registry = library.registry if library.__name__ == "gymnasium" else library.envs.registry
    return list(getattr(registry, "env_specs", registry))


def _nearest(name: str) -> str:
    known = known_ids()
    names = difflib.get_close_matches(name, known) or sorted(each for each in known if each.startswith(ID_PREFIX))
    return f"The nearest {'is' if len(names) == 1 else 'are'} {', '.join(names)}." if names else ""

"""Names of MineStudio that its run configurations import, so that they load where it is not installed, or only in part.

| module | here |
|---|---|
| `minestudio.models` | `load_vpt_policy` is the fleet's; everything else comes from MineStudio, when it is asked for |
| `minestudio.models.openai_vpt.body` | `load_openai_policy`, which MineStudio no longer has: the same |
| `minestudio.online.rollout.start_manager`, `minestudio.online.trainer.start_trainer` | do nothing: the fleet runs |
| `minestudio.utils`, `minestudio.models.vpt.body` | MineStudio's; where there is none, what configurations need |
| `minestudio.simulator`, `minestudio.simulator.callbacks` | MineStudio's; where there is none, names that say so |

The loaders are the fleet's even where MineStudio's could be imported: a run must have one architecture on all machines,
and MineStudio's runs whatever code a `.model` file holds. `minestudio.models.vpt.body.load_vpt_policy` stays its own.
"""

from __future__ import annotations

import importlib
import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from minefleet_env.errors import RefusedError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from types import ModuleType

HOMES = {
    "MinePolicy": "base_policy",
    "VPTPolicy": "vpt",
    "RocketPolicy": "rocket_one",
    "load_rocket_policy": "rocket_one",
    "GrootPolicy": "groot_one",
    "load_groot_policy": "groot_one",
    "SteveOnePolicy": "steve_one",
    "load_steve_one_policy": "steve_one",
}
"""The part of `minestudio.models` that has a name. Its own `__init__` imports them all, with all that each needs."""

_loaders: list[Callable[..., Any]] = []
"""The function that loads a VPT policy, in processes that have policies."""


def serve(load_policy: Callable[..., Any] | None = None) -> None:
    """Serves these names to imports from here on.

    Args:
        load_policy: Takes `model_path` and `weights_path` and returns a policy. Without one, as in environment
            processes, the loaders are there and cannot be called.
    """
    if load_policy is not None:
        _loaders[:] = [load_policy]
    if _ALWAYS not in sys.meta_path:
        sys.meta_path.insert(0, _ALWAYS)
        sys.meta_path.append(_WHERE_LACKING)


def load_vpt_policy(model_path: Any = None, weights_path: Any = None) -> Any:
    """Loads a VPT policy: the fleet's own class of it, from OpenAI's files.

    Raises:
        RefusedError: In a process that has no policies.
    """
    if not _loaders:
        raise RefusedError("a policy was asked for in a process of environments, which has none")
    return _loaders[-1](model_path, weights_path)


def get_compute_device() -> str:
    """The device on which generators make policies; roles move them to the one that their configuration names."""
    return "cpu"


def start_nothing(*_: object, **__: object) -> None:
    """Stands in for MineStudio's launcher: an importer of a configuration here has its own fleet."""


def _home_of(module: ModuleType, name: str) -> Any:
    if name not in HOMES:
        raise AttributeError(f"{module.__name__} has no {name}")
    return getattr(importlib.import_module(f"{module.__name__}.{HOMES[name]}"), name)


def _absent(module: ModuleType, name: str) -> Any:
    """A class that may be named and derived from, but not called."""
    if name.startswith("__"):
        raise AttributeError(f"{module.__name__} has no {name}")

    def refuse(*_: object, **__: object) -> None:
        raise RefusedError(
            f"{sys.executable} has no MineStudio, of which {name} is wanted: install it there, or name an interpreter "
            "that has it by env.python"
        )

    return type(name, (), {"__init__": refuse})


class _Finder(MetaPathFinder, Loader):
    """Finds modules of which some names are given, and others may be had by asking."""

    def __init__(self, modules: Mapping[str, Mapping[str, Any]], ask: Mapping[str, Callable[..., Any]]) -> None:
        self._modules = modules
        self._ask = ask

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: object = None) -> ModuleSpec | None:
        """A package, whose other modules lie where MineStudio has them.

        Raises:
            ModuleNotFoundError: For another module of MineStudio, where there is none.
        """
        del target
        if fullname not in self._modules:
            package = sys.modules.get(fullname.partition(".")[0])
            if getattr(package, "__loader__", None) is self:
                raise ModuleNotFoundError(
                    f"{sys.executable} has no MineStudio, of which {fullname} is wanted: policies of its classes need "
                    "it beside minefleet, not only in env.python (docs/from-minestudio.md)",
                    name=fullname,
                )
            return None
        spec = ModuleSpec(fullname, self, is_package=True)
        places = [Path(place) / fullname.rpartition(".")[2] for place in path or ()]
        spec.submodule_search_locations = [str(place) for place in places if place.is_dir()]
        return spec

    def exec_module(self, module: ModuleType) -> None:
        """Gives the module its names."""
        vars(module).update(self._modules[module.__name__])
        ask = self._ask.get(module.__name__)
        if ask is not None:
            vars(module)["__getattr__"] = lambda name: ask(module, name)


_ALWAYS = _Finder(
    {
        "minestudio.models": {"load_vpt_policy": load_vpt_policy},
        "minestudio.models.openai_vpt": {},
        "minestudio.models.openai_vpt.body": {"load_openai_policy": load_vpt_policy},
        "minestudio.online.rollout.start_manager": {"start_rolloutmanager": start_nothing},
        "minestudio.online.trainer": {},
        "minestudio.online.trainer.start_trainer": {"start_trainer": start_nothing},
    },
    {"minestudio.models": _home_of},
)
_WHERE_LACKING = _Finder(
    {
        "minestudio": {},
        "minestudio.utils": {"get_compute_device": get_compute_device},
        "minestudio.models.vpt": {"load_vpt_policy": load_vpt_policy},
        "minestudio.models.vpt.body": {"load_vpt_policy": load_vpt_policy},
        "minestudio.online": {},
        "minestudio.online.rollout": {},
        "minestudio.simulator": {},
        "minestudio.simulator.callbacks": {},
    },
    {"minestudio.simulator": _absent, "minestudio.simulator.callbacks": _absent},
)

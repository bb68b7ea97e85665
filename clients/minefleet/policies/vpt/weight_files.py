"""VPT's files, OpenAI's, MineStudio's and ours, and the policy that they make.

| file | holds | read by |
|---|---|---|
| `NAME.model` | the network's arguments | a restricted unpickler |
| `NAME.weights`, `model.ckpt`, `NAME.ckpt` | weights | `torch.load(weights_only=True)` |
| `NAME.safetensors` | weights | safetensors |
| a directory that `minefleet vpt convert` wrote | both | JSON, safetensors |
"""

import json
import re
import warnings
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from minefleet.core.atomic_files import appearing, write_durably
from minefleet.core.errors import ConfigError
from minefleet.core.safetensors_writer import row_of, write_tensors
from minefleet.policies.vpt.architecture import VPTArchitecture, from_kwargs
from minefleet.policies.vpt.pickle_bomb_check import TooLargeError, check_unfolding
from minefleet.policies.vpt.pickles import read_plain
from minefleet.policies.vpt.vpt_policy import VPTPolicy
from minefleet.policies.vpt.weight_names import our_weights
from minefleet.policies.weight_arrays import architecture as described
from minefleet.policies.weight_arrays import differences, to_numpy
from minefleet.runs.exported_version import METADATA, MODEL_FILE

ARCHITECTURE_FILE = "architecture.json"
FORMAT = 1
LEGACY_PICKLES = 5
"""Before the tensors, in torch's format before 1.6, which is no archive."""
MAX_PICKLE_BYTES = 2**26
GLOBAL = re.compile(r"GLOBAL (\S+)")
"""Torch's error for a file of weights that names something else."""
MAX_WORDS = 300
"""Length of what a message quotes."""


def load_vpt_policy(model_path: str | Path, weights_path: str | Path | None = None) -> VPTPolicy:
    """Makes the policy that files describe.

    Args:
        model_path: A `.model` file, or a directory that `minefleet vpt convert` wrote.
        weights_path: Weights in any form of the table; None for those in the directory, and random ones for a `.model`.

    Raises:
        ConfigError: If a file is missing, damaged, or does not fit; names it and says what differs.
    """
    architecture = read_architecture(model_path)
    if weights_path is None and Path(model_path).is_dir():
        weights_path = model_path
    return make_policy(architecture, weights_path)


def make_policy(architecture: VPTArchitecture, weights_path: str | Path | None) -> VPTPolicy:
    """Makes a policy, with random weights or those of a file.

    Raises:
        ConfigError: If the file is missing, damaged, or does not fit.
    """
    if weights_path is None:
        return VPTPolicy(architecture)
    weights = read_weights(weights_path)
    with torch.device("meta"):
        policy = VPTPolicy(architecture)
    _check_fit(policy, weights, Path(weights_path))
    policy.to_empty(device="cpu").load_state_dict({name: weights[name] for name in policy.state_dict()})
    return policy


def read_architecture(model_path: str | Path) -> VPTArchitecture:
    """Reads what a `.model` file or a converted directory says of the network.

    Raises:
        ConfigError: If it cannot be read, or describes another network.
    """
    path = Path(model_path).expanduser()
    if path.is_dir():
        return _converted_architecture(path / ARCHITECTURE_FILE)
    arguments = read_plain(path)
    try:
        arguments = arguments["model"]["args"]
        net, pi_head = arguments["net"]["args"], arguments.get("pi_head_opts") or {}
    except (TypeError, KeyError, IndexError, AttributeError) as error:
        raise ConfigError(f"{path} lacks model/args/net/args: it is no `.model` file of VPT") from error
    if not isinstance(net, Mapping) or not isinstance(pi_head, Mapping):
        raise ConfigError(f"{path} has no dict at model/args/net/args: it is no `.model` file of VPT")
    try:
        return from_kwargs(net, pi_head)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error


def read_weights(weights_path: str | Path) -> dict[str, Tensor]:
    """Reads weights, by our names.

    Raises:
        ConfigError: If the file is missing, damaged, or holds no weights.
    """
    path = Path(weights_path).expanduser()
    path = path / MODEL_FILE if path.is_dir() else path
    content = _read_safetensors(path) if path.suffix == ".safetensors" else _read_torch(path)
    if isinstance(content, Mapping) and isinstance(content.get("state_dict"), Mapping):
        content = content["state_dict"]
    if not isinstance(content, Mapping) or not content:
        raise ConfigError(f"{path} holds a {type(content).__name__}, no weights by name")
    for name, tensor in content.items():
        if not isinstance(name, str) or not isinstance(tensor, Tensor):
            raise ConfigError(f"{path} holds a {type(tensor).__name__} under {name!r}, no weights by name")
    try:
        return our_weights(content)
    except RuntimeError as error:
        raise ConfigError(f"{path}: its value normaliser is none of VPT's: {_quoted(error)}") from error


def write_policy(policy: VPTPolicy, target: Path) -> int:
    """Writes architecture and weights into a directory of its own, which appears whole. Returns the weights' bytes.

    Raises:
        ConfigError: If there is something in the target, or it cannot be written.
    """
    weights = to_numpy(policy)
    text = json.dumps({"format": FORMAT, "architecture": policy.architecture.to_dict()}, indent=1)
    with appearing(target) as aside:
        rows = [row_of(name, array) for name, array in weights.items()]
        write_tensors(aside / MODEL_FILE, rows, weights.__getitem__, METADATA)
        write_durably(aside / ARCHITECTURE_FILE, text.encode() + b"\n")
    return sum(row.size_bytes for row in rows)


def _check_fit(policy: VPTPolicy, weights: Mapping[str, Tensor], path: Path) -> None:
    """Refuses weights that lack a tensor or have one of another shape; what else there is goes unused."""
    ours = described(policy)
    theirs = {name: (dtype, tuple(weights[name].shape)) for name, (dtype, _) in ours.items() if name in weights}
    if theirs != ours:
        raise ConfigError(f"{path} does not fit the network: {_shortened(differences(ours, theirs))}")
    for name in ours:
        tensor = weights[name]
        if tensor.layout is not torch.strided or tensor.is_quantized or not tensor.is_floating_point():
            raise ConfigError(f"{path} does not fit the network: {name} is no plain tensor of floating-point numbers")
        if tensor.is_meta or not bool(torch.isfinite(tensor).all()):
            raise ConfigError(f"{path} does not fit the network: {name} has values that are not finite")


def _converted_architecture(path: Path) -> VPTArchitecture:
    try:
        content = json.loads(path.read_bytes())
        if content["format"] != FORMAT:
            raise ConfigError(f"its format is {content['format']!r}, not {FORMAT}")
        return VPTArchitecture.from_dict(content["architecture"])
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError, ConfigError) as error:
        raise ConfigError(f"{path} describes no VPT network: {_quoted(error)}") from error


def _read_torch(path: Path) -> Any:
    if path.exists() and not path.is_file():
        raise ConfigError(f"{path} is no file")
    try:
        _check_pickles(path)
        with warnings.catch_warnings(action="ignore"):
            return torch.load(path, map_location="cpu", weights_only=True)
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror or error}") from error
    except Exception as error:  # A damaged file may fail in any way.
        named = GLOBAL.search(str(error))
        what = f"it names {named[1]}, and nothing of it was run" if named else f"it is damaged: {_quoted(error)}"
        raise ConfigError(f"{path} cannot be loaded as weights alone, {what}") from error


def _check_pickles(path: Path) -> None:
    """Checks what torch's own unpickler would load."""
    if not zipfile.is_zipfile(path):
        with path.open("rb") as file:
            for _ in range(LEGACY_PICKLES):
                check_unfolding(file)
        return
    with zipfile.ZipFile(path) as archive:
        for entry in archive.infolist():
            if entry.filename.endswith(".pkl"):
                if entry.file_size > MAX_PICKLE_BYTES:
                    raise TooLargeError(f"its {entry.filename} has {entry.file_size} bytes")
                check_unfolding(archive.read(entry))


def _read_safetensors(path: Path) -> dict[str, Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(path)
    except (OSError, SafetensorError, ValueError) as error:
        raise ConfigError(f"cannot read {path}: {_quoted(error)}") from error


def _quoted(error: Exception) -> str:
    """The first line of what an error says."""
    return _shortened(str(error).partition("\n")[0] or type(error).__name__)


def _shortened(text: str) -> str:
    return text if len(text) <= MAX_WORDS else f"{text[:MAX_WORDS]} ..."

"""The random generators of Python, NumPy and torch: seeded, as named arrays, and back."""

import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray


def seed_everything(seed: int) -> None:
    """Seeds the generators of Python, NumPy and torch."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def rng_arrays() -> dict[str, NDArray[Any]]:
    """Copies the states of the generators of Python, NumPy and torch."""
    _, words, gauss = random.getstate()
    numpy_state: Any = np.random.get_state(legacy=False)
    arrays = {
        "python": np.array(words, np.uint32),
        "python_gauss": np.array([] if gauss is None else [gauss], np.float64),
        "numpy": numpy_state["state"]["key"].copy(),
        "numpy_position": np.array(numpy_state["state"]["pos"], np.int64),
        "numpy_has_gauss": np.array(numpy_state["has_gauss"], np.int64),
        "numpy_gauss": np.array(numpy_state["gauss"], np.float64),
        "torch": torch.get_rng_state().numpy().copy(),
    }
    if torch.cuda.is_available():
        arrays["cuda"] = torch.cuda.get_rng_state().numpy().copy()
    return arrays


def restore_rng(arrays: Mapping[str, NDArray[Any]]) -> None:
    """Inverts `rng_arrays`."""
    gauss = arrays["python_gauss"].tolist()
    random.setstate((3, tuple(arrays["python"].tolist()), gauss[0] if gauss else None))
    np.random.set_state(
        {
            "bit_generator": "MT19937",
            "state": {"key": arrays["numpy"], "pos": int(arrays["numpy_position"])},
            "has_gauss": int(arrays["numpy_has_gauss"]),
            "gauss": float(arrays["numpy_gauss"]),
        }
    )
    torch.set_rng_state(torch.tensor(arrays["torch"]))
    if "cuda" in arrays and torch.cuda.is_available():
        torch.cuda.set_rng_state(torch.tensor(arrays["cuda"]))

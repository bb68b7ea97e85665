"""The steps at a fragment's start that only warm its recurrent state up.

The state that an actor stored is that of the weights it had. Run on from there, the current weights forget the
difference within some steps; only what follows is trained on.

Shape legend: B = fragments, T = steps.
"""

import numpy as np
import torch
from torch import Tensor

from minefleet.core.fragment import Bools


def burned_in(first: Tensor, steps: int) -> Tensor:
    """Returns which of `steps` steps at the start are not trained on: those before an episode starts, which needs none.

    Args:
        first: [B, T] bool, the state is reset before this step.
        steps: At most so many, >= 0.

    Returns:
        [B, T] bool.
    """
    early = torch.arange(first.shape[1], device=first.device) < steps
    return (first.cumsum(1) == 0) & early


def burned_steps(first: Bools, steps: int) -> int:
    """The number of steps of one fragment that are not trained on, likewise; `first` is [T]."""
    return int(np.append(first[:steps], True).argmax())

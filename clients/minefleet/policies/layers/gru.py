"""Memory: a GRU over time that forgets at episode borders, wherever in a chunk they lie."""

from functools import cache

import torch
from torch import Tensor, nn

from minefleet.policies.layers import gru_autograd
from minefleet.policies.layers.onednn_linear import dense, is_plain


class GRUCore(nn.Module):
    """A GRU whose state is zeros before every step that is `first`."""

    def __init__(self, features: int, size: int) -> None:
        super().__init__()
        self.gru = nn.GRU(features, size, batch_first=True)
        for name, parameter in self.gru.named_parameters():
            if name.startswith("bias"):
                nn.init.zeros_(parameter)
            else:
                nn.init.orthogonal_(parameter)

    def initial_state(self, batch: int) -> Tensor:
        """Zeros [B, H]."""
        return next(self.gru.parameters()).new_zeros(batch, self.gru.hidden_size)

    def forward(self, features: Tensor, state: Tensor, first: Tensor) -> tuple[Tensor, Tensor]:
        """Runs over time; on a GPU in one call between two steps at which any row is reset.

        Where those steps are is in the data, so this part of a compiled policy runs as it is: `exclude_from_compile`.

        Args:
            features: [B, T, F].
            state: [B, H], before step 0.
            first: [B, T] bool, the state is reset before this step.

        Returns:
            [B, T, H], and the state after the last step, [B, H].
        """
        if is_plain(features):
            weight_in, weight, bias_in, bias = self.gru.parameters()
            return gru_autograd.run(dense(features, weight_in, bias_in), state, first, weight, bias)
        starts = reset_steps(first)
        outputs = []
        for start, end in zip(starts, [*starts[1:], first.shape[1]], strict=True):
            fresh = state.masked_fill(first[:, start, None], 0.0)
            output, last = self.gru(features[:, start:end], fresh.unsqueeze(0))
            state = last.squeeze(0)
            outputs.append(output)
        return torch.cat(outputs, 1), state


@cache
def exclude_from_compile() -> None:
    """Excludes the core from every later `torch.compile`.

    A function and no decorator, since the decorator imports torch's compiler, which takes 1.3 s.
    """
    GRUCore.forward = torch.compiler.disable(GRUCore.forward)  # type: ignore[method-assign,no-untyped-call]


def reset_steps(first: Tensor) -> list[int]:
    """Step 0 and the steps before which at least one row of `first` [B, T] is reset, rising."""
    if first.shape[1] == 1:
        return [0]
    return [0, *(1 + first[:, 1:].any(0).nonzero().flatten()).tolist()]

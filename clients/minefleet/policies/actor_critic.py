"""The policy that fits most: an encoder, a memory if wanted, an action head and a value head."""

import torch
from torch import Tensor, nn

from minefleet.core.errors import ConfigError
from minefleet.core.schema import Schema
from minefleet.core.tree import Tree, tree_map
from minefleet.policies.layers.action_mask_in_observation import check_mask, mask_of
from minefleet.policies.layers.encoders import by_parts
from minefleet.policies.layers.gru import GRUCore
from minefleet.policies.layers.heads import action_head
from minefleet.policies.layers.layer_utils import VALUE_GAIN, orthogonal
from minefleet.policies.layers.obs_norm import ObsNorm
from minefleet.policies.layers.value_norm import ValueNorm
from minefleet.policies.policy import Policy, PolicyOutput


class ActorCritic(Policy):
    """Encoder → GRU, if any → action head and value head. A leaf `action_mask` in the observation masks the action.

    Give it an encoder, or override `encode`:

        class Mine(ActorCritic):
            def __init__(self, schema):
                super().__init__(schema, features=64)
                self.net = nn.Sequential(nn.Linear(4, 64), nn.Tanh())

            def encode(self, obs):
                return self.net(obs)

    Args:
        schema: What the environment shows and takes.
        encoder: Module from a tree of [N, ...] to [N, features]; None takes the observation as its own features.
        features: Size of what `encode` returns.
        gru_size: Units of the GRU after the encoder; 0 for none.
        value_encoder: Encoder of the value function alone, to [N, features]; None shares `encoder`.
        initial_log_std: Log standard deviation of continuous actions at the start.
        normalize_obs: Normalise floats in observations, if there are any, by running statistics before they are
            encoded.
        normalize_pixels: The same for images of bytes [H, W, C]; `encode` gets floats then, about 0 and within ±10.

    Raises:
        ConfigError: If an action has no head, a mask does not fit it, or a memory is wanted beside a `value_encoder`.
    """

    def __init__(
        self,
        schema: Schema,
        encoder: nn.Module | None = None,
        *,
        features: int,
        gru_size: int = 0,
        value_encoder: nn.Module | None = None,
        initial_log_std: float = 0.0,
        normalize_obs: bool = False,
        normalize_pixels: bool = False,
    ) -> None:
        super().__init__()
        check_mask(schema)
        if gru_size and value_encoder is not None:
            raise ConfigError(
                f"policy.separate_value_trunk has no memory: it needs policy.gru_size = 0, got {gru_size}"
            )
        self.encoder = nn.Identity() if encoder is None else encoder
        self.value_encoder = value_encoder
        self.core = GRUCore(features, gru_size) if gru_size else None
        width = gru_size or features
        self.action_head = action_head(schema.action, width, initial_log_std=initial_log_std)
        self.value_head = orthogonal(nn.Linear(width, 1), VALUE_GAIN)
        self.value_norm = ValueNorm()
        norm = ObsNorm(schema.obs, floats=normalize_obs, pixels=normalize_pixels)
        self.obs_norm = norm if norm.paths else None

    def initial_state(self, batch: int) -> Tree:
        """{} without a GRU, else {"gru": [B, H]}."""
        return {} if self.core is None else {"gru": self.core.initial_state(batch)}

    def encode(self, obs: Tree) -> Tensor:
        """Features [N, F] of a tree of [N, ...], batch and time flattened."""
        return self.encoder(obs)  # type: ignore[no-any-return]  # A module's result has no type.

    def forward(self, obs: Tree, state: Tree, first: Tensor) -> tuple[PolicyOutput, Tree]:
        """See `Policy.forward`."""
        steps = tree_map(lambda leaf: leaf.flatten(0, 1), obs)
        if self.obs_norm is not None:
            steps = self.obs_norm(steps)
        # A frozen encoder is called once for all steps, as its outputs are stored.
        features = by_parts(self.encode, steps) if self.frozen_encoder is None else self.encode(steps)
        hidden = value_hidden = features.view(*first.shape, -1)
        if self.core is not None:
            hidden, memory = self.core(hidden, state["gru"], first)
            value_hidden, state = hidden, {"gru": memory}
        if self.value_encoder is not None:
            value_hidden = by_parts(self.value_encoder, steps).view(*first.shape, -1)
        # Rounded logits and values would show in every ratio and advantage.
        with torch.autocast(hidden.device.type, enabled=False):
            value = self.value_head(value_hidden.float()).squeeze(-1)
            params, mask = self.action_head(hidden.float()), mask_of(obs)
            return PolicyOutput(params if mask is None else self.action_head.masked(params, mask), value), state

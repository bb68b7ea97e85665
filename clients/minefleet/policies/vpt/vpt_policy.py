"""VPT as a policy: `buttons` and `camera` from pixels, and a value."""

import torch
from torch import Tensor, nn

from minefleet.core.tree import Tree
from minefleet.policies.layers.action_mask_in_observation import mask_of
from minefleet.policies.layers.heads import DictHead, DiscreteHead
from minefleet.policies.layers.layer_utils import VALUE_GAIN, orthogonal
from minefleet.policies.layers.value_norm import ValueNorm
from minefleet.policies.policy import Policy, PolicyOutput
from minefleet.policies.vpt.architecture import BUTTONS, CAMERA, VPTArchitecture
from minefleet.policies.vpt.network import Network


class HierarchicalHead(DictHead):
    """A combination of buttons and a bin of the camera, drawn independently of each other.

    Where the combination leaves the camera alone the world ignores the bin; its log-probability counts all the same, as
    it does where VPT was trained.
    """

    def __init__(self, features: int, temperature: float) -> None:
        super().__init__({"buttons": DiscreteHead(features, BUTTONS), "camera": DiscreteHead(features, CAMERA)})
        self.temperature = temperature

    def forward(self, features: Tensor) -> Tree:
        """Log-probabilities: `buttons` [B, T, 8641] and `camera` [B, T, 121]."""
        logits = super().forward(features)
        return {key: (leaf / self.temperature).log_softmax(-1) for key, leaf in logits.items()}


class VPTPolicy(Policy):
    """OpenAI's Video-Pre-Training network, with our heads' and value's interfaces.

    It sees `obs["image"]`, bytes [B, T, H, W, 3], and a leaf `action_mask`, if there is one.
    """

    action_head: HierarchicalHead

    def __init__(self, architecture: VPTArchitecture) -> None:
        super().__init__()
        self.architecture = architecture
        self.network = Network(architecture)
        self.action_head = HierarchicalHead(architecture.hidden_size, architecture.temperature)
        self.value_head = orthogonal(nn.Linear(architecture.hidden_size, 1), VALUE_GAIN)
        self.value_norm = ValueNorm()

    def initial_state(self, batch: int) -> Tree:
        """See `Network.initial_state`."""
        return self.network.initial_state(batch)

    def forward(self, obs: Tree, state: Tree, first: Tensor) -> tuple[PolicyOutput, Tree]:
        """See `Policy.forward`."""
        features, state = self.network(obs["image"], state, first)
        # Rounded logits and values would show in every ratio and advantage.
        with torch.autocast(features.device.type, enabled=False):
            value = self.value_head(features.float()).squeeze(-1)
            params, mask = self.action_head(features.float()), mask_of(obs)
            return PolicyOutput(params if mask is None else self.action_head.masked(params, mask), value), state

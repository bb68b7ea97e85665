"""Chooses the parameters that are trained.

Those that are not have no gradient: they are in no gradient norm, and AdamW neither decays them nor keeps moments.
"""

from minefleet.policies import Policy


def train_only(policy: Policy, *, heads: bool, warming_up: bool) -> bool:
    """Enables gradients for all parameters or only some, and returns whether the others are frozen.

    Never those that are frozen.

    Args:
        policy: Any; its heads are all that lies below `action_head` and `value_head`.
        heads: Train both heads and nothing else.
        warming_up: Train the value head and nothing else.
    """
    is_frozen = heads or warming_up
    policy.requires_grad_(not is_frozen)
    policy.action_head.requires_grad_(not warming_up)
    policy.value_head.requires_grad_(True)
    for name in policy.frozen:
        policy.get_parameter(name).requires_grad_(False)
    return is_frozen

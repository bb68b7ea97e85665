"""The name and the seed of an actor's incarnation."""

import secrets
import uuid

from minefleet_runtime.role_context import RoleContext


def choose_name(context: RoleContext, first_version: int, *, inline: bool) -> str:
    """Names this incarnation; as it was named before where everything is to be as before."""
    if inline:
        return f"serial-{first_version}"
    if context.run.config.rollout_config.worker_config.deterministic:
        return f"{context.name}-{first_version}"
    return uuid.uuid4().hex[:12]


def choose_seed(seed: int, first_version: int, *, deterministic: bool) -> int:
    """The run's seed for an actor that starts with the run; another one for an actor that joins later.

    An actor that takes the place of a dead one would otherwise play the same episodes again.
    """
    if first_version <= 1:
        return seed
    return seed + first_version if deterministic else secrets.randbits(31)

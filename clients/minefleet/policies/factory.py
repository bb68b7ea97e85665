"""The policy of a configuration: ours, or one that a generator makes."""

import inspect
from collections.abc import Callable, Collection

from minefleet import generators
from minefleet.config import PolicyConfig
from minefleet.errors import ConfigError
from minefleet.policies.actor_critic import ActorCritic
from minefleet.policies.encoders import encoder
from minefleet.policies.policy import Policy
from minefleet.schema import Schema


def build(config: PolicyConfig, schema: Schema) -> Policy:
    """Makes the policy on the CPU, with fresh weights.

    Raises:
        ConfigError: If the schema does not fit our policy, or the generator makes none.
    """
    if config.generator:
        return _generated(config, schema)
    return ActorCritic(
        schema,
        encoder(schema.obs, config),
        features=config.hidden_size,
        gru_size=config.gru_size,
        value_encoder=encoder(schema.obs, config) if config.separate_value_trunk else None,
        initial_log_std=config.initial_log_std,
        normalize_obs=config.normalize_obs,
    )


def _generated(config: PolicyConfig, schema: Schema) -> Policy:
    reference = config.generator
    generator = generators.load(reference)
    wanted = _required_arguments(generator, config.kwargs)
    if wanted > 1:
        raise ConfigError(f"policy.generator={reference} needs {wanted} arguments; it may take the schema or nothing")
    arguments = (schema,) if wanted else ()
    try:
        inspect.signature(generator).bind(*arguments, **config.kwargs)
    except TypeError as error:
        raise ConfigError(f"policy.kwargs do not fit policy.generator={reference}: {error}") from error
    policy = generator(*arguments, **config.kwargs)
    if not isinstance(policy, Policy):
        raise ConfigError(
            f"policy.generator={reference} made a {type(policy).__qualname__}, "
            "which is no minefleet.policies.Policy: subclass that or ActorCritic"
        )
    if config.normalize_obs and policy.obs_norm is None:
        raise ConfigError(
            f"policy.normalize_obs is true, and the policy of policy.generator={reference} has no obs_norm: "
            "give ActorCritic normalize_obs=True, or use an ObsNorm of your own in forward"
        )
    return policy


def _required_arguments(function: Callable[..., object], given: Collection[str]) -> int:
    """Counts the positional parameters that have no default and are not given by name."""
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = inspect.signature(function).parameters.values()
    required = [parameter for parameter in parameters if parameter.default is parameter.empty]
    return sum(parameter.kind in positional and parameter.name not in given for parameter in required)

"""The policy of a configuration: ours, or one that a generator makes."""

import inspect
from collections.abc import Callable, Mapping
from functools import partial

from minefleet.config import PolicyConfig
from minefleet.config.paths import there
from minefleet.core import function_references
from minefleet.core.errors import ConfigError
from minefleet.core.schema import Schema
from minefleet.policies import stored_encoder_outputs
from minefleet.policies.actor_critic import ActorCritic
from minefleet.policies.layers.encoders import encoder
from minefleet.policies.minestudio.adapter import MinePolicyAdapter, is_mine_policy
from minefleet.policies.minestudio.reset_probe import probe
from minefleet.policies.policy import Policy
from minefleet.policies.vpt import VPTPolicy, load_vpt_policy
from minefleet.policies.vpt.policy_factory import check_fits
from minefleet_env.minecraft import minestudio_config_import_stubs

SCHEMA = "schema"
"""A parameter of a generator."""


def build(config: PolicyConfig, schema: Schema, path_map: Mapping[str, str] | None = None) -> Policy:
    """Makes the policy on the CPU, with fresh weights or those that its generator reads.

    Args:
        config: Which policy.
        schema: What the environment shows and takes.
        path_map: Where files lie that a generator asks `load_vpt_policy` for: `FleetConfig.path_map`.

    Raises:
        ConfigError: If the schema does not fit our policy, or the generator makes none.
    """
    if config.generator:
        return _generated(config, schema, path_map or {})
    return ActorCritic(
        schema,
        encoder(schema.obs, config),
        features=config.hidden_size,
        gru_size=config.gru_size,
        value_encoder=encoder(schema.obs, config) if config.separate_value_trunk else None,
        initial_log_std=config.initial_log_std,
        normalize_obs=config.normalize_obs,
        normalize_pixels=config.normalize_pixels,
    )


def _generated(config: PolicyConfig, schema: Schema, path_map: Mapping[str, str]) -> Policy:
    reference = config.generator
    minestudio_config_import_stubs.serve(partial(_load_vpt_policy, path_map))
    generator = function_references.load(reference)
    arguments = dict.fromkeys(_schema_arguments(generator), schema) | config.kwargs
    try:
        inspect.signature(generator).bind(**arguments)
    except TypeError as error:
        raise ConfigError(
            f"policy.kwargs do not fit policy.generator={reference}: {error} (the schema is given to a parameter that "
            "is named `schema` or annotated `Schema`)"
        ) from error
    policy = generator(**arguments)
    if is_mine_policy(policy):
        policy = MinePolicyAdapter(policy, schema)
        probe(policy, schema)
    if isinstance(policy, VPTPolicy):
        check_fits(policy, schema)
    if not isinstance(policy, Policy):
        raise ConfigError(
            f"policy.generator={reference} made a {type(policy).__qualname__}, "
            "which is no minefleet.policies.Policy, nor MineStudio's: subclass Policy or ActorCritic"
        )
    for key in ("normalize_obs", "normalize_pixels"):
        if getattr(config, key) and policy.obs_norm is None:
            raise ConfigError(
                f"policy.{key} is true, and the policy of policy.generator={reference} has no obs_norm: "
                f"give ActorCritic {key}=True, or use an ObsNorm of your own in forward"
            )
    policy.frozen = [key for key, parameter in policy.named_parameters() if not parameter.requires_grad]
    if config.frozen_encoder:
        called = policy.policy if isinstance(policy, MinePolicyAdapter) else policy
        stored_encoder_outputs.freeze(policy, called, config.frozen_encoder, schema)
    return policy.cpu()


def _load_vpt_policy(path_map: Mapping[str, str], model_path: str | None, weights_path: str | None) -> Policy:
    """Replaces `load_vpt_policy` in MineStudio's configurations."""
    if model_path is None:
        raise ConfigError("load_vpt_policy needs a model_path: minefleet downloads nothing; fetch the files first")
    return load_vpt_policy(there(model_path, path_map), None if weights_path is None else there(weights_path, path_map))


def _schema_arguments(function: Callable[..., object]) -> list[str]:
    """The parameters that ask for the schema, by name or annotation, and have not been given another one."""
    return [
        parameter.name
        for parameter in inspect.signature(function).parameters.values()
        if parameter.default in (None, parameter.empty)
        and SCHEMA in (parameter.name, getattr(parameter.annotation, "__name__", str(parameter.annotation)).lower())
    ]

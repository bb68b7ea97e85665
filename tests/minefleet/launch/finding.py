"""The check of environment and policy without a child process for the policy, for tests that have torch already."""

from minefleet.config import FleetConfig
from minefleet.core.schema import Schema
from minefleet.launch.env_policy_check import EnvPolicyCheck, Of, answer, check_devices, describe_environment


def find(config: FleetConfig, _: object = None, of: Of | None = None) -> EnvPolicyCheck:
    """The result of `check_env_and_policy`, and its error."""
    check_devices(config)
    described = describe_environment(config)
    schema, shape = Schema.from_dict(described["schema"]), described["frame_shape"]
    config = config if of is None else of(schema)
    return EnvPolicyCheck(config=config, schema=schema, frame_shape=shape and tuple(shape), **answer(config, schema))

"""Tries a configuration before any role starts: makes the environment and the policy once and fits them together.

Both may be heavy, and either may be somebody else's code, so a child process does it:
`python -m minefleet.launch.preflight CONFIG`, with the whole configuration as JSON.
"""

import json
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from minefleet.child import ask, describe, reply
from minefleet.config import FleetConfig
from minefleet.errors import ConfigError, EnvFailedError, FleetError
from minefleet.lifeline import die_with_launcher
from minefleet.run import from_dict, to_dict
from minefleet.schema import Schema

if TYPE_CHECKING:
    from minefleet.policies import Policy

ENVIRONMENT = "environment"
"""Second argument of a child that shall try the environment only."""


def preflight(config: FleetConfig) -> tuple[Schema, str]:
    """Returns the environment's schema and the fingerprint of the policy's architecture.

    Raises:
        EnvFailedError: If the environment fails, with its traceback.
        ConfigError: If there is no such environment or policy, or the two do not fit together.
    """
    found = ask("minefleet.launch.preflight", json.dumps(to_dict(config)))
    return Schema.from_dict(found["schema"]), str(found["architecture"])


def describe_environment(config: FleetConfig) -> Schema:
    """Returns the environment's schema.

    Raises:
        EnvFailedError: If the environment fails, with its traceback.
        ConfigError: If there is no such environment.
    """
    return Schema.from_dict(ask("minefleet.launch.preflight", json.dumps(to_dict(config)), ENVIRONMENT)["schema"])


def answer(config: FleetConfig, part: str = "") -> dict[str, Any]:
    """What the child finds out; of the environment only where that is the part that is wanted."""
    if part == ENVIRONMENT:
        return {"schema": _try_environment(config).to_dict()}
    from minefleet.policies import build
    from minefleet.policies.device import choose_device
    from minefleet.policies.weights import architecture, architecture_fingerprint, check_state

    rollout = config.rollout_config
    choose_device(config.train_config.device, "train_config.device")
    if rollout.num_rollout_workers:
        choose_device(rollout.worker_config.device, "rollout_config.worker_config.device")
    schema = _try_environment(config)
    with naming(f"the policy {config.policy.generator or 'of minefleet'} fails"):
        policy = build(config.policy, schema)
    check_state(policy)
    with naming("the policy does not fit the environment's spaces"):
        _act_once(policy, schema)
    return {"schema": schema.to_dict(), "architecture": architecture_fingerprint(architecture(policy))}


def _try_environment(config: FleetConfig) -> Schema:
    try:
        return _read_schema(config)
    except FleetError:
        raise
    except Exception as error:
        name = config.env.generator or config.env.id
        raise EnvFailedError(f"the environment {name!r} fails:\n{_trace(error)}") from error


def _read_schema(config: FleetConfig) -> Schema:
    from minefleet import envs
    from minefleet.envs.spaces import schema_of

    env = envs.make(config.env)
    try:
        schema = schema_of(env)
        env.reset(seed=config.seed)
    finally:
        env.close()
    return schema


def _trace(error: Exception) -> str:
    """The traceback, and those of its causes, without frames of this module."""
    told = traceback.TracebackException.from_exception(error)
    link: traceback.TracebackException | None = told
    while link is not None:
        link.stack[:] = [frame for frame in link.stack if frame.filename != __file__]
        link = link.__cause__ or link.__context__
    return "".join(told.format()).rstrip()


def _act_once(policy: "Policy", schema: Schema) -> None:
    """One step of one environment that shows zeros."""
    import torch

    from minefleet.schema import zeros
    from minefleet.tree import tree_map

    obs = tree_map(torch.as_tensor, zeros(schema.obs, 1, 1))
    with torch.no_grad():
        output, _ = policy(obs, policy.initial_state(1), torch.ones(1, 1, dtype=torch.bool))
        action = policy.action_head.sample(output.params)
        policy.action_head.logp(output.params, action)


@contextmanager
def naming(what: str) -> Iterator[None]:
    """Turns what somebody else's code raises into a `ConfigError` that begins with `what`."""
    try:
        yield
    except FleetError:
        raise
    except Exception as error:
        raise ConfigError(f"{what}: {describe(error)}") from error


if __name__ == "__main__":
    die_with_launcher()
    reply(lambda: answer(from_dict(json.loads(sys.argv[1])), *sys.argv[2:]))

"""Tries a configuration before any role starts: makes the environment and the policy once and fits them together.

Both may be heavy, and either may be somebody else's code, so child processes do it: the environment is made by the
interpreter that will play it, the policy by `python -m minefleet.launch.env_policy_check CONFIG SCHEMA`, both as JSON.
Without a SCHEMA that program looks for the devices only, while the environment is still being made.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, BinaryIO

from minefleet.config import FleetConfig
from minefleet.core.child_process_answers import ask, read_answer, read_last_line, reply
from minefleet.core.child_process_start import Start, file_in_memory, start_fresh
from minefleet.core.errors import ConfigError, EnvFailedError, FleetError
from minefleet.core.parent_death import die_with_launcher
from minefleet.core.schema import Schema
from minefleet.runs.run_yaml import from_dict, to_dict
from minefleet_env import interpreter_command, process_tree
from minefleet_env.env_probe import CLOSE_S
from minefleet_env.errors import in_one_line

if TYPE_CHECKING:
    from minefleet.policies import Policy


@dataclass(frozen=True, kw_only=True, slots=True)
class EnvPolicyCheck:
    """The contents of `run.yaml`."""

    config: FleetConfig
    """Of this kind of environment."""
    schema: Schema
    architecture: str
    """Fingerprint of the policy's architecture."""
    stored: Schema | None = None
    """See `Run.stored`."""
    frame_shape: tuple[int, ...] | None
    """See `Run.frame_shape`."""

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        shape = None if self.frame_shape is None else list(self.frame_shape)
        return {
            "config": to_dict(self.config),
            "schema": self.schema.to_dict(),
            "architecture": self.architecture,
            "stored": None if self.stored is None else self.stored.to_dict(),
            "frame_shape": shape,
        }


Of = Callable[[Schema], FleetConfig]
"""The configuration of an environment that shows so."""


def check_env_and_policy(config: FleetConfig, start: Start = start_fresh, of: Of | None = None) -> EnvPolicyCheck:
    """Finds out what the environment shows and takes, and whether the policy fits it.

    Args:
        config: As far as is known without the environment.
        start: Starts child processes.
        of: The configuration once its schema is known; None where it is `config` whatever that is.

    Raises:
        EnvFailedError: If the environment fails, with its traceback.
        ConfigError: If there is no such environment or policy, or the two do not fit together.
    """
    module = "minefleet.launch.env_policy_check"
    with _describing(config) as finish:
        ask(module, json.dumps(to_dict(config)), start=start)
        described = finish()
    schema, shape = Schema.from_dict(described["schema"]), described["frame_shape"]
    config = config if of is None else of(schema)
    answered = ask(module, json.dumps(to_dict(config)), json.dumps(described["schema"]), start=start)
    return EnvPolicyCheck(
        config=config,
        schema=schema,
        architecture=str(answered["architecture"]),
        stored=None if answered["stored"] is None else Schema.from_dict(answered["stored"]),
        frame_shape=None if shape is None else tuple(shape),
    )


def check_devices(config: FleetConfig) -> dict[str, Any]:
    """Refuses devices that are not there; finds out nothing else."""
    from minefleet.policies.device import choose_device

    rollout = config.rollout_config
    choose_device(config.train_config.device, "train_config.device")
    if rollout.num_rollout_workers:
        choose_device(rollout.worker_config.device, "rollout_config.worker_config.device")
    return {}


def answer(config: FleetConfig, schema: Schema) -> dict[str, Any]:
    """Returns what the child process finds out about the policy."""
    from minefleet.policies import build
    from minefleet.policies.weight_arrays import architecture, architecture_fingerprint, check_state

    with naming(f"the policy {config.policy.generator or 'of minefleet'} fails"):
        policy = build(config.policy, schema, config.path_map)
    check_state(policy)
    with naming("the policy does not fit the environment's spaces"):
        _act_once(policy, schema)
    stored = None if policy.frozen_encoder is None else policy.frozen_encoder.schema(schema).to_dict()
    return {"architecture": architecture_fingerprint(architecture(policy)), "stored": stored}


def describe_environment(config: FleetConfig) -> dict[str, Any]:
    """Makes and resets the environment in a process of its own; returns its `schema` and `frame_shape`.

    Raises:
        EnvFailedError: If the environment fails, with its traceback.
        ConfigError: If there is no such environment, or it takes longer than a start and a reset may.
    """
    with _describing(config) as finish:
        return finish()


@contextmanager
def _describing(config: FleetConfig) -> Iterator[Callable[[], dict[str, Any]]]:
    """Starts an environment process; yields what waits for its end and returns, or raises, what was found.

    One that has not ended by the end of the block, or takes too long, is killed with all that it has started.
    """
    worker = config.rollout_config.worker_config
    question = {
        "config": asdict(config.env),
        "import_path": interpreter_command.import_path(config.env.python),
        "seed": config.seed,
        "films": config.train_config.record_video_interval > 0,
        "num_envs": min(worker.num_envs, worker.envs_together),
        "hosted": worker.hosted,
    }
    with file_in_memory() as file, file_in_memory() as output:
        process = _start(config.env.python, question, file, output)

        def finish() -> dict[str, Any]:
            code = _wait(process, config)
            found, last_line = read_answer(file), read_last_line(output)
            if "schema" in found:
                return found
            if "failure" in found:
                name = config.env.generator or config.env.id
                raise EnvFailedError(f"the environment {name!r} fails:\n{found['failure']}")
            raise ConfigError(found.get("error", f"the environment's process ended with exit code {code}: {last_line}"))

        try:
            yield finish
        finally:
            if process.returncode is None:
                process_tree.kill_tree(process.pid)
                process.wait()


def _start(python: str, question: dict[str, Any], file: BinaryIO, output: BinaryIO) -> "subprocess.Popen[bytes]":
    arguments = ("describe", str(file.fileno()), str(os.getpid()), json.dumps(question))
    try:
        return subprocess.Popen(
            interpreter_command.command(python, *arguments),
            env=interpreter_command.environment(python),
            pass_fds=[file.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    except OSError as error:
        raise ConfigError(f"env.python={python} cannot be started: {error.strerror}") from error


def _wait(process: "subprocess.Popen[bytes]", config: FleetConfig) -> int:
    worker = config.rollout_config.worker_config
    timeout_s = worker.start_timeout_s + worker.reset_timeout_s + worker.step_timeout_s
    try:
        code = process.wait(timeout_s)
    except subprocess.TimeoutExpired as error:
        raise ConfigError(
            f"the environment was not made, reset and stepped within {timeout_s:g} s, which is start_timeout_s + "
            "reset_timeout_s + step_timeout_s of rollout_config.worker_config"
        ) from error
    if code == -signal.SIGALRM:
        raise ConfigError(f"the environment's close() has not returned within {CLOSE_S} s; it must, for a run to end")
    return code


def _act_once(policy: "Policy", schema: Schema) -> None:
    """One step of one environment that shows zeros."""
    import torch

    from minefleet.core.schema import zeros
    from minefleet.core.tree import tree_map

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
        raise ConfigError(f"{what}: {in_one_line(error)}") from error


def main() -> None:
    """Answers `check_env_and_policy`."""
    die_with_launcher()
    config, *schema = map(json.loads, sys.argv[1:])
    reply(lambda: answer(from_dict(config), Schema.from_dict(*schema)) if schema else check_devices(from_dict(config)))


if __name__ == "__main__":
    main()

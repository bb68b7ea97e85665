"""A trained policy that acts in any loop, one environment at a time.

env's observation ──▶ rows of the schema ──▶ policy, with the memory of this agent ──▶ env's action
"""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from minefleet.core import function_references
from minefleet.core.errors import ConfigError
from minefleet.core.tree import Tree, flatten, unflatten
from minefleet.policies.factory import build
from minefleet.policies.policy import Policy
from minefleet.policies.precision import compute, exact_float32
from minefleet.policies.weight_arrays import load_numpy
from minefleet.runs.run_yaml import Run
from minefleet.runs.trained_policy_files import read_trained
from minefleet_env.make_env import make
from minefleet_env.space_conversion import reader, schema_of, writer


class Agent:
    """A policy that acts in one environment, with its memory. Make it by `minefleet.load`.

    Args:
        run: The run that trained it.
        policy: With its weights.
        version: Of the weights.
        env: Has the spaces of the run's environment.
        seed: Of the sampling.
    """

    def __init__(self, run: Run, policy: Policy, version: int, *, env: Any, seed: int) -> None:
        self.run = run
        """The run that trained it, as it was then."""
        self.version = version
        """Of the weights."""
        self._policy = policy.eval()
        self._generator = torch.Generator().manual_seed(seed)
        self._state: Tree | None = None
        obs, self._action = (
            {path: leaf.zeros() for path, leaf in flatten(side).items()} for side in (run.schema.obs, run.schema.action)
        )
        self._obs = unflatten({path: torch.from_numpy(row)[None, None] for path, row in obs.items()})
        self._write = writer(env.observation_space, run.schema.to_dict()["obs"], obs)
        self._read = reader(env.action_space, self._action)

    def reset(self) -> None:
        """Forgets: the next observation is the first of an episode."""
        self._state = None

    @torch.inference_mode()
    def act(self, obs: Any, *, first: bool = False, greedy: bool = True) -> Any:
        """Chooses the action for an observation, and remembers the observation.

        Args:
            obs: One observation as the environment returns it, without a batch axis. Its `action_mask`, if its space
                has one, holds.
            first: The observation is the first of an episode; so it is after `reset`, too.
            greedy: Take the likeliest action, as `minefleet eval` does, instead of a sample.

        Returns:
            What `env.step` takes.

        Raises:
            EnvError: If the observation does not fit its space.
        """
        self._write(obs)
        first = first or self._state is None
        before = self._policy.initial_state(1) if first else self._state
        with exact_float32():
            output, self._state = compute(self._policy, self._obs, before, torch.tensor([[first]]), torch.float32)
        chosen = self._policy.action_head.sample(output.params, greedy, self._generator)
        for path, leaf in flatten(chosen).items():
            self._action[path][...] = leaf[0, 0].numpy()
        return self._read()

    def make_env(self, render_mode: str | None = None) -> Any:
        """Makes the environment that the policy was trained in, wrappers included, in this process.

        Raises:
            ConfigError: If there is none, or another interpreter plays it.
        """
        return _make_env(self.run, render_mode)


def load(path: Path | str, env: Any = None, *, seed: int = 0) -> Agent:
    """Loads a trained policy onto the CPU.

    Args:
        path: A run directory, for its last checkpoint; a checkpoint; or an exported version.
        env: The environment to act in, or anything with its two spaces. None makes the one of the run for a moment.
        seed: Of the sampling.

    Raises:
        ConfigError: If there is no policy, its files are damaged, or `env` has other spaces than it was trained in.
    """
    trained, run, weights = read_trained(Path(path))
    # The spaces are needed as they are: the schema does not tell a Tuple from a Dict, nor at what a Discrete starts.
    spaces = _make_env(run) if env is None else env
    try:
        with function_references.refusing():
            found = schema_of(spaces)
        if found != run.schema.to_dict():
            raise ConfigError(
                f"the environment's spaces are {found}, the policy's are {run.schema.to_dict()}: wrap it as the run "
                "does, or let `agent.make_env()` make it"
            )
        with torch.random.fork_rng(devices=[]):  # Fresh weights are drawn, and the caller's seed is not ours to use.
            policy = build(run.config.policy, run.schema, run.config.path_map)
        load_numpy(policy, weights)
        return Agent(run, policy, trained.version, env=spaces, seed=seed)
    finally:
        if env is None:
            spaces.close()


def _make_env(run: Run, render_mode: str | None = None) -> Any:
    if run.config.env.python:
        raise ConfigError(f"env.python={run.config.env.python} plays this environment, and not this interpreter")
    with function_references.refusing():
        return make(asdict(run.config.env), render_mode)

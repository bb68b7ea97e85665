"""Environments that step in batches: EnvPool, and JAX worlds such as Craftax, for `env.batched=true`.

    minefleet train cartpole env.id= env.batched=true env.generator=examples/in_batches.py:env_pool \
        'env.kwargs={task: CartPole-v1}' env.python=PYTHON_WITH_ENVPOOL
    minefleet train vectors env.batched=true env.generator=examples/in_batches.py:craftax \
        env.python=PYTHON_WITH_CRAFTAX \
        rollout_config.worker_config.num_envs=4 rollout_config.worker_config.envs_per_process=4
"""

from typing import Any

import numpy as np
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import AutoresetMode, VectorEnv


def env_pool(task: str, num_envs: int, seed: int) -> VectorEnv[Any, Any, Any]:
    """EnvPool's environments. They are seeded here, since its `reset` takes no seed."""
    import envpool

    pool: VectorEnv[Any, Any, Any] = envpool.make_gymnasium(task, num_envs=num_envs, seed=seed)
    return pool


class JaxWorlds(VectorEnv[Any, Any, Any]):
    """Worlds with the interface of gymnax, which do not reset themselves, stepped by one compiled call."""

    metadata = {"autoreset_mode": AutoresetMode.DISABLED}  # noqa: RUF012  # Gymnasium's own is a dict.

    def __init__(self, world: Any, num_envs: int, seed: int) -> None:
        import jax

        self._jax, self._params, self.num_envs = jax, world.default_params, num_envs
        space = world.observation_space(self._params)
        self.single_observation_space = Box(float(np.min(space.low)), float(np.max(space.high)), space.shape)
        self.single_action_space = Discrete(world.action_space(self._params).n)
        self._key = jax.random.PRNGKey(seed)
        self._reset = jax.jit(jax.vmap(world.reset, (0, None)))
        self._step = jax.jit(jax.vmap(world.step, (0, 0, 0, None)))
        self._obs: Any = None
        self._state: Any = None

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        """Resets the worlds that `options["reset_mask"]` names, or all."""
        new = self._reset(self._keys(), self._params)
        if options is not None:
            where = self._jax.vmap(self._jax.numpy.where)
            mask, old = options["reset_mask"], (self._obs, self._state)
            new = self._jax.tree.map(lambda one, other: where(mask, one, other), new, old)
        self._obs, self._state = new
        return np.asarray(self._obs), {}

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Steps all worlds. An end at the limit of time is a truncation."""
        self._obs, self._state, reward, done, _ = self._step(self._keys(), self._state, actions, self._params)
        done, is_late = np.asarray(done), np.asarray(self._state.timestep >= self._params.max_timesteps)
        return np.asarray(self._obs), np.asarray(reward), done & ~is_late, done & is_late, {}

    def _keys(self) -> Any:
        self._key, *keys = self._jax.random.split(self._key, self.num_envs + 1)
        return self._jax.numpy.stack(keys)


def craftax(num_envs: int, seed: int, name: str = "Craftax-Classic-Symbolic-v1") -> JaxWorlds:
    """Craftax, https://github.com/MichaelTMatthews/Craftax."""
    from craftax.craftax_env import make_craftax_env_from_name

    return JaxWorlds(make_craftax_env_from_name(name, auto_reset=False), num_envs, seed)

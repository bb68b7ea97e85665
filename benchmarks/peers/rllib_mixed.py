"""RLlib's side of `benchmarks/mixed.py`. Ends with a JSON line of figures.

    python rllib_mixed.py {PPO,APPO} SECONDS STEPS_PER_ITERATION

Two processes of four environments each, which RLlib steps together.
"""

import json
import os
import sys
import time
from pathlib import Path

import mixed_counts
import numpy as np
import ray
from ray.rllib.algorithms.appo import APPOConfig
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.connectors.connector_v2 import ConnectorV2
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
from ray.tune.registry import register_env

RUNNERS, ENVS, BATCH = 2, 4, 256
NETWORK = DefaultModelConfig(fcnet_hiddens=[64, 64], fcnet_activation="relu", vf_share_layers=False)
TRAINED = mixed_counts.Trained()


class Count(ConnectorV2):
    """Counts what the learner makes batches of."""

    def __call__(self, *, rl_module, batch, episodes, explore=None, shared_data=None, metrics=None, **_):
        for episode in episodes:
            rewards = np.asarray(episode.get_rewards())
            TRAINED.add([float(episode.get_observations(0)[1]) > 0] * len(rewards), rewards)
        return batch


def make(context):
    return mixed_counts.Counted()


def config_of(algorithm, steps):
    """The hyper-parameters of `harness/mixed_run.py`, as RLlib has them."""
    made = (
        {"PPO": PPOConfig, "APPO": APPOConfig}[algorithm]()
        .environment("mixed")
        .env_runners(num_env_runners=RUNNERS, num_envs_per_env_runner=ENVS, rollout_fragment_length=32)
        .learners(num_learners=0)
        .rl_module(model_config=NETWORK)
        .training(lr=1e-3, gamma=0.5, learner_connector=lambda *_: Count(), train_batch_size_per_learner=steps)
    )
    return made.training(minibatch_size=BATCH, num_epochs=2) if algorithm == "PPO" else made


def main():
    algorithm, seconds, steps = sys.argv[1], float(sys.argv[2]), int(sys.argv[3])
    environ = {name: os.environ[name] for name in ("MIXED", "COUNTS")}
    environ["PYTHONPATH"] = str(Path(__file__).parent)
    ray.init(num_cpus=RUNNERS + 1, include_dashboard=False, log_to_driver=False, runtime_env={"env_vars": environ})
    register_env("mixed", make)
    trainer = config_of(algorithm, steps).build_algo()
    began = time.monotonic()
    while time.monotonic() - began < seconds:
        trainer.train()
    TRAINED.write()
    print(json.dumps(mixed_counts.summary(time.monotonic() - began)), flush=True)
    trainer.stop()
    ray.shutdown()


if __name__ == "__main__":
    main()

"""RLlib's side of `benchmarks/faulty_peers.py`: PPO with its options to restart what fails. Prints trained steps.

python rllib_mortal.py SECONDS
"""

import os
import sys
import time
from pathlib import Path

import gymnasium
import ray
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.connectors.connector_v2 import ConnectorV2
from ray.tune.registry import register_env

sys.path.append(str(Path(__file__).parents[1] / "harness"))

import mortal_run

HARNESS = sys.path[-1]
RUNNERS, ENVS = 2, 16
TRAINED = [0]


class Count(ConnectorV2):
    """Counts the steps that the learner makes batches of; RLlib's own figure counts each once an epoch."""

    def __call__(self, *, rl_module, batch, episodes, explore=None, shared_data=None, metrics=None, **_):
        TRAINED[0] += sum(map(len, episodes))
        return batch


def main():
    environ = {"STEPS": os.environ["STEPS"], "PYTHONPATH": HARNESS}
    ray.init(num_cpus=RUNNERS + 1, include_dashboard=False, log_to_driver=False, runtime_env={"env_vars": environ})
    register_env("mortal", lambda context: mortal_run.Mortal())
    trainer = (
        PPOConfig()
        .environment("mortal")
        .env_runners(
            num_env_runners=RUNNERS,
            num_envs_per_env_runner=ENVS,
            gym_env_vectorize_mode=gymnasium.VectorizeMode.ASYNC,
            rollout_fragment_length=32,
        )
        .fault_tolerance(restart_failed_env_runners=True, restart_failed_sub_environments=True)
        .learners(num_learners=0)
        .training(
            train_batch_size_per_learner=1024, minibatch_size=256, num_epochs=2, learner_connector=lambda *_: Count()
        )
        .build_algo()
    )
    began = time.monotonic()
    while time.monotonic() - began < float(sys.argv[1]):
        trainer.train()
    print(float(TRAINED[0]), flush=True)
    ray.shutdown()


if __name__ == "__main__":
    main()

"""RLlib's side of `benchmarks/training.py`. Ends with a JSON line: parameters, and rows of training.

    python rllib_training.py CASE SEED SECONDS

It ends so many seconds after its first iteration. A row is seconds, steps trained on, and null: its returns are not
read. Two runners with half of the environments each; the learner is in the driver.
"""

import json
import os
import sys
import time
from importlib import import_module

import networks
import ray
import torch
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.core.columns import Columns
from ray.rllib.core.rl_module import RLModuleSpec
from ray.rllib.core.rl_module.apis import ValueFunctionAPI
from ray.rllib.core.rl_module.torch import TorchRLModule
from ray.tune.registry import register_env

from harness import whole_cases as numbers
from harness.whole_cases import CASES, CORES, share_cores

RUNNERS = 2


class Network(TorchRLModule, ValueFunctionAPI):
    """The network of the case, as RLlib calls it."""

    def setup(self):
        case = CASES[self.model_config["case"]]
        self.body = networks.Body(case)
        self.policy, self.value = networks.heads(case)

    def _forward(self, batch, **_):
        return {Columns.ACTION_DIST_INPUTS: self.policy(self.body(batch[Columns.OBS]))}

    def _forward_train(self, batch, **_):
        hidden = self.body(batch[Columns.OBS])
        return {Columns.ACTION_DIST_INPUTS: self.policy(hidden), Columns.EMBEDDINGS: hidden}

    def compute_values(self, batch, embeddings=None):
        hidden = self.body(batch[Columns.OBS]) if embeddings is None else embeddings
        return self.value(hidden).squeeze(-1)


def config_of(case, name, seed):
    """The hyper-parameters of `harness/whole_ours.py`, as RLlib has them."""
    iteration = numbers.BATCH * numbers.BATCHES
    return (
        PPOConfig()
        .environment("case")
        .env_runners(
            num_env_runners=RUNNERS,
            num_envs_per_env_runner=case.envs // RUNNERS,
            rollout_fragment_length=iteration // case.envs,
        )
        .learners(num_learners=0)
        .rl_module(rl_module_spec=RLModuleSpec(module_class=Network, model_config={"case": name}))
        .training(
            lr=numbers.LEARNING_RATE,
            gamma=numbers.DISCOUNT,
            lambda_=numbers.GAE_LAMBDA,
            train_batch_size_per_learner=iteration,
            minibatch_size=numbers.BATCH,
            num_epochs=1,
            clip_param=numbers.CLIP,
            vf_loss_coeff=numbers.VALUE,
            vf_clip_param=float("inf"),
            entropy_coeff=numbers.ENTROPY,
            use_kl_loss=False,
            grad_clip=numbers.MAX_GRAD_NORM,
            grad_clip_by="global_norm",
        )
        .debugging(seed=seed)
    )


def main():
    name, seed, seconds = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
    case = CASES[name]
    share_cores()
    torch.set_num_threads(CORES)
    environ = {"PYTHONPATH": os.environ["PYTHONPATH"], "OMP_NUM_THREADS": "1"}
    ray.init(num_cpus=RUNNERS + 1, include_dashboard=False, log_to_driver=False, runtime_env={"env_vars": environ})
    module, _, factory = case.env.partition(":")
    register_env("case", lambda _: getattr(import_module(module), factory)("chw"))
    trainer = config_of(case, name, seed).build_algo()
    rows = []
    while not rows or rows[-1][0] - rows[0][0] <= seconds:
        steps = trainer.train()["env_runners"]["num_env_steps_sampled_lifetime"]
        rows.append((time.monotonic(), steps, None))
    parameters = sum(parameter.numel() for parameter in trainer.get_module().parameters())
    print(json.dumps({"parameters": parameters, "rows": rows}), flush=True)
    trainer.stop()
    ray.shutdown()


if __name__ == "__main__":
    main()

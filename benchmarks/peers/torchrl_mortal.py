"""TorchRL's side of `benchmarks/faulty_peers.py`: a collector over 32 processes, PPO's loss. Prints trained steps.

python torchrl_mortal.py SECONDS
"""

import sys
import time
from pathlib import Path

import torch
from tensordict.nn import TensorDictModule
from torch import nn
from torchrl.collectors import Collector
from torchrl.envs import GymWrapper, ParallelEnv
from torchrl.modules import OneHotCategorical, ProbabilisticActor, ValueOperator
from torchrl.objectives import ClipPPOLoss
from torchrl.objectives.value import GAE

sys.path.append(str(Path(__file__).parents[1] / "harness"))

import mortal_run

ENVS, FRAMES, BATCH = 32, 1024, 256


def make():
    return GymWrapper(mortal_run.Mortal())


def network(out):
    return nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, out))


def main():
    env = ParallelEnv(ENVS, make)
    actor = ProbabilisticActor(
        TensorDictModule(network(2), in_keys=["observation"], out_keys=["logits"]),
        in_keys=["logits"],
        distribution_class=OneHotCategorical,
        return_log_prob=True,
    )
    critic = ValueOperator(network(1), in_keys=["observation"])
    loss, advantage = ClipPPOLoss(actor, critic), GAE(gamma=0.99, lmbda=0.95, value_network=critic)
    optimizer = torch.optim.Adam(loss.parameters(), lr=3e-4)
    began, trained = time.monotonic(), 0
    for data in Collector(env, actor, frames_per_batch=FRAMES, total_frames=-1):
        advantage(data)
        for _ in range(2):
            for part in data.reshape(-1)[torch.randperm(FRAMES)].split(BATCH):
                losses = loss(part)
                optimizer.zero_grad()
                (losses["loss_objective"] + losses["loss_critic"] + losses["loss_entropy"]).backward()
                optimizer.step()
        trained += FRAMES
        print(trained, file=sys.stderr, flush=True)
        if time.monotonic() - began > float(sys.argv[1]):
            break
    print(float(trained), flush=True)


if __name__ == "__main__":
    main()

"""TorchRL's side of `benchmarks/training.py`. Ends with a JSON line: parameters, and rows of training.

    python torchrl_training.py CASE SEED SECONDS

It ends so many seconds after its first iteration. A row is seconds, steps trained on, and null: its returns are not
read. One process plays, then trains.
"""

import json
import sys
import time
from importlib import import_module

import networks
import torch
from tensordict.nn import TensorDictModule
from torchrl.collectors import Collector
from torchrl.envs import GymWrapper, SerialEnv
from torchrl.modules import ActorValueOperator, OneHotCategorical, ProbabilisticActor, ValueOperator
from torchrl.objectives import ClipPPOLoss
from torchrl.objectives.value import GAE

from harness import whole_cases as numbers
from harness.whole_cases import CASES, CORES, share_cores

ITERATION = numbers.BATCH * numbers.BATCHES


def main():
    name, seed, seconds = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
    case = CASES[name]
    share_cores()
    # One thread is faster where a product is small.
    torch.set_num_threads(CORES if case.has_frames else 1)
    torch.manual_seed(seed)
    module, _, factory = case.env.partition(":")
    env = SerialEnv(case.envs, lambda: GymWrapper(getattr(import_module(module), factory)("chw")))
    body = TensorDictModule(networks.Body(case), in_keys=["observation"], out_keys=["hidden"])
    policy, value = networks.heads(case)
    operator = ActorValueOperator(
        body,
        ProbabilisticActor(
            TensorDictModule(policy, in_keys=["hidden"], out_keys=["logits"]),
            in_keys=["logits"],
            distribution_class=OneHotCategorical,
            return_log_prob=True,
        ),
        ValueOperator(value, in_keys=["hidden"]),
    )
    actor, critic = operator.get_policy_operator(), operator.get_value_operator()
    loss = ClipPPOLoss(
        actor,
        critic,
        clip_epsilon=numbers.CLIP,
        entropy_coeff=numbers.ENTROPY,
        critic_coeff=numbers.VALUE,
        loss_critic_type="l2",
        normalize_advantage=True,
    )
    advantage = GAE(gamma=numbers.DISCOUNT, lmbda=numbers.GAE_LAMBDA, value_network=critic, deactivate_vmap=True)
    optimizer = torch.optim.Adam(operator.parameters(), lr=numbers.LEARNING_RATE, eps=numbers.ADAM_EPS)
    rows, steps = [], 0
    for data in Collector(
        env, actor, frames_per_batch=ITERATION, total_frames=-1, auto_register_policy_transforms=False
    ):
        with torch.no_grad():
            advantage(data)
        for part in data.reshape(-1)[torch.randperm(ITERATION)].split(numbers.BATCH):
            losses = loss(part)
            optimizer.zero_grad()
            (losses["loss_objective"] + losses["loss_critic"] + losses["loss_entropy"]).backward()
            torch.nn.utils.clip_grad_norm_(operator.parameters(), numbers.MAX_GRAD_NORM)
            optimizer.step()
        steps += ITERATION
        rows.append((time.monotonic(), steps, None))
        if rows[-1][0] - rows[0][0] > seconds:
            break
    parameters = sum(parameter.numel() for parameter in operator.parameters())
    print(json.dumps({"parameters": parameters, "rows": rows}), flush=True)


if __name__ == "__main__":
    main()

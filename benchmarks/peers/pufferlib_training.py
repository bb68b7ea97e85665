"""PufferLib's side of `benchmarks/training.py`. Ends with a JSON line: parameters, and rows of training.

    python pufferlib_training.py CASE SEED SECONDS

It ends so many seconds after its first iteration. A row is seconds, steps trained on, and null: its returns are not
read. PufferLib's own computation of advantages needs CUDA to be built; the same formula stands here in NumPy.
"""

import json
import os
import sys
import tempfile
import time
from importlib import import_module

import networks
import numpy as np
import pufferlib.emulation
import pufferlib.pufferl
import pufferlib.vector
import torch
from torch import nn

from harness import whole_cases as numbers
from harness.whole_cases import CASES, CORES, share_cores

NEVER = 10**9
OPERATOR = (
    "compute_puff_advantage(Tensor values, Tensor rewards, Tensor dones, Tensor importance, Tensor(a!) advantages, "
    "float gamma, float lambda, float rho_clip, float c_clip) -> ()"
)


def advantages(values, rewards, dones, importance, out, discount, gae_lambda, rho_clip, c_clip):
    """V-trace's advantages, written to `out`, [segments, steps] each; a segment's last step has none."""
    values, rewards, dones, importance, out = (
        tensor.detach().numpy() for tensor in (values, rewards, dones, importance, out)
    )
    goes_on = 1 - dones[:, 1:]
    errors = rewards[:, 1:] + discount * values[:, 1:] * goes_on - values[:, :-1]
    errors *= np.minimum(importance[:, :-1], rho_clip)
    factors = discount * gae_lambda * goes_on * np.minimum(importance[:, :-1], c_clip)
    carried = np.zeros(len(values), np.float32)
    for step in reversed(range(errors.shape[1])):
        carried = errors[:, step] + factors[:, step] * carried
        out[:, step] = carried


class Network(nn.Module):
    """The network of the case, as PufferLib calls it."""

    def __init__(self, case):
        super().__init__()
        self.hidden_size = case.hidden
        self.shape = (3, 64, 64) if case.has_frames else (4,)
        self.body = networks.Body(case)
        self.logits, self.value = networks.heads(case)

    def forward_eval(self, obs, state=None):
        hidden = self.body(obs.reshape(-1, *self.shape))
        return self.logits(hidden), self.value(hidden)

    forward = forward_eval


def options_of(case, name, seed):
    """The hyper-parameters of `harness/whole_ours.py`, as PufferLib has them."""
    return {
        "env": name,
        "seed": seed,
        "device": "cpu",
        "precision": "float32",
        "torch_deterministic": False,
        "cpu_offload": False,
        "amp": False,
        "compile": False,
        "use_rnn": False,
        "total_timesteps": NEVER,
        "batch_size": numbers.BATCH * numbers.BATCHES,
        "bptt_horizon": numbers.ROLLOUT,
        "minibatch_size": numbers.BATCH,
        "max_minibatch_size": numbers.BATCH,
        "update_epochs": 1,
        "replay_factor": 1.0,
        "prio_alpha": 0.0,
        "prio_beta0": 0.0,
        "optimizer": "adam",
        "learning_rate": numbers.LEARNING_RATE,
        "anneal_lr": False,
        "adam_beta1": 0.9,
        "adam_beta2": 0.999,
        "adam_eps": numbers.ADAM_EPS,
        "max_grad_norm": numbers.MAX_GRAD_NORM,
        "gamma": numbers.DISCOUNT,
        "gae_lambda": numbers.GAE_LAMBDA,
        "vtrace_rho_clip": 1.0,
        "vtrace_c_clip": 1.0,
        "clip_coef": numbers.CLIP,
        "vf_clip_coef": 0.2,
        "vf_coef": numbers.VALUE,
        "ent_coef": numbers.ENTROPY,
        "data_dir": tempfile.mkdtemp(dir="."),
        "checkpoint_interval": NEVER,
        "log_interval": NEVER,
    }


def main():
    name, seed, seconds = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
    case = CASES[name]
    share_cores()
    # One thread is faster where a product is small.
    torch.set_num_threads(CORES if case.has_frames else 1)
    library = torch.library.Library("pufferlib", "FRAGMENT")
    library.define(OPERATOR)
    library.impl("compute_puff_advantage", advantages, "CPU")
    pufferlib.pufferl._C_AVAILABLE, pufferlib.pufferl.ADVANTAGE_CUDA = True, False
    pufferlib.pufferl.PuffeRL.print_dashboard = lambda *_, **__: None
    module, _, factory = case.env.partition(":")

    def make(buf=None, seed=0):
        env = getattr(import_module(module), factory)("chw")
        return pufferlib.emulation.GymnasiumPufferEnv(env=env, buf=buf, seed=seed)

    envs = pufferlib.vector.make(make, backend=pufferlib.vector.Serial, num_envs=case.envs)
    network = Network(case)
    trainer = pufferlib.pufferl.PuffeRL(options_of(case, name, seed), envs, network)
    rows = []
    while not rows or rows[-1][0] - rows[0][0] <= seconds:
        trainer.evaluate()
        trainer.train()
        rows.append((time.monotonic(), trainer.global_step, None))
    parameters = sum(parameter.numel() for parameter in network.parameters())
    print(json.dumps({"parameters": parameters, "rows": rows}), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()

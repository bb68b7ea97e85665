"""Sample Factory's side of `benchmarks/actor_fast.py`: its sampler alone, without a learner. Prints a JSON line.

    python sample_factory_frames.py SLOTS SECONDS [--OPTION=VALUE ...]

`SyncSamplingAPI` is how Sample Factory samples without training: rollout workers step, an inference worker decides,
whole trajectories arrive in shared memory and are copied out. The policy is as large as ours: the same convolutions, a
dense layer and a GRU of 256.
"""

import json
import sys
import tempfile
import time

from sample_factory.algo.sampling.simplified_sampling_api import SyncSamplingAPI
from sample_factory.algo.utils.env_info import extract_env_info
from sample_factory.algo.utils.make_env import make_env_func_batched
from sample_factory.algo.utils.rl_utils import samples_per_trajectory
from sample_factory.cfg.arguments import parse_full_cfg, parse_sf_args
from sample_factory.envs.env_utils import register_env
from sample_factory.utils.attr_dict import AttrDict

from harness.acting_envs import Frames

WORKERS = 2
WARM_UP_S = 5.0
OPTIONS = """--env=frames --experiment=frames --device=cpu --serial_mode=False --async_rl=True --batched_sampling=False
--num_policies=1 --worker_num_splits=2 --rollout=64 --recurrence=64 --normalize_input=False --use_rnn=True
--rnn_type=gru --rnn_size=256 --encoder_conv_architecture=convnet_simple --encoder_conv_mlp_layers 256
--nonlinearity=relu --obs_scale=255.0 --batch_size=2048""".split()


def make(name, config, env_config, render_mode=None):
    return Frames("chw", render_mode)


def main() -> None:
    slots, seconds, *options = sys.argv[1:]
    register_env("frames", make)
    given = [*OPTIONS, f"--num_workers={WORKERS}", f"--num_envs_per_worker={int(slots) // WORKERS}", *options]
    given.append(f"--train_dir={tempfile.mkdtemp()}")
    parser, _ = parse_sf_args(given)
    config = parse_full_cfg(parser, given)
    env = make_env_func_batched(config, AttrDict(worker_index=0, vector_index=0, env_id=0))
    info = extract_env_info(env, config)
    env.close()
    sampler = SyncSamplingAPI(config, info)
    sampler.start()
    take(sampler, WARM_UP_S)
    print(json.dumps(take(sampler, float(seconds))), flush=True)
    sampler.stop()


def take(sampler, seconds: float) -> float:
    """Steps per second."""
    steps, began = 0, time.monotonic()
    while time.monotonic() - began < seconds:
        steps += samples_per_trajectory(sampler.get_trajectories_sync())
    return steps / (time.monotonic() - began)


if __name__ == "__main__":
    main()

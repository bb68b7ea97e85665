"""Sample Factory's side of `benchmarks/training.py`. Ends with a JSON line: parameters, and rows of training.

    python sample_factory_training.py CASE SEED SECONDS STEPS [--OPTION=VALUE ...]

It ends so many seconds or trained steps after its first iteration. A row is seconds, steps trained on, and the mean
return of the last episodes, or null.
"""

import json
import os
import sys
import tempfile
import time
from importlib import import_module

from sample_factory.algo.runners.runner import AlgoObserver
from sample_factory.cfg.arguments import parse_full_cfg, parse_sf_args
from sample_factory.envs.env_utils import register_env
from sample_factory.model.actor_critic import create_actor_critic
from sample_factory.train import make_runner

from harness import whole_cases as numbers
from harness.whole_cases import CASES, share_cores

WORKERS = 2
UNCLIPPED = 1e9


class Recorder(AlgoObserver):
    """Notes each iteration, and says when to end: `train_for_seconds` is ignored in this version."""

    def __init__(self, seconds, steps):
        self.seconds, self.steps, self.rows = seconds, steps, []

    def on_training_step(self, runner, training_iteration_since_resume):
        returns = runner.policy_avg_stats.get("reward", [[]])[0]
        mean = sum(map(float, returns)) / len(returns) if returns else None
        self.rows.append((time.monotonic(), sum(runner.env_steps.values()), mean))
        (began_s, *_), (now_s, steps, _) = self.rows[0], self.rows[-1]
        if now_s - began_s > self.seconds or steps >= self.steps:
            runner.cfg.train_for_env_steps = 1


def make(name, config, env_config, render_mode=None):
    module, _, factory = CASES[os.environ["CASE"]].env.partition(":")
    return getattr(import_module(module), factory)("chw", render_mode)


def options_of(case, seed):
    """The hyper-parameters of `harness/whole_ours.py`, as Sample Factory has them.

    Its processes have priorities of their own, the learner's the highest: that is the one this process was given.
    """
    options = f"""--env=whole --experiment=whole --device=cpu --serial_mode=False --async_rl=True --seed={seed}
    --batched_sampling=False --num_policies=1 --num_workers={WORKERS} --num_envs_per_worker={case.envs // WORKERS}
    --worker_num_splits=2 --rollout={numbers.ROLLOUT} --recurrence={numbers.ROLLOUT if case.gru else 1}
    --batch_size={numbers.BATCH} --num_batches_per_epoch={numbers.BATCHES} --num_epochs=1 --normalize_input=False
    --normalize_returns=True --use_rnn={bool(case.gru)} --rnn_type=gru --rnn_size={case.gru or case.hidden}
    --learning_rate={numbers.LEARNING_RATE} --adam_eps={numbers.ADAM_EPS} --max_grad_norm={numbers.MAX_GRAD_NORM}
    --gamma={numbers.DISCOUNT} --gae_lambda={numbers.GAE_LAMBDA} --ppo_clip_ratio={numbers.CLIP}
    --ppo_clip_value={UNCLIPPED} --exploration_loss_coeff={numbers.ENTROPY} --value_loss_coeff={numbers.VALUE}
    --env_frameskip=1 --default_niceness={os.nice(0)} --stats_avg={numbers.WINDOW} --save_every_sec={numbers.SAVE_S}
    --save_best_every_sec={numbers.SAVE_S} --train_dir={tempfile.mkdtemp(dir=".")}""".split()
    if case.has_frames:
        network = f"--nonlinearity=relu --obs_scale=255.0 --encoder_conv_mlp_layers {case.hidden}".split()
        return [*options, "--encoder_conv_architecture=convnet_simple", *network]
    return [*options, "--nonlinearity=tanh", "--encoder_mlp_layers", *[str(case.hidden)] * 2]


def main():
    name, seed, seconds, steps, *options = sys.argv[1:]
    os.environ["CASE"] = name
    share_cores()
    register_env("whole", make)
    given = [*options_of(CASES[name], seed), *options]
    parser, _ = parse_sf_args(given)
    config, runner = make_runner(parse_full_cfg(parser, given))
    recorder = Recorder(float(seconds), int(steps))
    runner.register_observer(recorder)
    runner.init()
    runner.run()
    policy = create_actor_critic(config, runner.env_info.obs_space, runner.env_info.action_space)
    parameters = sum(parameter.numel() for parameter in policy.parameters())
    print(json.dumps({"parameters": parameters, "rows": recorder.rows}))


if __name__ == "__main__":
    main()

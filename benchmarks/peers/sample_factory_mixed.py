"""Sample Factory's side of `benchmarks/mixed.py`. Ends with a JSON line of figures.

    python sample_factory_mixed.py SECONDS STEPS_PER_ITERATION

Two processes of four environments each, in two halves that are stepped in turn.
"""

import json
import sys
import tempfile
import time

import mixed_counts
from sample_factory.algo.learning.learner import Learner
from sample_factory.algo.runners.runner import AlgoObserver
from sample_factory.cfg.arguments import parse_full_cfg, parse_sf_args
from sample_factory.envs.env_utils import register_env
from sample_factory.train import make_runner

OPTIONS = """--env=mixed --experiment=mixed --device=cpu --serial_mode=False --async_rl=True --batched_sampling=False
--num_policies=1 --num_workers=2 --num_envs_per_worker=4 --worker_num_splits=2 --rollout=32 --recurrence=1
--batch_size=256 --num_epochs=2 --normalize_input=False --use_rnn=False --encoder_mlp_layers 64 64 --nonlinearity=relu
--learning_rate=0.001 --gamma=0.5 --env_frameskip=1""".split()
TRAINED = mixed_counts.Trained()
prepare = Learner._prepare_batch


def counted(self, batch):
    """Counts the valid steps of a batch. The process of the learner imports this file, too."""
    buffer, *rest = prepare(self, batch)
    valid = buffer["valids"].bool().flatten()
    slow = buffer["normalized_obs"]["obs"][:, 1][valid] > 0
    TRAINED.add(slow.tolist(), buffer["rewards"].flatten()[valid].tolist())
    return (buffer, *rest)


Learner._prepare_batch = counted


class Clock(AlgoObserver):
    """Ends the run."""

    def __init__(self, seconds):
        self.seconds, self.began = seconds, None

    def on_training_step(self, runner, training_iteration_since_resume):
        self.began = self.began or time.monotonic()
        if time.monotonic() - self.began > self.seconds:
            runner.cfg.train_for_env_steps = 1


def make(name, config, env_config, render_mode=None):
    env = mixed_counts.Counted()
    env.render_mode = render_mode
    return env


def main():
    seconds, steps = float(sys.argv[1]), int(sys.argv[2])
    register_env("mixed", make)
    given = [*OPTIONS, f"--num_batches_per_epoch={steps // 256}", f"--train_dir={tempfile.mkdtemp()}"]
    parser, _ = parse_sf_args(given)
    _, runner = make_runner(parse_full_cfg(parser, given))
    clock = Clock(seconds)
    runner.register_observer(clock)
    runner.init()
    began = time.monotonic()
    runner.run()
    print(json.dumps(mixed_counts.summary(time.monotonic() - began)), flush=True)


if __name__ == "__main__":
    main()

"""Sample Factory's side of `benchmarks/faulty_peers.py`. Prints trained steps.

python sample_factory_mortal.py SECONDS
"""

import sys
import tempfile
import time
from pathlib import Path

from sample_factory.algo.runners.runner import AlgoObserver
from sample_factory.cfg.arguments import parse_full_cfg, parse_sf_args
from sample_factory.envs.env_utils import register_env
from sample_factory.train import make_runner

sys.path.append(str(Path(__file__).parents[1] / "harness"))

import mortal_run

OPTIONS = """--env=mortal --experiment=mortal --device=cpu --serial_mode=False --async_rl=True --batched_sampling=False
--num_policies=1 --num_workers=16 --num_envs_per_worker=2 --worker_num_splits=2 --rollout=32 --recurrence=1
--batch_size=256 --num_batches_per_epoch=4 --num_epochs=2 --normalize_input=False --use_rnn=False
--encoder_mlp_layers 64 64 --env_frameskip=1""".split()


class Clock(AlgoObserver):
    """Ends the run."""

    def __init__(self, seconds):
        self.ends_at, self.trained = time.monotonic() + seconds, 0

    def on_training_step(self, runner, training_iteration_since_resume):
        self.trained = sum(runner.env_steps.values())
        if time.monotonic() > self.ends_at:
            runner.cfg.train_for_env_steps = 1


def make(name, config, env_config, render_mode=None):
    return mortal_run.Mortal(render_mode)


def main():
    register_env("mortal", make)
    given = [*OPTIONS, f"--train_dir={tempfile.mkdtemp()}"]
    parser, _ = parse_sf_args(given)
    _, runner = make_runner(parse_full_cfg(parser, given))
    clock = Clock(float(sys.argv[1]))
    runner.register_observer(clock)
    runner.init()
    runner.run()
    print(float(clock.trained), flush=True)


if __name__ == "__main__":
    main()

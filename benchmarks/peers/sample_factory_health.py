"""Sample Factory's side of `benchmarks/health_gathering.py`: its own example's settings, on our environment.

    python sample_factory_health.py SEED STEPS DIR

They are those of `sf_examples/vizdoom`: a frame of 72 x 128, a GRU of 512, one epoch, a rate of 1e-4. Writes
`DIR/rows.json`, of every iteration: seconds since the first one, steps trained on, and the mean return of the last 100
episodes, or null.
"""

import json
import sys
import time
from pathlib import Path

from sample_factory.algo.runners.runner import AlgoObserver
from sample_factory.algo.utils.misc import ExperimentStatus
from sample_factory.cfg.arguments import parse_full_cfg, parse_sf_args
from sample_factory.envs.env_utils import register_env
from sample_factory.envs.env_wrappers import PixelFormatChwWrapper, ResizeWrapper
from sample_factory.train import make_runner
from sf_examples.vizdoom.doom.doom_params import add_doom_env_args, doom_override_defaults
from worlds import health_gathering

WORKERS, ENVS = 2, 32


class Recorder(AlgoObserver):
    """Notes each iteration."""

    def __init__(self):
        self.rows = []

    def on_training_step(self, runner, training_iteration_since_resume):
        returns = runner.policy_avg_stats.get("reward", [[]])[0]
        mean = sum(map(float, returns)) / len(returns) if returns else None
        self.rows.append((time.monotonic(), sum(runner.env_steps.values()), mean))


def make(name, config, env_config, render_mode=None):
    return PixelFormatChwWrapper(ResizeWrapper(health_gathering(), config.res_w, config.res_h, grayscale=False))


def main():
    seed, steps, directory = sys.argv[1:]
    register_env("health", make)
    given = f"""--env=health --experiment=health --device=cpu --seed={seed} --train_for_env_steps={steps}
    --num_workers={WORKERS} --num_envs_per_worker={ENVS // WORKERS} --restart_behavior=overwrite""".split()
    given.append(f"--train_dir={directory}")
    parser, _ = parse_sf_args(given)
    add_doom_env_args(parser)
    doom_override_defaults(parser)
    parser.set_defaults(env_frameskip=1)  # The environment's own step is four ticks.
    _, runner = make_runner(parse_full_cfg(parser, given))
    recorder = Recorder()
    runner.register_observer(recorder)
    if (runner.init(), runner.run()) != (ExperimentStatus.SUCCESS, ExperimentStatus.SUCCESS):
        sys.exit("Sample Factory has not trained to the end")
    began_s = recorder.rows[0][0]
    rows = [(at_s - began_s, steps, mean) for at_s, steps, mean in recorder.rows]
    (Path(directory) / "rows.json").write_text(json.dumps(rows))


if __name__ == "__main__":
    main()

"""What changes over a run: learning rate, clip range, the pull towards the reference; and when the run ends."""

from dataclasses import dataclass

from minefleet.checkpoint import CheckpointState
from minefleet.config import FleetConfig, TrainConfig
from minefleet_learner.episodes import EpisodeStatistics

FEWEST_EPISODES = 20
"""Episodes without which `stop.episode_return` is not judged."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Rates:
    """The numbers of one iteration."""

    learning_rate: float
    clip: float
    rho: float
    """Weight of KL(current ‖ reference)."""
    warming_up: bool
    """Only the value head is trained."""


def progress(config: FleetConfig, iteration: int, env_steps: int) -> float:
    """Share of the run that is over, in [0, 1]: by iterations or by environment steps, whichever is further."""
    by_iterations = iteration / config.train_config.num_iterations
    by_steps = env_steps / config.stop.env_steps if config.stop.env_steps else 0.0
    return min(max(by_iterations, by_steps), 1.0)


def rates(config: TrainConfig, iteration: int, share: float) -> Rates:
    """The numbers of iteration 0, 1, ... when `share` of the run is over."""
    return Rates(
        learning_rate=config.learning_rate * (1 - share if config.anneal_lr_linearly else 1),
        clip=config.ppo_clip * (1 - share if config.anneal_clip_linearly else 1),
        rho=config.kl_divergence_coef_rho * config.coef_rho_decay**iteration,
        warming_up=iteration < config.vf_warmup,
    )


def stop_reason(config: FleetConfig, state: CheckpointState, episodes: EpisodeStatistics, launch_s: float) -> str:
    """Names the condition that ends the run, or "" while it goes on.

    Args:
        config: The conditions.
        state: Where training stands.
        episodes: Of the training; at least `FEWEST_EPISODES` are needed to judge the return.
        launch_s: Seconds since this launch.
    """
    stop = config.stop
    mean = episodes.return_mean if episodes.total.finished >= FEWEST_EPISODES else None
    if stop.episode_return is not None and mean is not None and mean >= stop.episode_return:
        return "episode_return"
    if stop.env_steps and state.env_steps >= stop.env_steps:
        return "env_steps"
    if stop.minutes and launch_s >= 60 * stop.minutes:
        return "minutes"
    if state.iteration >= config.train_config.num_iterations:
        return "num_iterations"
    return ""

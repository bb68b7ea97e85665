"""Schedules over a run: step size, clip range, entropy bonus, and the pull towards the reference."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from minefleet.config import FleetConfig, TrainConfig


@dataclass(frozen=True, kw_only=True, slots=True)
class Rates:
    """The numbers of one iteration."""

    learning_rate: float
    clip: float
    rho: float
    """Weight of KL(current ‖ reference)."""
    entropy: float
    """Weight of the entropy bonus."""
    warming_up: bool
    """Only the value head is trained."""
    renews_reference: bool
    """The reference becomes the policy, before anything else."""


def progress(config: FleetConfig, iteration: int, env_steps: int) -> float:
    """Share of the run that is over, in [0, 1]: by iterations or by environment steps, whichever is further."""
    by_iterations = iteration / config.train_config.num_iterations
    by_steps = env_steps / config.stop.env_steps if config.stop.env_steps else 0.0
    return min(max(by_iterations, by_steps), 1.0)


def rates(config: TrainConfig, iteration: int, share: float) -> Rates:
    """The numbers of iteration 0, 1, ... when `share` of the run is over."""
    return Rates(
        learning_rate=config.learning_rate
        * (1 - share if config.anneal_lr_linearly else 1)
        * factor(config.learning_rate_schedule, share),
        clip=config.ppo_clip * (1 - share if config.anneal_clip_linearly else 1),
        rho=config.kl_divergence_coef_rho * config.coef_rho_decay**iteration,
        entropy=config.entropy_bonus_coef * factor(config.entropy_schedule, share),
        warming_up=iteration < config.vf_warmup,
        renews_reference=config.enable_ref_update and iteration > 0 and iteration % config.ref_update_interval == 0,
    )


def factor(points: Sequence[Sequence[float]], share: float) -> float:
    """The height at `share` of the line through points [share, height], level outside them; 1 without points."""
    if not points:
        return 1.0
    shares, heights = zip(*points, strict=True)
    return float(np.interp(share, shares, heights))

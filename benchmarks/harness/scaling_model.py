"""Predicts the steps per second of a whole run from processor times. The lowest of these limits decides:

    the actors   each plays in one thread, in turns with its environments where all of them share a process
    the learner  trains in one thread
    replay       one process on one core
    all cores    the time that all processes use for a step, shared by the cores

It knows no waiting and no contention: more actors on the same cores cost nothing in it.
"""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Costs:
    """Processor times in microseconds."""

    decision: float
    """An actor's time for one decision, whatever the number of environments."""
    step: float
    """An actor's time for one step, in addition."""
    environments: float
    """The environments' time for one step."""
    learner: float
    """The learner's time for one step."""
    replay: float
    """Replay's time for one step."""
    rest: float
    """The other processes' time for one step."""

    def actor(self, envs: int) -> float:
        """An actor's time per step, where each decision is for so many environments."""
        return self.decision / envs + self.step


def fit_actor(few: tuple[int, float], many: tuple[int, float]) -> tuple[float, float]:
    """The time of a decision, and the time of a step in addition.

    Args:
        few: A number of environments, and an actor's microseconds per step.
        many: The same of more environments.
    """
    (fewer, few_us), (more, many_us) = few, many
    decision = (few_us - many_us) / (1 / fewer - 1 / more)
    return decision, few_us - decision / fewer


def predict(costs: Costs, *, envs: int, actors: int, cores: int) -> tuple[float, str]:
    """Steps per second, and the limit that decides.

    Args:
        costs: Processor times.
        envs: Environments of each actor, in one process.
        actors: Number of actors.
        cores: Cores of the machine.
    """
    playing = costs.actor(envs) + costs.environments
    limits = {
        "the actors": actors / playing,
        "the learner": 1 / costs.learner,
        "replay": 1 / costs.replay,
        "all cores": cores / (playing + costs.learner + costs.replay + costs.rest),
    }
    limit = min(limits, key=limits.__getitem__)
    return limits[limit] * 1e6, limit

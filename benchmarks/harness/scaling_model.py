"""A model of a whole run's throughput: what limits it is one core of each actor, the learner, or all cores together.

Each step costs processor time: the actor's, which is that of a decision shared by its environments and that of the step
itself; the learner's; and that of everybody else (environments, replay, parameters, the launcher). An actor and the
learner have one busy thread each, so neither uses more than one core.
"""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Costs:
    """Processor time in microseconds."""

    decision: float
    """Of an actor for a decision, however many environments it is for."""
    step: float
    """Of an actor for each step of a decision."""
    learner: float
    """Per step."""
    others: float
    """Per step, of all other processes."""

    def actor(self, envs: float) -> float:
        """Time of an actor per step, if a decision is for so many environments."""
        return self.decision / envs + self.step


def fit(few: tuple[int, float], many: tuple[int, float], *, learner: float, others: float) -> Costs:
    """Costs from an actor's microseconds per step at two numbers of environments.

    Args:
        few: The smaller number of environments, and the time.
        many: The larger one, and the time.
        learner: Its microseconds per step.
        others: Those of everybody else.
    """
    (fewer, few_us), (more, many_us) = few, many
    decision = (few_us - many_us) / (1 / fewer - 1 / more)
    return Costs(decision=decision, step=few_us - decision / fewer, learner=learner, others=others)


def predict(costs: Costs, *, envs: int, actors: int, cores: int) -> tuple[float, str]:
    """Steps per second, and what limits them.

    Args:
        costs: Fitted before.
        envs: Environments of each actor.
        actors: Their number.
        cores: That all share.
    """
    each = costs.actor(envs)
    limits = {
        "the actors": actors / each,
        "the learner": 1 / costs.learner,
        "all cores": cores / (each + costs.learner + costs.others),
    }
    limit = min(limits, key=limits.__getitem__)
    return limits[limit] * 1e6, limit

"""Training: whether the run learns, and whether its updates are healthy."""

from deploy.grafana.panels import Curve, Page, Panel, chart, figure
from deploy.grafana.queries import chosen, counted, largest, rate


def page() -> Page:
    """The dashboard."""
    return Page(
        uid="minefleet-training",
        title="minefleet / Training",
        text="Whether the run learns, and whether its updates are healthy. Numbers are those of metrics.jsonl.",
        metric="minefleet_build_info",
        rows=[
            ("Does it learn?", learns()),
            ("Is the update healthy?", update()),
            ("Is the data fresh enough?", data()),
            ("Do actors and learner compute alike?", parity()),
            ("What would a crash cost?", crash()),
        ],
    )


def learner(name: str, legend: str = "") -> Curve:
    """A number of the learner, of which a run has one."""
    return largest(f"minefleet_learner_{name}"), legend


def learns() -> list[Panel]:
    """Returns, and how far the run is."""
    return [
        figure("Return", "Mean return of the last training episodes.", learner("episode_return_mean")[0]),
        figure("Iteration", "Iterations done.", learner("iteration")[0], unit="none"),
        figure("Environment steps", "All steps that actors took.", learner("env_steps")[0]),
        figure("Trained steps", "Unique steps that reached an update.", learner("trained_steps")[0]),
        figure("Episodes", "Finished training episodes.", learner("episodes")[0]),
        figure("Speed", "Environment steps per second, over the last iterations.", learner("sps")[0], unit="cps"),
        chart(
            "Return of episodes",
            "Of the last training episodes. `without failures` estimates what the mean would be if no failure cut an "
            "episode; `evaluation` is of the newest evaluated version, acting greedily.",
            learner("episode_return_mean", "mean"),
            learner("episode_return_uncut_mean", "without failures"),
            learner("episode_discounted_return_mean", "discounted"),
            learner("eval_return_mean", "evaluation"),
            span=12,
            bounds=(None, None),
        ),
        chart(
            "Length of episodes", "Steps, mean of the last training episodes.", learner("episode_length_mean"), span=6
        ),
        chart(
            "Episodes that a failure cut",
            "Share of the last training episodes. Failures bias the mean return.",
            learner("episode_cut_share"),
            unit="percentunit",
            span=6,
            steps={0.1: "orange"},
        ),
    ]


def update() -> list[Panel]:
    """What PPO does."""
    return [
        chart(
            "Losses",
            "The clipped surrogate, before its weight, and half the mean squared error of the value, in normalised "
            "units.",
            learner("policy_loss", "policy"),
            learner("value_loss", "value"),
            bounds=(None, None),
        ),
        chart(
            "KL",
            "Nats. `behaviour` is the mean KL of the policy that acted from the current one: above 0.05, updates are "
            "large. `reference` is the KL of the current policy from the reference.",
            learner("approx_kl", "behaviour"),
            learner("reference_kl", "reference"),
            bounds=(None, None),
            steps={0.05: "orange"},
        ),
        chart(
            "Clipped steps",
            "Share of steps whose ratio left the clip range. Above 0.3, most of the batch teaches nothing more.",
            learner("clip_fraction"),
            unit="percentunit",
            steps={0.3: "orange"},
        ),
        chart(
            "Entropy",
            "Nats, mean over steps; parts of an action that have names, each on its own. Near 0 the policy has stopped "
            "exploring.",
            learner("entropy", "all"),
            (largest("minefleet_learner_head_entropy", "head"), "{{head}}"),
            bounds=(None, None),
        ),
        chart(
            "Explained variance",
            "Of the values before the update. 1 is perfect; below 0 the values are worse than their mean.",
            learner("explained_variance"),
            bounds=(-1, 1),
        ),
        chart("Gradient norm", "Before clipping.", learner("grad_norm")),
        chart(
            "Values and advantages",
            "In reward units: the mean value, and the standard deviation of the advantages.",
            learner("value_mean", "mean value"),
            learner("advantage_std", "advantages"),
            bounds=(None, None),
        ),
        chart(
            "Schedules",
            "The step size, and the weight of the pull towards the reference.",
            learner("learning_rate", "learning rate"),
            learner("rho", "rho"),
        ),
        chart(
            "Steps that are not finite",
            "Optimizer steps left out in the last five minutes. Any is a fault of data, weights or dtype.",
            (counted("minefleet_learner_skipped_steps_total", "5m"), ""),
            unit="none",
            steps={1: "red"},
        ),
    ]


def data() -> list[Panel]:
    """How old and how much used the data is."""
    return [
        chart(
            "Staleness",
            "Versions between the oldest step of a chunk and its use, and their bound.",
            learner("staleness_mean", "mean"),
            learner("staleness_max", "max"),
            (largest("minefleet_replay_max_staleness_versions"), "max_staleness"),
            unit="none",
        ),
        chart(
            "Reuse",
            "Times that the last iteration's chunks have been trained on, this one included, and their bound.",
            learner("reuse_mean", "mean"),
            (largest("minefleet_replay_max_reuse_uses"), "max_reuse"),
            unit="none",
        ),
        chart(
            "Effective sample size",
            "Share of the steps that would be as good an estimate without importance weights. 1 is on-policy.",
            learner("effective_sample_size"),
            unit="percentunit",
            bounds=(0, 1),
        ),
        chart(
            "Importance weights",
            "Of the policy before the update against the behaviour policy, and the largest ratio that the update came "
            "to, either way.",
            learner("importance_weight_mean", "mean weight"),
            learner("importance_weight_max", "largest weight"),
            learner("ratio_max", "largest ratio"),
            logarithmic=True,
            span=24,
        ),
    ]


def parity() -> list[Panel]:
    """The parity probe."""
    return [
        chart(
            "Largest difference",
            "Between what actors recorded and what the same weights say here: ln π, and V in normalised units. Beyond "
            "the bound the run stops.",
            learner("parity_logp", "ln π"),
            learner("parity_value", "V"),
            learner("parity_bound", "bound"),
            logarithmic=True,
            span=12,
        ),
        chart("Steps compared", "Per second.", (rate("minefleet_learner_parity_steps_total"), ""), unit="cps", span=6),
        chart(
            "Iterations without a comparison",
            "In a row. At ten, actors record versions that the learner no longer remembers.",
            learner("parity_unprobed"),
            unit="none",
            span=6,
            steps={10: "red"},
        ),
    ]


def crash() -> list[Panel]:
    """What is not saved yet, and what saving costs."""
    saved_at = f"max({chosen('minefleet_learner_checkpoint_timestamp_seconds')} > 0)"
    return [
        chart(
            "Age of the last checkpoint",
            "A crash of the learner abandons what it trained since.",
            (f"time() - {saved_at}", ""),
            unit="s",
            span=12,
            steps={3600: "orange"},
        ),
        chart(
            "Time that a publish takes from the training",
            "For which the loop stood still in the last iteration.",
            learner("publish_blocked_seconds"),
            unit="s",
            span=12,
        ),
    ]

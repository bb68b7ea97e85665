"""Prometheus metrics of the learner."""

import math
import time
from collections.abc import Mapping
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge

GAUGES = {
    "iteration": "Iterations done.",
    "policy_version": "Newest version published.",
    "env_steps": "Environment steps taken by the actors, as replay reports them.",
    "trained_steps": "Unique steps that reached an update.",
    "episodes": "Finished training episodes.",
    "episode_return_mean": "Mean return of the last training episodes.",
    "episode_discounted_return_mean": "Mean discounted return of the last training episodes.",
    "episode_length_mean": "Mean length of the last training episodes, in steps.",
    "episode_failures": "Training episodes that a failure ended, in total.",
    "episode_cut_share": "Share of the last training episodes that a failure cut.",
    "episode_return_uncut_mean": "Estimate of what the mean return would be without failures.",
    "canary_return_mean": "Mean return of the last episodes of canary slots, which act by the newest version.",
    "promoted_return_mean": "Mean return of the last episodes of the other slots, which act by the promoted version.",
    "eval_return_mean": "Mean return of the evaluation of the newest evaluated version.",
    "sps": "Environment steps per second, over the last iterations.",
    "staleness_mean": "Mean staleness of the last iteration's fragments, in versions.",
    "staleness_max": "Largest staleness of the last iteration's fragments, in versions.",
    "reuse_mean": "Mean use of the last iteration's chunks, this one included.",
    "policy_loss": "Clipped surrogate, before its weight.",
    "value_loss": "Half the mean squared error of the value, in normalised units.",
    "entropy": "Mean entropy of the policy, in nats.",
    "approx_kl": "Mean KL of the behaviour policy from the current one, in nats.",
    "reference_kl": "Mean KL of the current policy from the reference, in nats.",
    "clip_fraction": "Share of steps whose importance ratio left the clip range.",
    "explained_variance": "Of the values before the update.",
    "grad_norm": "Gradient norm before clipping.",
    "ratio_max": "Largest ratio to the policy that the clip range is around, or inverse of one.",
    "importance_weight_mean": "Mean importance weight of the policy before the update, against the behaviour policy.",
    "importance_weight_max": "Largest of these weights.",
    "effective_sample_size": "Share of the steps that as good an estimate would need without these weights.",
    "advantage_std": "Standard deviation of the advantages, in reward units.",
    "value_mean": "Mean value, in reward units.",
    "learning_rate": "Step size.",
    "rho": "Weight of the pull towards the reference.",
    "wait_ratio": "Share of the last iteration spent waiting for fragments.",
    "publish_blocked_seconds": "Time that the loop stood still in the last iteration for a publish.",
    "parity_logp": "Largest difference between a recorded and a recomputed log-probability.",
    "parity_value": "Largest difference between a recorded and a recomputed value, in normalised units.",
    "snapshot_lag": "Iterations since the newest snapshot in upload_config.target.",
    "parity_unprobed": "Iterations in a row in which nothing could be compared.",
}


ROW_KEYS = {"wait_ratio": "learner_wait_ratio", "publish_blocked_seconds": "publish_blocked_s"}
"""Their names in `metrics.jsonl`, where those differ."""


class LearnerMetrics:
    """The gauges above, NaN until there is a number, one per named part of an action, and the counters."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._gauges = {
            name: Gauge(f"minefleet_learner_{name}", text, registry=registry) for name, text in GAUGES.items()
        }
        for gauge in self._gauges.values():
            gauge.set(math.nan)
        self.parity_bound = Gauge(
            "minefleet_learner_parity_bound",
            "Difference beyond which the parity probe ends the run.",
            registry=registry,
        )
        self._saved_at = Gauge(
            "minefleet_learner_checkpoint_timestamp_seconds",
            "When the last checkpoint of this process was written; 0 before.",
            registry=registry,
        )
        self._head_entropy = Gauge(
            "minefleet_learner_head_entropy",
            "Mean entropy of a named part of the action, in nats.",
            ["head"],
            registry=registry,
        )
        self._task_share = Gauge(
            "minefleet_learner_task_share",
            "Share of a task in the steps of the last iterations: of those played, and of those trained on.",
            ["task", "of"],
            registry=registry,
        )
        self._too_slow = Gauge(
            "minefleet_learner_task_too_slow_streams",
            "Environments of a task that are too slow for anything that they play to be used.",
            ["task"],
            registry=registry,
        )
        self._skipped = Counter(
            "minefleet_learner_skipped_steps", "Optimizer steps left out as not finite.", registry=registry
        )
        self._probed = Counter(
            "minefleet_learner_parity_steps", "Steps compared by the parity probe.", registry=registry
        )

    def observe(self, row: Mapping[str, Any], *, skipped_steps: int) -> None:
        """Sets the numbers of an iteration; those it lacks keep their value."""
        for name, gauge in self._gauges.items():
            number = row.get(ROW_KEYS.get(name, name))
            if number is not None:
                gauge.set(number)
        for head, entropy in row.get("head_entropy", {}).items():
            self._head_entropy.labels(head).set(entropy)
        for task, share in row.get("step_shares", {}).items():
            for what in ("played", "trained"):
                self._task_share.labels(task, what).set(share[f"{what}_share"])
            self._too_slow.labels(task).set(share["too_slow"])
        self._skipped.inc(skipped_steps)
        self._probed.inc(row.get("parity_steps") or 0)

    def saved(self) -> None:
        """A checkpoint was written just now."""
        self._saved_at.set(time.time())

"""Recognises that a policy has collapsed: by its update, and by the episodes of canary slots.

    KL         of two updates in a row above `KL_RATIO` times the usual one, and above `LEAST_KL`
    entropy    of two, below `ENTROPY_SHARE` of the median of the last `LEAST`, and lower by `LEAST_FALL`
    parity     beyond its bound
    return     of three quarters of the last `RECENT` episodes of canary slots below that of nine tenths of the last
               `KEPT` of other slots, and of canary slots before; and in the median by more than half of theirs

Usual is the median of the last `KEPT` updates, once there are `LEAST`. The rules compare a run with itself, so that
they hold for rewards and policies of any scale; they let go a collapse rather than stop a healthy run.
"""

import math
from collections import deque
from collections.abc import Mapping, Sequence
from statistics import median, quantiles

from minefleet.v1 import episode_pb2
from minefleet_learner.diagnostics.parity import Parity
from minefleet_learner.metrics.episode_window import mean
from minefleet_learner.training.update_report import UpdateReport

KL_RATIO, LEAST_KL = 10.0, 0.15
ENTROPY_SHARE, LEAST_FALL = 0.05, 0.3
"""KL and entropy are in nats."""
KEPT, LEAST, RECENT = 100, 20, 12
KINDS = ("kl", "entropy", "canary", "other", "suspect")
"""The last is not empty where the last update had a sign."""


class CollapseDetector:
    """The last updates and episodes of a run, the newest last."""

    def __init__(self, data: Mapping[str, Sequence[float]]) -> None:
        """Starts afresh, or goes on from what `to_dict` returned."""
        self._kept = {kind: deque(data.get(kind, ()), KEPT) for kind in KINDS}

    def add(self, record: episode_pb2.EpisodeRecord) -> None:
        """Records an episode that no failure cut."""
        self._kept["canary" if record.canary else "other"].append(record.episode_return)

    def judge(self, report: UpdateReport, parity: Parity) -> str:
        """The sign of a collapse after an update; "" where there is none. Updates without a sign are the usual ones."""
        was_suspect, of_update = bool(self._kept["suspect"]), self._sign_of_update(report)
        self._kept["suspect"] = deque([1.0] * bool(of_update))
        if not of_update and math.isfinite(report.approx_kl) and math.isfinite(report.entropy):
            self._kept["kl"].append(report.approx_kl)
            self._kept["entropy"].append(report.entropy)
        return parity.fault or (of_update if was_suspect else "") or self._sign_of_episodes()

    def forget(self) -> None:
        """Takes what comes from now on as usual; episodes of other slots stay what they were."""
        for kind in ("kl", "entropy", "canary"):
            self._kept[kind].clear()

    def summary(self) -> dict[str, float | None]:
        """Mean returns for a line of metrics."""
        return {"canary_return_mean": mean(self._kept["canary"]), "promoted_return_mean": mean(self._kept["other"])}

    def to_dict(self) -> dict[str, list[float]]:
        """Plain data for the checkpoint."""
        return {kind: list(values) for kind, values in self._kept.items()}

    def _sign_of_update(self, report: UpdateReport) -> str:
        if len(self._kept["kl"]) < LEAST:
            return ""
        kl, entropy = median(self._kept["kl"]), median([*self._kept["entropy"]][-LEAST:])
        if report.approx_kl > max(KL_RATIO * kl, LEAST_KL):
            return f"updates have a KL of {report.approx_kl:.3g}, where {kl:.3g} was usual"
        if report.entropy < min(ENTROPY_SHARE * entropy, entropy - LEAST_FALL):
            return f"the entropy fell to {report.entropy:.3g}, from {entropy:.3g}"
        return ""

    def _sign_of_episodes(self) -> str:
        canary = list(self._kept["canary"])
        recent, before = canary[-RECENT:], canary[:-RECENT]
        if len(recent) == RECENT and all(_fell(recent, usual) for usual in (self._kept["other"], before)):
            return f"canary slots have a return of {median(recent):.3g}, others of {median(self._kept['other']):.3g}"
        return ""


def _fell(recent: Sequence[float], usual: Sequence[float]) -> bool:
    """Whether returns are lower than they were, and not by chance."""
    if len(usual) < LEAST:
        return False
    most, fewest, middle = quantiles(recent, n=4)[-1], quantiles(usual, n=10)[0], median(usual)
    return most < fewest and median(recent) < middle - abs(middle) / 2

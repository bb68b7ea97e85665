"""Collapses that are planted are recognised, and nothing in healthy runs is taken for one."""

import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from minefleet.v1 import episode_pb2
from minefleet_learner.diagnostics.parity import Parity
from minefleet_learner.metrics.collapse import LEAST, RECENT, CollapseDetector
from minefleet_learner.training.update_report import UpdateReport

HEALTHY = json.loads((Path(__file__).parent / "healthy_runs.json").read_text())
"""Rows of whole runs of presets with a quarter of canary slots: KL, entropy, and the episodes that
were read after each, as slot and return."""
EPISODES = 400
Draw = Callable[[np.random.Generator], float]


def judge(detector: CollapseDetector, kl: float = 0.02, entropy: float = 0.6, **parity: Any) -> str:
    return detector.judge(UpdateReport(approx_kl=kl, entropy=entropy), Parity(**parity))


def play(detector: CollapseDetector, episode_return: float, *, canary: bool) -> None:
    detector.add(episode_pb2.EpisodeRecord(episode_return=episode_return, canary=canary))


def experienced(updates: int = LEAST, **usual: float) -> CollapseDetector:
    detector, rng = CollapseDetector({}), np.random.default_rng(0)
    for _ in range(updates):
        assert judge(detector, **{name: value * rng.uniform(0.5, 1.5) for name, value in usual.items()}) == ""
    return detector


@pytest.mark.parametrize(("kl", "sign"), [(1.0, "KL of 1"), (0.2, ""), (0.14, "")], ids=["far", "near", "small"])
def test_kl_far_beyond_the_usual_one_in_two_updates_is_a_collapse(kl: float, sign: str) -> None:
    detector = experienced(kl=0.001 if kl < 0.15 else 0.03)
    assert judge(detector, kl=kl) == ""
    assert sign in judge(detector, kl=kl)
    assert bool(judge(detector, kl=kl)) == bool(sign), "what has a sign does not become usual"


def test_a_single_update_with_a_large_kl_is_no_collapse() -> None:
    detector = experienced(kl=0.02)
    for kl in (2.0, 0.02, 2.0, 0.02):
        assert judge(detector, kl=kl) == ""


def test_entropy_that_falls_to_almost_nothing_at_once_is_a_collapse() -> None:
    detector = experienced(entropy=0.6)
    assert judge(detector, entropy=0.01) == ""
    assert "the entropy fell to 0.01" in judge(detector, entropy=0.01)


@pytest.mark.parametrize(
    "entropies",
    [np.geomspace(1.4, 1e-3, 200), np.linspace(2.0, -3.0, 300), np.linspace(-1.0, -9.0, 300), np.full(100, math.nan)],
    ids=["a solved task", "a Gaussian that narrows", "a narrow one", "updates that were left out"],
)
def test_entropy_that_falls_slowly_is_no_collapse(entropies: np.ndarray[Any, Any]) -> None:
    detector = CollapseDetector({})
    assert {judge(detector, entropy=float(entropy)) for entropy in entropies} == {""}


def test_parity_beyond_its_bound_is_a_collapse_at_once() -> None:
    assert judge(CollapseDetector({}), fault="they differ") == "they differ"


DRAWS: dict[str, Draw] = {
    "normal": lambda rng: rng.normal(10, 5),
    "around 0": lambda rng: rng.normal(0, 1),
    "solved": lambda rng: 500.0 if rng.random() < 0.9 else rng.uniform(9, 500),
    "rare success": lambda rng: float(rng.random() < 0.05),
    "heavy tail": lambda rng: rng.pareto(1.0),
    "costs": lambda rng: -rng.gamma(2.0, 100.0),
}


@pytest.mark.parametrize("kind", DRAWS)
@pytest.mark.parametrize("ease", [1.0, 0.2], ids=["alike", "harder for canaries"])
def test_canaries_that_play_as_before_are_no_collapse_whatever_returns_are_like(kind: str, ease: float) -> None:
    for seed in range(20):
        detector, rng = CollapseDetector({}), np.random.default_rng(seed)
        for number in range(EPISODES):
            canary = number % 4 == 0
            play(detector, DRAWS[kind](rng) * (ease if canary else 1.0), canary=canary)
            assert judge(detector) == ""


@pytest.mark.parametrize("kind", ["normal", "solved", "heavy tail", "costs"])
def test_canaries_whose_returns_fall_are_a_collapse_soon(kind: str) -> None:
    detector, rng = CollapseDetector({}), np.random.default_rng(1)
    for number in range(EPISODES):
        play(detector, DRAWS[kind](rng), canary=number % 4 == 0)
    worst = -2000.0 if kind == "costs" else -0.1
    signs = []
    for _ in range(RECENT):
        play(detector, worst, canary=True)
        signs.append(judge(detector))
    assert "canary slots have a return of" in signs[-1]
    assert signs[0] == ""
    detector.forget()
    assert judge(detector) == "", "somebody wants to go on"


@pytest.mark.parametrize("name", HEALTHY)
def test_healthy_runs_have_no_collapse_whichever_slots_are_canaries(name: str) -> None:
    slots = {slot for _, _, episodes in HEALTHY[name] for slot, _ in episodes}
    for first in sorted(slots)[: len(slots) // 2]:
        chosen = {first, first + len(slots) // 2}
        assert list(signs_of(HEALTHY[name], chosen)) == []


@pytest.mark.parametrize("name", HEALTHY)
def test_a_learner_that_starts_again_judges_as_before(name: str) -> None:
    run = HEALTHY[name]
    for at in (30, len(run) // 2):
        collapsing = [*run[:at], *[[10.0, 0.0, []]] * 3]
        whole = list(signs_of(collapsing, {0, 4}))
        assert len(whole) == 2
        for restart_at in (at, at + 1, at + 2):
            assert whole == list(signs_of(collapsing, {0, 4}, restart_at=restart_at))


def signs_of(run: list[Any], canaries: set[int], restart_at: int = 0) -> Iterator[str]:
    detector = CollapseDetector({})
    for number, (kl, entropy, episodes) in enumerate(run):
        if number == restart_at:
            detector = CollapseDetector(json.loads(json.dumps(detector.to_dict())))
        if sign := judge(detector, kl=kl, entropy=entropy):
            yield sign
        for slot, episode_return in episodes:
            play(detector, episode_return, canary=slot in canaries)

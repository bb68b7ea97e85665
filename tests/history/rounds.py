"""Strikes at a fleet at random moments, and a verdict over the histories."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

from tests.history.checks import faults
from tests.history.fleet import RULES, STRIKES, Strike, running
from tests.history.history import History
from tests.history.record import Recorder, read_calls
from tests.history.survey import Survey, survey

SHOWN = 20


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a run of rounds came to."""

    faults: list[str]
    figures: dict[str, int]
    story: str
    """Where to look, and how to do it again."""


def deck(rounds: int, rng: Random) -> list[Strike]:
    """So many strikes in a random order, each as often as it shall come up."""
    once = [strike for strike, times in STRIKES.items() for _ in range(times)]
    strikes: list[Strike] = []
    while len(strikes) < rounds:
        strikes += rng.sample(once, len(once))
    return strikes[:rounds]


def strike(directory: Path, strikes: Sequence[Strike], *, seed: int, actors: int, longest_s: float) -> Verdict:
    """Runs a fleet, strikes it at random moments, and judges what all have written.

    Args:
        directory: Kept: run directory, histories, strikes, logs.
        strikes: One per round.
        seed: Decides the moments, the sizes and the payloads, as far as processes can be decided.
        actors: How many.
        longest_s: Between the fleet getting on and the next strike, seconds.
    """
    rng, recorder = Random(seed), Recorder(directory / "strikes.jsonl")
    try:
        with running(directory, rng, actors) as fleet:
            for each in strikes:
                fleet.watch(rng.uniform(0.0, longest_s))
                with recorder.call(each.__name__):
                    each(fleet)
                fleet.get_on()
            fleet.finish()
    except Exception as error:
        error.add_note(f"seed {seed}, see {directory}")
        raise
    finally:
        recorder.close()
    found = survey(fleet.run.replay, RULES.fragments_per_chunk)
    history = History(read_calls(fleet.histories), RULES)
    contradictions = faults(history, found)
    story = "\n".join([f"seed {seed}, see {directory}: {len(contradictions)} faults", *contradictions[:SHOWN]])
    return Verdict(contradictions, figures(history, found) | {"rounds": len(strikes)}, story)


def figures(history: History, found: Survey) -> dict[str, int]:
    """What the histories hold."""
    outcomes = Counter(outcome for call in history.good_appends() for outcome in call.answer.get("outcomes", ()))
    endings = Counter(call.ending for call in history.calls)
    reasons = Counter(drop.reason for drop in found.dropped.values())
    read = sum(len(call.answer["fragments"]) for call in history.by_kind["read"] if call.is_ok)
    return {
        "calls": len(history.calls),
        **{f"calls_{ending}": count for ending, count in sorted(endings.items())},
        "fenced": sum(call.is_fenced for call in history.calls),
        "fragments": len(history.made),
        "acked_fragments": len(history.acked),
        **{f"appended_{outcome}": count for outcome, count in sorted(outcomes.items())},
        **{f"left_{reason}": count for reason, count in sorted(reasons.items())},
        "held": len(found.held),
        "leases": len(history.leases),
        "acked_leases": sum(any(call.is_ok for call in lease.acks()) for lease in history.leases.values()),
        "read_fragments": read,
        "epochs": len(history.lineages),
        "episodes": len(found.episodes),
    }

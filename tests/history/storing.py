"""What replay must do with what actors send, as functions that yield what contradicts it. Pure.

Where an outcome is unknown, a check takes the case that speaks for replay, so whatever it yields is a fault.
"""

from collections import Counter
from collections.abc import Iterator
from itertools import chain

from tests.history.history import History, Made, Name, Timeline, is_complete, made_in
from tests.history.record import UNKNOWN, Call
from tests.history.survey import Drop, Survey


def lost(history: History, survey: Survey) -> Iterator[str]:
    """R1, R10: every acked fragment is remembered, and is either held or explained; nothing else is."""
    held, dropped = survey.held.keys(), survey.dropped.keys()
    yield from (f"{name} was acked and is not remembered" for name in history.acked - survey.named)
    yield from (f"{name} was acked and is neither held nor explained" for name in history.acked - held - dropped)
    yield from (f"{name} is both held and explained" for name in held & dropped)
    strangers = (survey.named | held | dropped) - history.made.keys()
    yield from (f"{name} is in the store and nobody sent it, or it was refused" for name in strangers)


def unexplained(history: History, survey: Survey) -> Iterator[str]:
    """R10: the reasons for which fragments left are true. The store was large enough to evict nothing."""
    horizon = history.farthest_horizon().before(UNKNOWN)
    stored = {made.name for made, outcome in _outcomes(history) if outcome == "stored"}
    for name, drop in survey.dropped.items():
        if name in history.made and not _is_true(history, history.made[name], drop, horizon, stored):
            yield f"{history.made[name]} left as {drop}"


def altered(history: History, survey: Survey) -> Iterator[str]:
    """R1, R9: bytes are those that were appended, read over the wire and from the disk."""
    read = (part for call in history.by_kind["read"] if call.is_ok for part in call.answer["fragments"])
    found = chain((((stream, sequence), digest) for stream, sequence, digest in read), survey.held.items())
    for name, digest in found:
        if name not in history.made or history.made[name].digest != digest:
            yield f"{name} has the bytes {digest}, it was sent as {history.made.get(name)}"


def misjudged(history: History, survey: Survey) -> Iterator[str]:
    """R7, R10: on arrival, what is surely too stale is dropped, and nothing that can still be used."""
    surely, perhaps = history.horizon(), history.farthest_horizon()
    for call in history.good_appends():
        for made, outcome in zip(made_in(call), call.answer.get("outcomes", ()), strict=False):
            age = surely.before(call.sent) - made.oldest_version
            if outcome == "stored" and age > history.rules.max_staleness:
                yield f"{made} was stored although it was {age} versions old"
            drop, oldest_use = survey.dropped.get(made.name), perhaps.before(call.back) - history.rules.max_staleness
            if outcome == "expired" and (
                drop is None or (drop.reason == "stale" and drop.oldest_version >= oldest_use)
            ):
                yield f"{made} expired on arrival as {drop}"


def doubled(history: History, survey: Survey) -> Iterator[str]:
    """R3: a name is stored once; after it was acked, sending it again is recognised."""
    taken = Counter(made.name for made, outcome in _outcomes(history) if outcome != "duplicate")
    yield from (f"{name} was taken {times} times" for name, times in taken.items() if times > 1)
    acked: dict[Name, float] = {}
    for call in history.good_appends():
        for made, outcome in zip(made_in(call), call.answer.get("outcomes", ()), strict=False):
            if outcome != "duplicate" and acked.get(made.name, UNKNOWN) < call.sent:
                yield f"{made} was acked, then {outcome}"
            acked[made.name] = min(acked.get(made.name, UNKNOWN), call.back)
    if survey.ledger["appended"] != len(survey.named):
        yield f"{survey.ledger['appended']} fragments were appended, {len(survey.named)} are remembered"


def admitted(history: History, survey: Survey) -> Iterator[str]:
    """R3: other bytes under a known name, and bytes that fail their checksum, are refused."""
    yield from (f"{call} must be refused" for call in history.bad_appends() if call.is_ok)
    yield from (f"{call} must be taken" for call in history.good_appends() if call.ending == "fail")


def misreported(history: History, survey: Survey) -> Iterator[str]:
    """Every acked episode is in the log once, every page is a part of the log, and the log holds only what was sent."""
    sent = {tuple(name) for call in history.good_appends() for name in call.asked["episodes"]}
    acked = {tuple(name) for call in history.good_appends() if call.is_ok for name in call.asked["episodes"]}
    logged = Counter(survey.episodes)
    yield from (f"episode {name} was acked and is not logged" for name in acked - logged.keys())
    yield from (f"episode {name} was never sent" for name in logged.keys() - sent)
    yield from (f"episode {name} is logged {times} times" for name, times in logged.items() if times > 1)
    for call in history.by_kind["read_episodes"]:
        if call.is_ok:
            start, stop = call.asked["cursor"], call.answer["next"]
            if [tuple(name) for name in call.answer["episodes"]] != survey.episodes[start:stop]:
                yield f"{call} is no part of the log: {survey.episodes[start:stop]}"


def misadded(history: History, survey: Survey) -> Iterator[str]:
    """Environment steps are the sum over incarnations of the most that each reported."""
    acked, sent = _progress(history.good_appends())
    for call in (*history.by_kind["lease"], *history.by_kind["ack"]):
        if call.is_ok:
            low = sum(timeline.before(call.sent) for timeline in acked.values())
            high = sum(timeline.before(call.back) for timeline in sent.values())
            if not low <= call.answer["env_steps"] <= high:
                yield f"{call} must answer from {low} to {high} steps"
    for actor, timeline in acked.items():
        if not timeline.before(UNKNOWN) <= survey.env_steps.get(actor, 0) <= sent[actor].before(UNKNOWN):
            yield f"{actor} has {survey.env_steps.get(actor)} steps in the store, acked were {timeline.before(UNKNOWN)}"


def unbalanced(history: History, survey: Survey) -> Iterator[str]:
    """R10: the ledger agrees with a recount."""
    yield from survey.faults


def _outcomes(history: History) -> Iterator[tuple[Made, str]]:
    for call in history.good_appends():
        yield from zip(made_in(call), call.answer.get("outcomes", ()), strict=False)


def _is_true(history: History, made: Made, drop: Drop, horizon: int, stored: set[Name]) -> bool:
    """Whether a fragment can have left for this reason."""
    chunk = history.chunks[history.chunk_of(made.name)]
    match drop.reason:
        case "trained":
            return drop.uses >= history.rules.max_reuse
        case "stale":
            return drop.oldest_version < horizon - history.rules.max_staleness
        case "abandoned":
            widest = made._replace(newest_version=max(one.newest_version for one in chunk))
            return history.is_abandoned(widest._replace(oldest_version=min(one.oldest_version for one in chunk)))
        case "incomplete":
            return not is_complete([one for one in chunk if one.name in stored], history.rules)
        case "late":
            return made.name not in stored
    return False


def _progress(appends: list[Call]) -> tuple[dict[str, Timeline], dict[str, Timeline]]:
    """By incarnation, the steps that were acked and those that were sent."""
    by_actor: dict[str, list[Call]] = {}
    for call in appends:
        by_actor.setdefault(call.asked["actor"], []).append(call)
    acked = {
        actor: Timeline((call.back, call.asked["env_steps"]) for call in calls if call.is_ok)
        for actor, calls in by_actor.items()
    }
    sent = {
        actor: Timeline((call.sent, call.asked["env_steps"]) for call in calls) for actor, calls in by_actor.items()
    }
    return acked, sent

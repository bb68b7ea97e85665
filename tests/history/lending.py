"""What replay owes the learner, as functions that yield what contradicts it. Pure.

Where an outcome is unknown, a check takes the case that speaks for replay, so whatever it yields is a fault.
"""

from collections import Counter
from collections.abc import Iterator

from tests.history.history import History, Lease, Lent, Timeline, is_complete, lease_of
from tests.history.record import UNKNOWN, Call
from tests.history.survey import Survey

HIGHEST = 2**63
"""Stands for an epoch that nobody lived to tell."""


def torn(history: History, survey: Survey) -> Iterator[str]:
    """A lease lends each chunk once and whole, a repeated one lends the same, and a read brings all of it in order."""
    for call in history.by_kind["lease"]:
        if call.is_ok and call.answer["chunks"]:
            first = history.leases[lease_of(call)].granted
            if sorted(call.answer["chunks"]) != sorted(first.answer["chunks"]):
                yield f"lease {lease_of(call)} lent {first.answer['chunks']}, then {call.answer['chunks']}"
    for lease in history.leases.values():
        names = [chunk.name for chunk in lease.chunks]
        yield from (f"{lease.granted} lends {name} twice" for name, times in Counter(names).items() if times > 1)
        yield from (f"{chunk} was lent and is not whole" for chunk in lease.chunks if not _is_whole(history, chunk))
    for call in history.by_kind["read"]:
        if call.is_ok:
            yield from _torn_read(history, call)


def overused(history: History, survey: Survey) -> Iterator[str]:
    """R5: confirmed uses and leases that are surely open never exceed `max_reuse`."""
    takeovers = _takeovers(history)
    for name, leases in history.lent.items():
        spans = [(lease.granted.back, _charged_until(lease, takeovers)) for lease in leases]
        for moment, _ in spans:
            charged = sum(start <= moment < stop for start, stop in spans)
            if charged > history.rules.max_reuse:
                yield f"{name} is charged {charged} times at {moment}"


def miscounted(history: History, survey: Survey) -> Iterator[str]:
    """R4: uses are counted exactly, as far as their outcomes are known, and none is granted above `max_reuse`."""
    for lease in history.leases.values():
        for chunk in lease.chunks:
            low = history.surely_used(chunk.name, lease.granted.sent)
            high = history.perhaps_used(chunk.name, lease.granted.back)
            others = sum(_is_open(other, lease) for other in history.lent[chunk.name])
            if not low <= chunk.uses <= high or chunk.uses + others + 1 > history.rules.max_reuse:
                yield f"{chunk} was lent: {low} to {high} uses were acked, {others} other leases were open"
    held = {history.chunk_of(name): 0 for name in survey.held}
    gone = {history.chunk_of(name): drop.uses for name, drop in survey.dropped.items()}
    for name, uses in (gone | held | survey.uses).items():
        if not history.surely_used(name) <= uses <= history.perhaps_used(name):
            yield f"{name} counts {uses} uses, acked were {history.surely_used(name)} to {history.perhaps_used(name)}"


def misheld(history: History, survey: Survey) -> Iterator[str]:
    """R4, R6: the leases on the disk are those of the newest epoch that nobody has closed."""
    newest = history.epochs().before(UNKNOWN)
    for number, names in survey.leases.items():
        lease = history.leases.get((survey.epoch, number))
        if lease is not None and sorted(names) != sorted(chunk.name for chunk in lease.chunks):
            yield f"lease {number} holds {names} on the disk, it lent {lease.chunks}"
        if lease is not None and min(lease.surely_acked(), _surely_released(lease)) < UNKNOWN:
            yield f"lease {number} was closed and is open on the disk"
    for (epoch, number), lease in history.leases.items():
        is_touched = min(lease.perhaps_acked(), lease.perhaps_released()) < UNKNOWN
        if epoch == survey.epoch and not is_touched and number not in survey.leases:
            yield f"lease {number} was granted and is not open on the disk"
    if survey.epoch < newest:
        yield f"the store knows epoch {survey.epoch}, it answered epoch {newest}"


def stale(history: History, survey: Survey) -> Iterator[str]:
    """R7: no chunk is lent or used when it is staler than `max_staleness`."""
    for lease in history.leases.values():
        used = [lease.use_version, *(call.asked["used_at"] for call in lease.closings if call.kind == "ack")]
        for chunk in lease.chunks:
            oldest = history.oldest_version(chunk.name)
            if chunk.oldest_version != oldest or max(used) - oldest > history.rules.max_staleness:
                yield f"{chunk} was lent for version {max(used)}, it is from {oldest}"


def abandoned(history: History, survey: Survey) -> Iterator[str]:
    """R4: no chunk is lent that a lineage acted in which its learner left behind."""
    for lease in history.leases.values():
        for chunk in lease.chunks:
            for made in history.chunks[chunk.name]:
                if history.is_abandoned(made, lease.epoch):
                    yield f"{made} was lent in epoch {lease.epoch}, of {history.lineages}"


def unfenced(history: History, survey: Survey) -> Iterator[str]:
    """Once a newer epoch is heard, older ones are refused everywhere; none is refused before."""
    opened = [call for call in history.by_kind["open_epoch"] if call.is_ok]
    heard = history.epochs(), Timeline((call.sent, call.asked["epoch"]) for call in history.to_replay())
    issued = (
        Timeline((call.back, call.answer["epoch"]) for call in opened),
        Timeline((call.sent, call.answer.get("epoch", HIGHEST)) for call in history.by_kind["open_epoch"]),
    )
    yield from _unfenced(history.to_replay(), *heard)
    yield from _unfenced(history.by_kind["publish"], *issued)


def receding(history: History, survey: Survey) -> Iterator[str]:
    """P2: epochs and versions only rise, whoever is asked, and replay knows no version before it is published."""
    for kind, key in (("open_epoch", "epoch"), ("publish", "version")):
        calls = [call for call in history.by_kind[kind] if call.is_ok]
        ended = Timeline((call.back, call.answer[key]) for call in calls)
        yield from (f"{call} does not rise" for call in calls if call.answer[key] <= ended.before(call.sent))
    answers = [call for kind in ("reserve", "append") for call in history.by_kind[kind] if call.is_ok]
    told = Timeline((call.back, call.answer["newest"]) for call in answers)
    heard, published = history.heard(), history.published()
    for call in answers:
        lowest = max(told.before(call.sent), heard.before(call.sent))
        if not lowest <= call.answer["newest"] <= published.before(call.back):
            yield f"{call} must answer a version from {lowest} to {published.before(call.back)}"
    if not heard.before(UNKNOWN) <= survey.newest_version <= published.before(UNKNOWN):
        yield f"the store knows version {survey.newest_version}, it was told {heard.before(UNKNOWN)}"


def ill_answered(history: History, survey: Survey) -> Iterator[str]:
    """A learner that asks rightly is refused nothing but for a newer epoch."""
    refused = (call for call in history.to_replay() if call.ending == "fail" and not call.is_fenced)
    yield from (f"{call} was refused" for call in refused)


def _is_whole(history: History, chunk: Lent) -> bool:
    made = history.chunks[chunk.name]
    return len(made) == chunk.fragments and is_complete(made, history.rules)


def _torn_read(history: History, call: Call) -> Iterator[str]:
    lease = history.leases.get(lease_of(call))
    chunks = [chunk.name for chunk in lease.chunks] if lease is not None else []
    expected = [made.name for name in chunks for made in history.chunks[name]]
    brought = [(stream, sequence) for stream, sequence, _ in call.answer["fragments"]]
    if brought != expected:
        yield f"lease {lease_of(call)} must bring {expected}, it brought {brought}"


def _takeovers(history: History) -> dict[int, float]:
    """When the first call of each epoch may have reached replay."""
    takeovers: dict[int, float] = {}
    for call in history.to_replay():
        epoch = call.asked["epoch"]
        takeovers[epoch] = min(takeovers.get(epoch, UNKNOWN), call.sent)
    return takeovers


def _charged_until(lease: Lease, takeovers: dict[int, float]) -> float:
    """Until when a lease surely charges its chunks; for ever once it is acked."""
    if lease.surely_acked() < UNKNOWN:
        return UNKNOWN
    fenced = min((moment for epoch, moment in takeovers.items() if epoch > lease.epoch), default=UNKNOWN)
    return min(fenced, lease.perhaps_released())


def _is_open(other: Lease, lease: Lease) -> bool:
    """Whether the other lease of the same epoch was surely open while this one was granted."""
    closed = min(other.perhaps_acked(), other.perhaps_released())
    return other.epoch == lease.epoch and other.granted.precedes(lease.granted) and closed > lease.granted.back


def _surely_released(lease: Lease) -> float:
    return min((call.back for call in lease.closings if call.kind == "release" and call.is_ok), default=UNKNOWN)


def _unfenced(calls: list[Call], surely: Timeline, perhaps: Timeline) -> Iterator[str]:
    for call in calls:
        if call.is_ok and surely.before(call.sent) > call.asked["epoch"]:
            yield f"{call} was answered although epoch {surely.before(call.sent)} had taken over"
        if call.is_fenced and perhaps.before(call.back) <= call.asked["epoch"]:
            yield f"{call} was refused although no newer epoch had begun"

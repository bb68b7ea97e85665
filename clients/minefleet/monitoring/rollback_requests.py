"""Rollbacks: a run goes on from an older checkpoint, and what came after that is undone.

    request ─▶ rollback line ─▶ later checkpoints are set aside ─▶ a learner starts from the checkpoint, in a new epoch

The line decides. It is open until a learner has started after it: until then, each start does again what a crash may
have left undone.
"""

from dataclasses import asdict

from minefleet.core.errors import ConfigError
from minefleet.monitoring.journal import Line, append, read_whole_journal
from minefleet.monitoring.learner_requests_in_journal import (
    REFUSED,
    ROLLBACK,
    STARTS,
    answers_in,
    newest_learner,
    unanswered,
)
from minefleet.runs.checkpoint_files import CheckpointState, newest, read_state
from minefleet.runs.checkpoint_retention import hold
from minefleet.runs.checkpoint_rollback import choose, go_back
from minefleet.runs.run_yaml import Run


def settle_rollbacks(run: Run) -> None:
    """Does what an open rollback says, and answers requests for more, while no learner goes.

    Raises:
        ConfigError: If the checkpoint of a rollback is missing or damaged.
        OSError: If the run directory cannot be written.
    """
    _carry_out(run, lines := read_whole_journal(run.directory))
    requests = [request for request in unanswered(lines) if ROLLBACK in request]
    for request in requests:
        if (last := newest(run.checkpoints)) is not None:
            answer_rollback(run, request, read_state(last), newest_learner(lines) or "")
            _carry_out(run, read_whole_journal(run.directory))


def answer_rollback(run: Run, request: Line, left: CheckpointState, learner: str) -> None:
    """Decides a rollback, or refuses it. Its checkpoint stays as long as this process, whatever is pruned.

    Args:
        run: Of the request.
        request: Line of the journal.
        left: Iteration and version that the run goes back from.
        learner: Name of the learner that has started last.
    """
    answer: Line = {"id": request["id"], "why": request.get("why", ""), "learner": learner}
    try:
        place = choose(run.checkpoints, str(request[ROLLBACK]))
        held, state = hold(place), read_state(place)
        if held is None:
            raise ConfigError(f"{place} is being removed; ask again")
    except ConfigError as error:
        append(run.directory, REFUSED, asdict(left), **answer, reason=str(error))
        return
    answer |= {"checkpoint": place.name, "version": state.version, "left": [left.iteration, left.version]}
    append(run.directory, ROLLBACK, asdict(state), **answer)


def open_rollback(lines: list[Line]) -> Line | None:
    """The last rollback, unless a learner has started since."""
    answers, found = [*answers_in(lines).values()], None
    for line in lines:
        if line.get("event") in STARTS:
            found = None
        elif line.get("event") == ROLLBACK and line in answers:
            found = line
    return found


def _carry_out(run: Run, lines: list[Line]) -> None:
    if line := open_rollback(lines):
        go_back(run.checkpoints, line["checkpoint"])
        (run.directory / "result.json").unlink(missing_ok=True)


def undone_versions(lines: list[Line]) -> list[range]:
    """The versions that rollbacks have undone."""
    return [
        range(line["version"] + 1, line["left"][1] + 1)
        for line in answers_in(lines).values()
        if line["event"] == ROLLBACK
    ]

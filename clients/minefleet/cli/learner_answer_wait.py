"""Waits for the learner's answer to a request in a run's journal."""

import sys
import time
from collections.abc import Callable
from pathlib import Path

from minefleet.config import FleetConfig
from minefleet.core.errors import GaveUpError
from minefleet.monitoring.journal import Line, read_whole_journal
from minefleet.monitoring.learner_requests_in_journal import answers_in
from minefleet.monitoring.status import is_answering, read_cards
from minefleet.rpc.credentials import OPERATOR, read_credentials

POLL_S = 0.2


def wait_for_answer(directory: Path, config: FleetConfig, request: Callable[[], str]) -> Line | None:
    """Makes a request, and waits for its answer as long as a learner runs; returns None where none does.

    Raises:
        GaveUpError: If the journal cannot be read or written.
    """
    credentials = read_credentials(config.services.security, OPERATOR)
    try:
        asked = request()
        while True:
            learners = [card for card in read_cards(directory) if card["role"] == "ROLE_LEARNER"]
            is_up = any(is_answering(card, credentials) for card in learners)
            if answer := answers_in(read_whole_journal(directory)).get(asked):
                return answer
            if not is_up:
                return None
            time.sleep(POLL_S)
    except OSError as error:
        raise GaveUpError(f"the journal of {directory} cannot be used: {error}") from error
    except KeyboardInterrupt:
        print("minefleet: the request stands; the learner answers it in the run's journal", file=sys.stderr)
        raise

"""The arithmetic of the disk: what may be there at once fits into `max_bytes`."""

from hypothesis import given
from hypothesis import strategies as st

from minefleet_replay.state.disk_budget_split import (
    BUFFERS,
    EVENT_LOGS,
    FILES,
    MIN_BUDGET_BYTES,
    DiskBudget,
    row_weight,
)

BUDGETS = st.integers(MIN_BUDGET_BYTES, 2**36).map(DiskBudget)
RECORDS_BYTES = (200, 300, 400)
"""Of an episode, a departure, and the names of a stream."""


@given(BUDGETS)
def test_disk_budget_parts_fit_into_max_bytes(budget: DiskBudget) -> None:
    log = 2 * BUFFERS * budget.buffer_bytes
    own = 2 * budget.manifest_bytes + EVENT_LOGS * budget.event_log_bytes
    records = budget.records_kept * sum(RECORDS_BYTES)
    ahead = budget.file_bytes + 2 * budget.buffer_bytes
    assert budget.kept_bytes + log + own + records + ahead <= budget.max_bytes


@given(BUDGETS)
def test_disk_budget_evicts_several_files_and_leaves_most(budget: DiskBudget) -> None:
    assert 2 * budget.file_bytes <= budget.evicted_bytes <= budget.kept_bytes // 32
    assert FILES * budget.file_bytes <= budget.kept_bytes


@given(BUDGETS, st.integers(0, 2**20), st.integers(64, 2**12))
def test_disk_budget_counts_rows_against_what_is_kept(budget: DiskBudget, payload_bytes: int, row_bytes: int) -> None:
    fragments = budget.kept_bytes // (payload_bytes + row_weight(row_bytes))
    assert fragments * (payload_bytes + 2 * row_bytes) <= budget.kept_bytes

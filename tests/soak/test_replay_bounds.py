"""Ten times `max_bytes` through a replay process: its directory, its memory and its health."""

from pathlib import Path

import pytest

from replay_bounds import CASES, HEALTH_LIMIT_S, Case, flow

pytestmark = [pytest.mark.soak, pytest.mark.timeout(3600)]

MAX_BYTES = 10**9


@pytest.mark.parametrize("case", CASES)
def test_ten_times_max_bytes_leave_the_directory_below_it_and_the_memory_flat(tmp_path: Path, case: Case) -> None:
    watch = flow(tmp_path, case, MAX_BYTES, 10 * MAX_BYTES)
    assert watch.peak_disk_bytes <= MAX_BYTES
    assert watch.memory_growth < 1.2
    assert watch.slowest_health_s < HEALTH_LIMIT_S
    if case == "held":
        assert watch.stats["held_payload_bytes"] > MAX_BYTES // 2

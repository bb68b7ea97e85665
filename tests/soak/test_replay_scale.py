"""A million fragments: what a fresh process makes of them."""

from pathlib import Path

import pytest
from tests.minefleet_replay.recount import recount

from minefleet_replay.storage.open_rocksdb import open_store
from replay_opening import PATIENCE_S, client_of, fill, make_run, running, stream_of

pytestmark = pytest.mark.soak

FRAGMENTS = 1_000_000
BUCKETS = ("live", "leased", "trained", "expired", "evicted", "corrupt")


def test_a_store_of_a_million_fragments_opens_whole_lends_in_order_and_expires_all_of_it(tmp_path: Path) -> None:
    run = make_run(tmp_path, max_chunks=2 * FRAGMENTS, max_staleness=2)
    fill(run, FRAGMENTS)
    with running(run), client_of(run) as client:
        figures = client.describe().stats
        assert figures["live_fragments"] == figures["appended_fragments"] == figures["held_chunks"] == FRAGMENTS
        for number in (1, 2):
            lease = client.lease(number, steps=64, use_version=1, wait_s=PATIENCE_S, order="oldest")
            first = 64 * (number - 1)
            assert [chunk.name.stream for chunk in lease.chunks] == [
                stream_of(place) for place in range(first, first + 64)
            ]
            assert {chunk.name.chunk for chunk in lease.chunks} == {0}
            assert len(list(client.read(number))) == 64
        client.ack(1)
        client.release(2)
    with running(run), client_of(run, version=9) as client:
        lease = client.lease(3, steps=1, use_version=9, wait_s=0.0)
        assert lease.chunks == []
        while (figures := client.describe().stats)["held_chunks"]:
            assert client.lease(3, steps=1, use_version=9, wait_s=1.0).chunks == []
        assert sum(figures[f"{bucket}_fragments"] for bucket in BUCKETS) == FRAGMENTS
        assert (figures["expired_fragments"], figures["trained_fragments"]) == (FRAGMENTS - 64, 64)
    store = open_store(run.replay, max_bytes=run.config.rollout_config.replay_buffer_config.max_bytes, fresh=False)
    assert list(recount(store).faults()) == []
    store.close()

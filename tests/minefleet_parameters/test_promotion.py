"""Versions for canary slots alone, and the version that all slots may act by."""

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from minefleet.core.errors import FencedError, RejectedError
from minefleet.rpc.parameters_client import ParametersClient

KEPT = 3


def publish(client: ParametersClient, make_weights: Callable[..., Any], number: int, promoted: int = 0) -> int:
    return client.publish(make_weights(seed=number), iteration=number, promoted=promoted)


def shown(client: ParametersClient) -> tuple[int, int, int, int]:
    """Versions: the newest, the one that it promotes, and those that canary slots and the others fetch."""
    newest = client.versions()[-1]
    return newest.version, newest.promoted, client.fetch(canary=True)[0].version, client.fetch()[0].version


def test_version_for_canary_slots_is_promoted_by_a_later_publish_and_so_it_stays_after_a_crash(
    tmp_path: Path, run_parameters: Callable[..., Any], make_weights: Callable[..., Any]
) -> None:
    with run_parameters(tmp_path, keep=KEPT) as served, closing(served.client()) as client:
        client.open_epoch("run")
        seen = [
            shown(client)
            for number, mark in ((1, 0), (2, 1), (3, 1), (4, 2))
            if publish(client, make_weights, number, mark)
        ]
        assert seen == [(1, 1, 1, 1), (2, 1, 2, 1), (3, 1, 3, 1), (4, 2, 4, 2)]
        announced = next(client.watch())
        assert (announced.version, announced.promoted) == (4, 2)
    with run_parameters(tmp_path, keep=KEPT) as served, closing(served.client()) as client:
        assert shown(client) == (4, 2, 4, 2)


def test_promoted_version_is_kept_however_many_newer_ones_there_are(
    tmp_path: Path, run_parameters: Callable[..., Any], make_weights: Callable[..., Any]
) -> None:
    with run_parameters(tmp_path, keep=KEPT) as served, closing(served.client()) as client:
        client.open_epoch("run")
        for number in range(1, 7):
            publish(client, make_weights, number, promoted=min(number, 2) if number > 2 else 0)
        assert [one.version for one in client.versions()] == [2, 4, 5, 6]
        publish(client, make_weights, 7)
        assert [one.version for one in client.versions()] == [5, 6, 7]


def test_a_version_that_is_gone_or_older_than_the_promoted_one_is_not_promoted(
    tmp_path: Path, run_parameters: Callable[..., Any], make_weights: Callable[..., Any]
) -> None:
    with run_parameters(tmp_path, keep=KEPT) as served, closing(served.client()) as client:
        client.open_epoch("run")
        for number, mark in ((1, 0), (2, 0), (3, 2)):
            publish(client, make_weights, number, mark)
        for mark in (1, 4, 9):
            with pytest.raises(RejectedError, match=rf"version {mark} cannot be promoted: 2 is"):
                publish(client, make_weights, 4, mark)
        with closing(served.client()) as successor:
            successor.open_epoch("run")
            with pytest.raises(FencedError):
                publish(client, make_weights, 4, 3)
            assert shown(successor) == (3, 2, 3, 2)

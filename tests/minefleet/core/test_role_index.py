import argparse

import pytest

from minefleet.core.role_index import label_of, number_of, read_index


def test_role_index_that_is_a_number_keeps_it() -> None:
    assert (read_index("3"), label_of("3"), number_of("3")) == ("3", "3", 3)


def test_role_index_host_gives_each_host_its_name_and_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = set()
    for host in ("3f2a1b", "3f2a1c", "actor-7d9f8-x2k4p"):
        monkeypatch.setattr("socket.gethostname", lambda host=host: host)
        assert label_of("host") == host
        numbers.add(number_of("host"))
    assert len(numbers) == 3


@pytest.mark.parametrize("text", ["", "-1", "two", "1.0", "²"])
def test_role_index_that_is_neither_a_number_nor_a_host_name_is_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="must be a number or 'host'"):
        read_index(text)

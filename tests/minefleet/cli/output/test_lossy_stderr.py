from minefleet.cli.output.lossy_stderr import outlived


def test_a_fault_of_what_only_shows_is_said_once_and_raises_nothing() -> None:
    said, faults = list[str](), iter([ZeroDivisionError("first"), ZeroDivisionError("first"), KeyError("second")])

    @outlived(said.append)
    def show() -> None:
        raise next(faults)

    for _ in range(3):
        show()
    assert ["first" in words for words in said] == [True, False]
    assert all(words.startswith("a fault of minefleet's own; training goes on") for words in said)

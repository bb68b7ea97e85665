from minefleet.core import errors
from minefleet.core.errors import FleetError


def test_errors_docstring_lists_every_error_class() -> None:
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, FleetError)]
    drawn = (errors.__doc__ or "").split()
    assert sorted(kind.__name__ for kind in kinds) == sorted(word for word in drawn if word.endswith("Error"))

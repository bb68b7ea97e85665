"""Messages drawn from protobuf descriptors, bytes that are almost messages, and how often tests draw them.

`make test` draws the same every time. `make soak` draws more, from a seed that a failure names; FUZZ_SEED repeats it.
"""

import os
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

LONG = 60
"""Factor for a soak's number of draws."""
SEED = int(os.environ.get("FUZZ_SEED") or random.getrandbits(32))
EXTENTS = pytest.mark.parametrize(
    "extent", [pytest.param(1, id="short"), pytest.param(LONG, id="long", marks=pytest.mark.soak)]
)
"""Number of a test's draws."""

NOTHING: Mapping[str, Sequence[Any]] = {}
ODD = ["", "s", "run-1", "x" * 201, "x" * 70_000, "../../etc/passwd", "\0", "\N{GRINNING FACE}" * 300, "a\nb", "%s{}"]
TEXTS = st.one_of(st.sampled_from(ODD), st.text(max_size=300))
BYTES = st.one_of(st.binary(max_size=64), st.just(bytes(70_000)))


def _integers(low: int, high: int) -> st.SearchStrategy[int]:
    return st.one_of(
        st.integers(max(low, -1), 8), st.sampled_from([low, high, high // 2, high // 2 + 1]), st.integers(low, high)
    )


NUMBERS: dict[int, st.SearchStrategy[Any]] = {
    FieldDescriptor.CPPTYPE_INT32: _integers(-(2**31), 2**31 - 1),
    FieldDescriptor.CPPTYPE_INT64: _integers(-(2**63), 2**63 - 1),
    FieldDescriptor.CPPTYPE_UINT32: _integers(0, 2**32 - 1),
    FieldDescriptor.CPPTYPE_UINT64: _integers(0, 2**64 - 1),
    FieldDescriptor.CPPTYPE_FLOAT: st.floats(width=32),
    FieldDescriptor.CPPTYPE_DOUBLE: st.floats(),
    FieldDescriptor.CPPTYPE_BOOL: st.booleans(),
    FieldDescriptor.CPPTYPE_ENUM: _integers(-(2**31), 2**31 - 1),
}


def messages(descriptor: Descriptor, known: Mapping[str, Sequence[Any]] = NOTHING) -> st.SearchStrategy[Message]:
    """Messages of a type, each field set or not, with whatever its type allows.

    Args:
        descriptor: The type.
        known: Values that mean something to the server, by the names of fields: drawn as often as all others.
    """
    fields = {field.name: _values(field, known) for field in descriptor.fields}
    return st.fixed_dictionaries({}, optional=fields).map(lambda values: GetMessageClass(descriptor)(**values))


def _values(field: FieldDescriptor, known: Mapping[str, Sequence[Any]]) -> st.SearchStrategy[Any]:
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        return st.dictionaries(TEXTS, _one(field.message_type.fields_by_name["value"], known), max_size=2)
    return st.lists(_one(field, known), max_size=4) if field.is_repeated else _one(field, known)


def _one(field: FieldDescriptor, known: Mapping[str, Sequence[Any]]) -> st.SearchStrategy[Any]:
    if field.message_type is not None:
        return messages(field.message_type, known)
    anything = _anything(field)
    return st.one_of(st.sampled_from(known[field.name]), anything) if field.name in known else anything


def _anything(field: FieldDescriptor) -> st.SearchStrategy[Any]:
    if field.type == FieldDescriptor.TYPE_BYTES:
        return BYTES
    return TEXTS if field.cpp_type == FieldDescriptor.CPPTYPE_STRING else NUMBERS[field.cpp_type]


@st.composite
def mutated(draw: st.DrawFn, data: bytes) -> bytes:
    """The bytes with some changed, cut out, put in or doubled, or without their end."""
    mutant = bytearray(data)
    for _ in range(draw(st.integers(1, 4))):
        place = draw(st.integers(0, len(mutant)))
        match draw(st.integers(0, 5)):
            case 0:
                del mutant[place:]
            case 1:
                mutant[place:place] = mutant[place : place + draw(st.integers(1, 64))]
            case _:
                mutant[place : place + draw(st.integers(0, 3))] = draw(st.binary(max_size=3))
    return bytes(mutant)


def fuzz(extent: int, examples: int, drawn: st.SearchStrategy[Any], check: Callable[[Any], object]) -> None:
    """Checks so many examples, times the extent."""

    @_settings(extent, examples)
    @given(drawn)
    def run(example: Any) -> None:
        check(example)

    with _naming_the_seed(extent):
        (seed(SEED)(run) if extent > 1 else run)()


def fuzz_steps(extent: int, examples: int, steps: int, machine: type[RuleBasedStateMachine]) -> None:
    """Runs a machine so often, times the extent, for so many steps."""

    with _naming_the_seed(extent):
        run_state_machine_as_test(
            seed(SEED)(machine) if extent > 1 else machine,
            settings=settings(_settings(extent, examples), stateful_step_count=steps),
        )


@contextmanager
def _naming_the_seed(extent: int) -> Iterator[None]:
    try:
        yield
    except BaseException as error:
        if extent > 1:
            error.add_note(f"FUZZ_SEED={SEED} draws the same again")
        raise


def _settings(extent: int, examples: int) -> settings:
    return settings(
        max_examples=extent * examples,
        deadline=None,
        derandomize=extent == 1,
        database=None,
        print_blob=extent > 1,
        suppress_health_check=list(HealthCheck),
    )

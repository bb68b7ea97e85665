"""Messages drawn from protobuf descriptors, and bytes that are almost messages."""

from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from hypothesis import strategies as st

TEXTS = st.one_of(st.sampled_from(["", "s", "run-1"]), st.text(max_size=300))
NUMBERS: dict[int, st.SearchStrategy[Any]] = {
    FieldDescriptor.CPPTYPE_INT32: st.integers(-(2**31), 2**31 - 1),
    FieldDescriptor.CPPTYPE_INT64: st.one_of(st.integers(-1, 8), st.integers(-(2**63), 2**63 - 1)),
    FieldDescriptor.CPPTYPE_UINT32: st.one_of(st.integers(0, 8), st.integers(0, 2**32 - 1)),
    FieldDescriptor.CPPTYPE_UINT64: st.one_of(st.integers(0, 8), st.integers(0, 2**64 - 1)),
    FieldDescriptor.CPPTYPE_FLOAT: st.floats(width=32),
    FieldDescriptor.CPPTYPE_DOUBLE: st.floats(),
    FieldDescriptor.CPPTYPE_BOOL: st.booleans(),
    FieldDescriptor.CPPTYPE_ENUM: st.integers(0, 99),
}


def messages(descriptor: Descriptor) -> st.SearchStrategy[Message]:
    """Messages of a type, each field set or not, with whatever its type allows."""
    fields = {field.name: _values(field) for field in descriptor.fields}
    return st.fixed_dictionaries({}, optional=fields).map(lambda values: GetMessageClass(descriptor)(**values))


def _values(field: FieldDescriptor) -> st.SearchStrategy[Any]:
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        return st.dictionaries(TEXTS, _one(field.message_type.fields_by_name["value"]), max_size=2)
    return st.lists(_one(field), max_size=4) if field.is_repeated else _one(field)


def _one(field: FieldDescriptor) -> st.SearchStrategy[Any]:
    if field.message_type is not None:
        return messages(field.message_type)
    if field.type == FieldDescriptor.TYPE_BYTES:
        return st.binary(max_size=64)
    if field.cpp_type == FieldDescriptor.CPPTYPE_STRING:
        return TEXTS
    return NUMBERS[field.cpp_type]


@st.composite
def mutated(draw: st.DrawFn, data: bytes) -> bytes:
    """The bytes with some changed, cut out or put in."""
    mutant = bytearray(data)
    for _ in range(draw(st.integers(1, 4))):
        place = draw(st.integers(0, len(mutant)))
        mutant[place : place + draw(st.integers(0, 3))] = draw(st.binary(max_size=3))
    return bytes(mutant)

"""Parts of messages that are written and read by hand: protobuf's integers of variable length, and a serializer."""

from collections.abc import Callable

from google.protobuf.message import Message


def or_encoded(kind: type[Message]) -> Callable[[Message | bytes], bytes]:
    """A serializer of messages of a kind, which leaves those that are encoded already as they are."""
    return lambda message: message if isinstance(message, bytes) else kind.SerializeToString(message)


def varint(number: int) -> bytes:
    """Encodes a number >= 0, seven bits to a byte, the lowest first."""
    digits = bytearray()
    while number > 0x7F:
        digits.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes((*digits, number))


def number_of(encoded: bytes) -> int:
    """Inverts `varint`."""
    return sum((digit & 0x7F) << 7 * place for place, digit in enumerate(encoded))

"""Protobuf's integers of variable length, for messages that are written and read by hand."""


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

"""Measures the size that a pickle would unfold to, without unfolding it.

A few bytes can stand for a value without end: a tuple that holds another one twice, sixty times over, is hashed for
ever as the key of a dict; one nested two hundred thousand times overruns the stack of C. The opcodes are followed here
with the size and depth of each value in its place.
"""

import pickletools
from dataclasses import dataclass
from typing import IO

MAX_VALUES = 2_000_000
"""Of all values together, each counted wherever it is held."""
MAX_DEPTH = 200
MAX_MEMORISED = 2**20
"""Largest number under which a value is remembered: Python makes room for all below it."""
GROWING_OPCODES = frozenset({"APPEND", "APPENDS", "SETITEM", "SETITEMS", "ADDITEMS", "BUILD"})
"""Opcodes that change the first of the values that they take."""
PUT_OPCODES = frozenset({"PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE"})
GET_OPCODES = frozenset({"GET", "BINGET", "LONG_BINGET"})


class TooLargeError(Exception):
    """A pickle becomes larger or deeper than anything that describes a network."""


@dataclass(slots=True)
class _Value:
    """A value, as often as it is held the same object; None on the stack is a mark."""

    size: int = 1
    depth: int = 0

    def hold(self, others: list["_Value"]) -> None:
        self.size += sum(other.size for other in others)
        self.depth = max(self.depth, *(1 + other.depth for other in others), 0)


def check_unfolding(pickle: bytes | IO[bytes]) -> None:
    """Follows one pickle to its end.

    Raises:
        TooLargeError: If it becomes too large or too deep.
        Exception: If it is no pickle.
    """
    stack: list[_Value | None] = []
    memory: dict[int, _Value] = {}
    values = 0
    for opcode, argument, _ in pickletools.genops(pickle):
        if opcode.name in PUT_OPCODES:
            number = len(memory) if opcode.name == "MEMOIZE" else int(argument or 0)
            if number > MAX_MEMORISED:
                raise TooLargeError(f"it remembers a value as number {number}")
            memory[number] = _top(stack)
        elif opcode.name in GET_OPCODES:
            stack.append(memory[int(argument or 0)])
        else:
            taken = _take(stack, opcode)
            values += _give(stack, opcode, taken)
        if values > MAX_VALUES or (stack and stack[-1] is not None and stack[-1].depth > MAX_DEPTH):
            raise TooLargeError(f"it becomes more than {MAX_VALUES} values, or is nested deeper than {MAX_DEPTH}")


def _top(stack: list[_Value | None]) -> _Value:
    if not stack or stack[-1] is None:
        raise ValueError("an opcode takes a value where there is none")
    return stack[-1]


def _take(stack: list[_Value | None], opcode: pickletools.OpcodeInfo) -> list[_Value]:
    """Takes from the stack what an opcode does, down to the last mark where it asks for that; the first one first."""
    count, taken = len(opcode.stack_before), []
    above_mark = pickletools.markobject in opcode.stack_before
    if opcode.name == "POP" and stack and stack[-1] is None:
        above_mark, count = True, 0
    if above_mark:
        while (value := stack.pop()) is not None:
            taken.append(value)
        if pickletools.markobject in opcode.stack_before:
            count = opcode.stack_before.index(pickletools.markobject)
    for _ in range(count):
        taken.append(_top(stack))
        stack.pop()
    return taken[::-1]


def _give(stack: list[_Value | None], opcode: pickletools.OpcodeInfo, taken: list[_Value]) -> int:
    """Puts on the stack what becomes of what was taken; returns how many values that adds to all there are."""
    if opcode.name == "MARK":
        stack.append(None)
        return 0
    if opcode.name == "DUP":
        stack += [taken[0], taken[0]]
        return 0
    if opcode.name in GROWING_OPCODES:
        grown, *held = taken
        grown.hold(held)
        stack.append(grown)
        return sum(each.size for each in held)
    made = 0
    for _ in opcode.stack_after:
        value = _Value()
        value.hold(taken)
        stack.append(value)
        made += value.size
    return made

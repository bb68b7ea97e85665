"""The player's inventory: 36 slots, the first nine in the hand's reach, and armour."""

from dataclasses import dataclass, field

SLOTS = 36
HOTBAR = 9
STACK = 64
WORN = ("offhand", "head", "chest", "legs", "feet")


@dataclass(slots=True)
class Inventory:
    """Stacks by slot, the slot in hand, and what is worn."""

    stacks: dict[int, tuple[str, int]] = field(default_factory=dict)
    worn: dict[str, str] = field(default_factory=dict)
    selected: int = 0

    @property
    def held(self) -> str:
        """The item in hand; `air` where there is none."""
        return self.stacks.get(self.selected, ("air", 0))[0]

    def count(self, item: str) -> int:
        """The number of an item."""
        return sum(quantity for kind, quantity in self.stacks.values() if kind == item)

    def add(self, item: str, quantity: int) -> None:
        """Puts items where there is room; what finds none is lost."""
        for slot in range(SLOTS):
            kind, there = self.stacks.get(slot, (item, 0))
            if quantity and kind == item and there < STACK:
                put = min(quantity, STACK - there)
                self.stacks[slot] = (item, there + put)
                quantity -= put

    def remove(self, item: str, quantity: int) -> None:
        """Takes items away, from the slot in hand first."""
        for slot in sorted(self.stacks, key=lambda each: each != self.selected):
            kind, there = self.stacks[slot]
            if quantity and kind == item:
                taken = min(quantity, there)
                quantity -= taken
                self.put(slot, item, there - taken)

    def put(self, slot: int, item: str, quantity: int) -> None:
        """Replaces a stack."""
        self.stacks.pop(slot, None)
        if quantity > 0 and item != "air":
            self.stacks[slot] = (item, quantity)

    def clear(self) -> None:
        """Empties all slots."""
        self.stacks.clear()
        self.worn.clear()

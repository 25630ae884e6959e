"""What may be written to DynamoDB at once: changes merged to one for each item, up to a limit.

A transaction takes each item once. So changes of the same item become one if that says the same,
and otherwise a new group begins. Pure. Read next: `broker.backends.dynamodb_sink`.
"""

from typing import Final

from broker.backends.dynamodb_actions import ADD, DELETE, PUT, REMOVE, SET, Change
from broker.backends.dynamodb_tables import MSG_ID_SET, Item

STEPS_MAX: Final = 98  # of the 100 of a transaction: one is the cursor, one what was refused
BYTES_MAX: Final = 3_500_000  # a transaction takes 4 MB
ITEM_OVERHEAD: Final = 100


class Part:
    """One change of one row."""

    __slots__ = ("change", "row", "rule")

    def __init__(self, row: int, rule: int, change: Change) -> None:
        self.row: Final = row  # its index in the batch
        self.rule: Final = rule
        self.change: Final = change


class Step:
    """One item of a group, and everything that is done to it."""

    __slots__ = ("change", "parts", "size_bytes")

    def __init__(self, part: Part) -> None:
        self.change: Change = part.change
        self.parts: list[Part] = [part]
        self.size_bytes: int = size_of(part.change.item)

    def take(self, part: Part, merged: Change) -> None:
        """Do this as well; `merged` is both."""
        self.change = merged
        self.parts.append(part)
        self.size_bytes += size_of(part.change.item)


class Group:
    """Steps that may be written at once, each for another item."""

    __slots__ = ("_steps", "_steps_max", "size_bytes")

    def __init__(self, steps_max: int = STEPS_MAX) -> None:
        self._steps: dict[tuple[str, ...], Step] = {}
        self._steps_max: Final = steps_max
        self.size_bytes: int = 0

    def take(self, part: Part) -> bool:
        """Take a change; False = it does not fit, and must wait until these are written."""
        change = part.change
        step = self._steps.get(change.key)
        size_bytes = size_of(change.item)
        if self._steps and self.size_bytes + size_bytes > BYTES_MAX:
            return False
        if step is None:
            if len(self._steps) == self._steps_max:
                return False
            self._steps[change.key] = Step(part)
        else:
            merged = merge(step.change, change)
            if merged is None:
                return False
            step.take(part, merged)
        self.size_bytes += size_bytes
        return True

    def steps(self) -> list[Step]:
        """Return what is to be written."""
        return list(self._steps.values())


def merge(first: Change, second: Change) -> Change | None:
    """Return one change that does both to an item, None if there is none."""
    if second.kind in (PUT, DELETE):
        return second
    if second.kind == SET:
        if first.kind in (PUT, SET):
            return Change(first.kind, first.table, {**first.item, **second.item})
        return Change(PUT, first.table, second.item) if first.kind == DELETE else None
    if second.kind == first.kind and second.kind in (ADD, REMOVE):
        members = dict.fromkeys(first.item[MSG_ID_SET]["SS"])
        members |= dict.fromkeys(second.item[MSG_ID_SET]["SS"])
        return Change(first.kind, first.table, {**first.item, MSG_ID_SET: {"SS": [*members]}})
    return None


def size_of(item: Item) -> int:
    """Return about how many bytes an item takes, rather more than less."""
    total = ITEM_OVERHEAD
    for name, value in item.items():
        (held,) = value.values()
        members = held if isinstance(held, list) else [held]
        total += len(name)
        total += sum(
            len(each.encode()) if isinstance(each, str) else len(each)
            for each in members
            if isinstance(each, str | bytes)
        )
    return total

"""Made-up histories of a broker with external stores, with at most one planted fault.

A model of what a broker does: messages come, stores confirm, refuse, lose and get again what they
want; minutes are closed; the broker ends and starts with other filters. `plant` then changes what
the history says, as a broker with a bug would have said it.
"""

from collections.abc import Callable
from random import Random
from typing import Final

from audit.checks.topic_matching import Trie
from storage.history.events import (
    BACKLOG_FULL,
    CONFIRMED,
    DEAD_LETTERED,
    LOST_THERE,
    TOLD_AGAIN,
)
from tests.audit.conftest import History

MASK: Final = (1 << 61) - 1
ROOT: Final = (1 << 30) - 1
TOPICS: Final = ("a", "a/b", "b/c", "c", "$SYS/x")
FILTERS: Final = (("#",), ("a/#", "+/c"), ("a", "a/#"), ("c",), ())
Row = dict[str, object]


def sums(offsets: list[int]) -> dict[str, object]:
    """Return the count and the checksums of messages."""
    return {
        "count": len(offsets),
        "check1": sum(offsets) & MASK,
        "check2": sum((each & ROOT) ** 2 for each in offsets) & MASK,
    }


class Store:
    """What the broker knows of one store."""

    def __init__(self, name: str, end: int) -> None:
        self.name = name
        self.filters: dict[str, int] = {}
        self.upto = self.counted = end
        self.minute = -1
        self.confirmed: list[int] = []
        self.dead: list[int] = []
        self.gaps: list[tuple[int, int]] = []

    def wants(self, topic: str, offset: int) -> bool:
        """Return whether a message is for it."""
        names = list(self.filters)
        found = Trie((name, at) for at, name in enumerate(names)).match(topic)
        return any(self.filters[names[at]] < offset for at in found)


class Mirrored(History):
    """A broker with some stores."""

    def __init__(self, seed: int, stores: int = 2, node: str = "n1") -> None:
        super().__init__(node)
        self.random = Random(seed)
        self.end = self.random.choice((0, 0, 1 << 40))
        self.topics: dict[int, tuple[str, int]] = {}  # topic and minute by offset
        self.stores = [Store(f"s{number}", self.end) for number in range(stores)]
        self.start()

    def start(self) -> None:
        """Begin a boot."""
        self.boot()
        for store in self.stores:
            self.close(store, store.counted)
            # The first one always wants something.
            chosen = self.random.choice(FILTERS[: 2 if store is self.stores[0] else None])
            store.filters = {each: store.filters.get(each, self.end) for each in chosen}
            self.row("backend_opened", backend=store.name, position=store.upto, count=len(chosen))
            for name, since in store.filters.items():
                self.row("backend_follows", backend=store.name, tfilter=name, position=since)

    def publish(self) -> None:
        """Accept a message."""
        self.end += 1
        topic = self.random.choice(TOPICS)
        self.row(
            "msg_accepted", wait=self.random.random() * 20, msg=self.end, topic=topic, pub_qos=1,
            order=self.end,
        )  # fmt: skip
        self.topics[self.end] = topic, int(self.now // 60)

    def confirm(self, store: Store, upto: int) -> None:
        """Let a store confirm everything up to an offset."""
        for offset in range(store.counted + 1, upto + 1):
            topic, minute = self.topics[offset]
            is_gone = any(first <= offset <= last for first, last in store.gaps)
            if is_gone or not store.wants(topic, offset):
                continue
            if minute != store.minute:
                self.close(store, offset - 1)
                store.minute = minute
            (store.dead if self.random.random() < 0.1 else store.confirmed).append(offset)
        store.counted = max(store.counted, upto)

    def close(self, store: Store, last: int) -> None:
        """Say what was told."""
        first = store.upto + 1
        bin_ = self.time(store.minute * 60)
        for reason, tally in ((CONFIRMED, store.confirmed), (DEAD_LETTERED, store.dead)):
            if tally:
                self.row(
                    "backend_told", backend=store.name, reason=reason, bin=bin_, msg=first,
                    msg_last=last, **sums(tally),
                )  # fmt: skip
                store.upto = last
        store.confirmed, store.dead, store.minute = [], [], -1

    def give_up(self, store: Store) -> None:
        """Let a store not get what waits for it."""
        if store.counted < self.end:
            store.gaps.append((store.counted + 1, self.end))
            self.gap(store, BACKLOG_FULL, store.counted + 1, self.end)

    def gap(self, store: Store, reason: int, first: int, last: int) -> None:
        """Say that a store does not get something."""
        self.row(
            "backend_gap", backend=store.name, reason=reason, bin=self.time(self.now), msg=first,
            msg_last=last, **sums([]),
        )  # fmt: skip

    def forget(self, store: Store) -> None:
        """Let a store lose what it had, and get it again."""
        if store.upto:
            first = max(1, store.upto - 3)
            self.gap(store, LOST_THERE, first, first)
            self.row(
                "backend_told", backend=store.name, reason=TOLD_AGAIN, bin=self.time(self.now),
                msg=first, msg_last=store.upto, **sums(list(range(first, store.upto + 1))),
            )  # fmt: skip

    def play(self, steps: int = 120) -> "Mirrored":
        """Let things happen."""
        for _ in range(steps):
            store = self.random.choice(self.stores)
            dice = self.random.random()
            if dice < 0.7:
                self.publish()
            elif dice < 0.92:
                self.confirm(store, self.random.randint(store.counted, self.end))
            elif dice < 0.94:
                self.give_up(store)
            elif dice < 0.96:
                self.forget(store)
            elif dice < 0.98:
                self.close(store, store.counted)
            else:
                self.start()
        for store in self.stores:
            self.confirm(store, self.end - self.random.randint(0, 3))
            self.close(store, store.counted)
        return self

    def told(self) -> list[Row]:
        """Return the rows of ranges that a store has confirmed."""
        return [
            row for row in self.rows if row["ev"] == "backend_told" and row["reason"] == CONFIRMED
        ]

    def offsets_of(self, told: Row) -> list[int]:
        """Return some messages of a range."""
        first, last = told["msg"], told["msg_last"]
        assert isinstance(first, int) and isinstance(last, int)
        return [each for each in range(first, last + 1) if each in self.topics]


def count_again(row: Row, *, drop: int = 0, add: int = 0) -> None:
    """Let a row have told of one message less, or of one more."""
    for offset, sign in ((drop, -1), (add, 1)):
        if offset:
            for name, value in sums([offset]).items():
                row[name] = (int(str(row[name])) + sign * int(str(value))) & MASK


def message_is_missing(history: Mirrored) -> Row:
    """A store has one message less than the history should say."""
    row = history.random.choice(history.told())
    count_again(row, drop=history.random.choice(history.offsets_of(row)))
    return row


def message_is_doubled(history: Mirrored) -> Row:
    """A store was told of one message twice."""
    row = history.random.choice(history.told())
    count_again(row, add=history.random.choice(history.offsets_of(row)))
    return row


def one_for_another(history: Mirrored) -> Row:
    """One message is missing and another one is doubled: the count is right."""
    rows = [row for row in history.told() if len(history.offsets_of(row)) > 1]
    row = history.random.choice(rows)
    drop, add = history.random.sample(history.offsets_of(row), 2)
    count_again(row, drop=drop, add=add)
    return row


def begins_late(history: Mirrored) -> Row:
    """A range begins behind what it has to follow, and no gap names what lies between."""
    gaps = {store.name: store.gaps for store in history.stores}
    rows = [
        row for row in history.told()
        if len(history.offsets_of(row)) > 1
        and not any(gap[0] <= int(str(row["msg"])) <= gap[1] for gap in gaps[str(row["backend"])])
    ]  # fmt: skip
    row = history.random.choice(rows)
    row["msg"] = int(str(row["msg"])) + 1
    return row


def begins_early(history: Mirrored) -> Row:
    """A range has what another one has."""
    seen: set[object] = set()
    rows = []
    for row in history.told():
        if row["backend"] in seen:
            rows.append(row)
        seen.add(row["backend"])
    row = history.random.choice(rows)
    row["msg"] = int(str(row["msg"])) - 1
    return row


def minute_is_missing(history: Mirrored) -> Row:
    """A minute was never said, and later ones were."""
    last = {row["backend"]: row for row in history.told()}
    rows = [row for row in history.told() if row is not last[row["backend"]]]
    row = history.random.choice(rows)
    others = [
        each for each in history.rows
        if each["ev"] == "backend_told" and each["reason"] == DEAD_LETTERED
        and each["backend"] == row["backend"] and each["msg"] == row["msg"]
    ]  # fmt: skip
    found = dict(row)
    for each in (row, *others):
        keep = {name: each[name] for name in ("v", "node", "boot", "seq", "ts", "mono_ns", "actor")}
        each.clear()
        each.update(keep | {"ev": "gc_run"})
    return found


FAULTS: Final[dict[str, Callable[[Mirrored], Row]]] = {
    plant.__name__: plant
    for plant in (
        message_is_missing,
        message_is_doubled,
        one_for_another,
        begins_late,
        begins_early,
        minute_is_missing,
    )
}

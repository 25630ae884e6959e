"""The tables of a batch: which there are, and that two batches give what one gives."""

from collections import Counter

import pytest

from audit.analytics import tables as analytics
from tests.audit.conftest import History, Views
from tests.audit.numbers import Numbers

# Table -> the columns whose sums are the same however the history was cut.
ADDED_UP = {
    "books_minute": ("count",),
    "clients": ("connects", "takeovers", "lost", "messages", "total_bytes", "deliveries"),
    "drops": ("count",),
    "durations": ("count",),
    "moves": ("connects", "ends", "lost"),
    "retained": ("topics", "bytes"),
    "waste": ("expired",),
    "backlog": ("delta",),
    "fates": ("count",),
    "latency": ("count",),
    "storage": ("delta",),
}


def sums(numbers: Numbers, name: str) -> Counter[tuple[object, ...]]:
    """Return the sums of a table by all its other columns, without checksums and zeros."""
    found: Counter[tuple[object, ...]] = Counter()
    for row in numbers.rows(name):
        keys = tuple(
            (key, value)
            for key, value in row.items()
            if key not in ADDED_UP[name]
            and not key.startswith(("check", "total_", "expired_", "moment"))
        )
        for column in ADDED_UP[name]:
            found[(*keys, column)] += row[column] or 0
    return +found


@pytest.mark.parametrize("name", sorted(ADDED_UP))
def test_two_batches_give_what_one_gives(whole: Numbers, halves: Numbers, name: str) -> None:
    folders = sorted(path.name for path in (halves.out / "tables" / name).iterdir())
    assert folders == ["batch=0", "batch=1"]
    assert sums(halves, name) == sums(whole, name)
    assert sums(whole, name)


def test_numbers_accuse_nobody(whole: Numbers) -> None:
    assert whole.document["invariants"] == {}
    assert whole.document["status"] == "ok"


def test_without_messages_there_are_books_and_sessions_only(view: Views) -> None:
    history = History()
    history.boot(detail="books")
    history.row("books", stage="accepted", bin=history.time(-5), tenant="t", count=3,
                total_bytes=30, check1=6, check2=14)  # fmt: skip
    tables = analytics.tables(view(history))
    assert "latency" not in tables and "waste" not in tables
    assert [row.asDict() for row in tables["books_minute"].collect()] == [
        {"source": "broker", "tenant": "t", "minute": 1767323040000000, "stage": "accepted",
         "count": 3, "total_bytes": 30, "check1": 6, "check2": 14}
    ]  # fmt: skip

"""Rows are read past damage, in pages whose size follows the rows."""

import pytest

from broker.operations.looking.rows import (
    PAGE_BYTES_MAX,
    PAGE_FIRST,
    PROBLEMS_MAX,
    Problems,
    is_connected,
    readable_rows,
)
from storage.local.memory import MemoryStore
from storage.tables.tables import CONNECTIONS, RETAINED


def filled(count: int, value: bytes = b"v") -> MemoryStore:
    store = MemoryStore([RETAINED, CONNECTIONS])
    store.write([(RETAINED, b"%05d" % number, value) for number in range(count)])
    return store


@pytest.mark.parametrize("count", [0, 1, PAGE_FIRST, PAGE_FIRST + 1, 3000])
def test_every_row_comes_once_in_order(count: int) -> None:
    problems = Problems()
    rows = list(readable_rows(filled(count), RETAINED, b"", None, problems))
    assert [key for key, _ in rows] == [b"%05d" % number for number in range(count)]
    assert problems.count == 0


def test_a_range_ends_before_its_stop() -> None:
    rows = readable_rows(filled(30), RETAINED, b"00007", b"00009", Problems())
    assert [key for key, _ in rows] == [b"00007", b"00008"]


def test_a_family_that_is_not_there_yet_has_no_rows() -> None:
    assert list(readable_rows(MemoryStore(), RETAINED, b"", None, Problems())) == []


def test_large_rows_are_read_a_few_at_a_time() -> None:
    store = filled(40, bytes(PAGE_BYTES_MAX // 8))
    before = store.io_calls
    assert len(list(readable_rows(store, RETAINED, b"", None, Problems()))) == 40
    assert store.io_calls - before >= 40 // PAGE_FIRST


def test_small_rows_are_read_in_few_pages() -> None:
    store = filled(3000)
    before = store.io_calls
    assert len(list(readable_rows(store, RETAINED, b"", None, Problems()))) == 3000
    assert store.io_calls - before < 15


def test_damage_is_noted_and_hides_nothing_else() -> None:
    store = filled(20)
    store.damage(RETAINED, [b"00006"])
    problems = Problems()
    rows = list(readable_rows(store, RETAINED, b"", None, problems))
    assert len(rows) == 19
    (line,) = problems.lines()
    assert line.startswith("rows of retained: ")


def test_what_is_noted_cannot_disturb_the_terminal_and_has_a_limit() -> None:
    problems = Problems()
    for number in range(PROBLEMS_MAX + 3):
        problems.note(f"row \x1b[31m{number}", ValueError("bad\n"))
    lines = list(problems.lines())
    assert lines[0] == "row \\x1b[31m0: bad\\n"
    assert len(lines) == PROBLEMS_MAX + 1
    assert lines[-1] == "and 3 more that cannot be read"


def test_a_client_is_connected_while_its_row_is_there() -> None:
    store, problems = filled(0), Problems()
    store.write([(CONNECTIONS, b"boat", b"row"), (CONNECTIONS, b"lost", b"row")])
    store.damage(CONNECTIONS, [b"lost"])
    assert is_connected(store, "boat", problems)
    assert not is_connected(store, "away", problems)
    assert problems.count == 0
    assert not is_connected(store, "lost", problems)
    (line,) = problems.lines()
    assert line.startswith("connection of 'lost': ")

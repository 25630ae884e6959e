"""Does every event get the next number, in the batch it belongs to, and every book its minute?"""

import pytest

from session.history.recorder import BOOKS_CLOSED_MAX, HASHES_CHARACTERS_MAX, Ledger
from session.settings import Settings
from storage.api import Batch
from storage.history import events
from storage.history.packed_rows import HAS_COUNT, expand, shortened, unpack
from storage.local.memory import MemoryStore
from storage.tables.tables import BOOKS, FAMILIES, HISTORY, unseal

MINUTE = 60_000


def ledger(detail: str = "full", store: MemoryStore | None = None, **options: object) -> Ledger:
    settings = Settings()
    settings.history_detail = detail
    for name, value in options.items():
        setattr(settings, name, value)
    made = Ledger(settings)
    made.begin(3, 1000, store or MemoryStore(FAMILIES))
    return made


def rows(batch: Batch) -> list[dict[str, object]]:
    found: list[dict[str, object]] = []
    for family, _, value in batch:
        if family == HISTORY:
            assert value is not None
            found += expand(unpack(unseal(value, "history")), "n", 3)
    return found


def tell(book: Ledger, now: int, count: int) -> None:
    book.at(now)
    book.put(events.GC_RUN | HAS_COUNT, 0, 0, 0, 0, w9=count)


def test_events_are_numbered_without_holes_over_batches_and_milliseconds() -> None:
    book = ledger()
    first: Batch = []
    second: Batch = []
    for now in (1000, 1000, 1001):
        tell(book, now, now)
    book.seal(first, 1001)
    tell(book, 1002, 7)
    book.seal(second, 1002)
    assert [family for family, _, _ in first] == [HISTORY, HISTORY]  # one row a millisecond
    assert [event["seq"] for event in rows(first + second)] == [1, 2, 3, 4]
    assert [event["count"] for event in rows(first + second)] == [1000, 1000, 1001, 7]
    assert book.outbox_bytes == sum(len(v or b"") for f, _, v in first + second if f == HISTORY)


def test_what_waits_is_due_after_the_progress_delay_and_not_before() -> None:
    book = ledger(progress_delay_ms=200)
    assert book.next_deadline() is None
    tell(book, 1000, 1)
    assert book.next_deadline() == 1200
    assert not book.is_due(1199)
    assert book.is_due(1200)
    book.seal([], 1200)
    assert book.next_deadline() is None


def test_a_book_is_a_row_until_its_minute_is_over_and_then_events() -> None:
    book = ledger("books")
    batch: Batch = []
    account = book.book("tenant", 1000)
    book.count(account, events.STAGE_ACCEPTED, 2, 30, 5, 13)
    book.seal(batch, 1000)
    assert [family for family, _, _ in batch] == [BOOKS]
    assert not rows(batch)
    later: Batch = []
    book.count(book.book("tenant", MINUTE), events.STAGE_ACCEPTED, 1, 1, 7, 49)
    book.seal(later, MINUTE + 5000)
    (told,) = rows(later)
    assert told["ev"] == "books"
    assert (told["stage"], told["tenant"], told["bin"]) == ("accepted", "tenant", 0)
    assert (told["count"], told["total_bytes"]) == (2, 30)
    assert (told["check1"], told["check2"]) == (5, 13)
    assert (BOOKS, account.key(), None) in later  # in the very batch that tells


def test_what_comes_after_a_book_was_closed_is_told_as_a_row_more() -> None:
    book = ledger("books")
    account = book.book("", 1000)
    book.count(account, events.STAGE_ACCEPTED, 1, 10, 1, 1)
    book.seal([], 1000)
    book.seal([], MINUTE + 5000)
    book.count(account, events.STAGE_PUB_ACKED, 1, 10, 1, 1)
    book.seal([], MINUTE + 5001)
    last: Batch = []
    book.seal(last, 2 * MINUTE + 5000)
    assert [(event["stage"], event["count"]) for event in rows(last)] == [("pub_acked", 1)]


def test_books_that_a_crash_left_open_are_told_by_the_next_boot() -> None:
    store = MemoryStore(FAMILIES)
    book = ledger("books", store)
    book.count(book.book("a", 1000), events.STAGE_STORED, 4, 40, 10, 30)
    batch: Batch = []
    book.seal(batch, 1000)
    store.write(batch)
    again = ledger("books", store)
    again.count(again.book("a", 2000), events.STAGE_STORED, 1, 10, 5, 25)  # the same minute
    told: Batch = []
    again.seal(told, MINUTE + 5000)
    assert [(event["count"], event["check1"]) for event in rows(told)] == [(5, 15)]


def test_a_damaged_book_leaves_a_gap_and_stops_nobody() -> None:
    store = MemoryStore(FAMILIES)
    store.write([(BOOKS, b"12345678", b"damaged"), (BOOKS, b"87654321", b"")])
    book = ledger("books", store)
    batch: Batch = []
    book.seal(batch, 1000)
    (told,) = rows(batch)
    assert (told["ev"], told["reason"], told["count"]) == ("history_gap", 1055, 2)
    store.write(batch)
    assert store.scan(BOOKS, b"", count=9) == []


def test_many_books_are_closed_over_several_batches() -> None:
    book = ledger("books")
    for number in range(BOOKS_CLOSED_MAX + 10):
        book.count(book.book(f"t{number}", 1000), events.STAGE_ACCEPTED, 1, 1, 1, 1)
    book.seal([], 1000)
    closing: list[Batch] = [[], []]
    for batch in closing:
        book.seal(batch, MINUTE + 5000)
    assert [len(rows(batch)) for batch in closing] == [BOOKS_CLOSED_MAX, 10]


def test_a_gap_is_told_where_it_begins_and_how_much_it_hid_where_it_ends() -> None:
    book = ledger("full")
    account = book.book("", 1000)
    book.change(events.SAMPLED, 100, 1050, 1000, 5)
    book.count(account, events.STAGE_ACCEPTED, 30, 1, 1, 1)
    book.change(events.BOOKS_LEVEL, 1, 1050, 1000, 6)
    book.count(account, events.STAGE_ACCEPTED, 12, 1, 1, 1)
    book.change(events.FULL, 1, 1050, 1000, 7)
    book.change(events.FULL, 1, 1050, 1000, 7)
    batch: Batch = []
    book.seal(batch, 1000)
    told = [(e["reason"], e["count"], e["detail"], e["position"]) for e in rows(batch)]
    assert told == [
        (1053, 0, "sampled:1/100", 5),
        (1050, 30, "books", 6),
        (1053, 0, "books", 6),
        (1050, 12, "full", 7),
    ]
    assert book.suppressed == 42


def test_rows_that_were_thrown_away_are_counted() -> None:
    book = ledger("books")
    book.lost(17, 1051, 1000, 9)
    batch: Batch = []
    book.seal(batch, 1000)
    (told,) = rows(batch)
    assert (told["ev"], told["reason"], told["count"]) == ("history_gap", 1051, 17)


def test_hashed_names_can_be_compared_and_not_read() -> None:
    book = ledger("full", history_hash_names=True, history_hash_key="secret")
    for topic in ("a/b", "a/b", "c"):
        book.at(1000)
        names = book.name("client\0tenant") | book.text(topic)
        book.put(events.MSG_ACCEPTED, 1, 1, names, 5)
    batch: Batch = []
    book.seal(batch, 1000)
    told = rows(batch)
    topics = [event["topic"] for event in told]
    assert topics[0] == topics[1] != topics[2]
    assert {"a/b", "c"}.isdisjoint(topics)
    assert len({event["client_id"] for event in told}) == 1
    assert told[0]["client_id"] not in ("client", told[0]["tenant"])
    book.change(events.BOOKS_LEVEL, 1, 1050, 1000, 5)
    gap: Batch = []
    book.seal(gap, 1000)
    assert rows(gap)[0]["detail"] == "books"  # the audit has to understand it
    other = ledger("full", history_hash_names=True, history_hash_key="another")
    other.at(1000)
    other.put(events.MSG_ACCEPTED, 1, 1, other.text("a/b"), 5)
    again: Batch = []
    other.seal(again, 1000)
    assert rows(again)[0]["topic"] != topics[0]


def test_a_name_without_end_is_recorded_as_its_beginning_and_a_hash() -> None:
    """Can a client make the history grow by 128 KiB every millisecond?"""
    book = ledger("full")
    client_id, topic = "c" * 65_535, "t" * 65_535
    for now in (1000, 1001):
        book.at(now)
        book.put(events.MSG_ACCEPTED, 1, 1, book.name(f"{client_id}\0tenant") | book.text(topic), 5)
    book.put(events.BOOT, 0, 0, book.words("our own words"), 0)
    batch: Batch = []
    book.seal(batch, 1001)
    told = rows(batch)
    assert {event["client_id"] for event in told[:2]} == {shortened(client_id)}
    assert {event["topic"] for event in told[:2]} == {shortened(topic)} == {book.recorded(topic)}
    assert told[0]["tenant"] == "tenant"
    assert told[2]["detail"] == "our own words"
    assert book.outbox_bytes < 4096


@pytest.mark.parametrize("character", ["x", "\U0001f600"])
def test_a_row_has_no_more_than_a_mebibyte_of_names(character: str) -> None:
    book = ledger("full")
    for number in range(3000):
        book.at(1000)
        name = f"{number}".ljust(1000, character)
        book.put(events.MSG_DELIVERED, 1, 1, book.name(f"{name}\0"), 5)
    batch: Batch = []
    book.seal(batch, 1000)
    assert max(len(value or b"") for _, _, value in batch) < 1_500_000
    assert [event["seq"] for event in rows(batch)] == list(range(1, 3001))


def test_remembered_hashes_take_bounded_memory() -> None:
    book = ledger("full", history_hash_names=True, history_hash_key="secret")
    for number in range(200):
        book.recorded(f"{number}".ljust(65_535, "x"))
        assert sum(map(len, book._hashes)) <= HASHES_CHARACTERS_MAX + 65_535


def test_nothing_is_recorded_when_history_is_off() -> None:
    book = ledger("off")
    assert not (book.is_on or book.has_books or book.has_messages)


def test_books_wait_for_a_batch_from_the_moment_that_something_was_counted() -> None:
    """Messages at QoS 0 leave no row: nothing else has told the time."""
    book = ledger("books")
    book.count(book.book("t", 10_000), 0, 1, 5, 0, 0)
    book.count(book.book("t", 10_700), 0, 1, 5, 0, 0)
    assert book.next_deadline() == 11_000
    assert not book.is_due(10_999)
    book.seal([], 11_000)
    book.count(book.book("t", 11_001), 0, 1, 5, 0, 0)
    assert book.next_deadline() == 12_001


def test_where_nothing_is_recorded_nothing_waits_when_old_rows_are_thrown_away() -> None:
    book = ledger("off")
    book.lost(5, events.OUTBOX_TRIMMED, 2000, 0)
    assert book.next_deadline() is None
    assert book.suppressed == 5

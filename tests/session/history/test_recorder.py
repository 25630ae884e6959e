"""Does every event get the next number, in the batch it belongs to, and every made its minute?"""

import pytest

from session.history.recorder import BOOKS_CLOSED_MAX, HASHES_CHARACTERS_MAX, Recorder
from session.settings import Settings
from storage.api import Batch
from storage.history import events
from storage.history.packed_rows import HAS_COUNT, expand, shortened, unpack
from storage.local.memory import MemoryStore
from storage.tables.tables import BOOKS, FAMILIES, HISTORY, unseal

MINUTE = 60_000


def recorder(detail: str = "full", store: MemoryStore | None = None, **options: object) -> Recorder:
    settings = Settings()
    settings.history_detail = detail
    for name, value in options.items():
        setattr(settings, name, value)
    made = Recorder(settings)
    made.begin(3, 1000, store or MemoryStore(FAMILIES))
    return made


def rows(batch: Batch) -> list[dict[str, object]]:
    found: list[dict[str, object]] = []
    for family, _, value in batch:
        if family == HISTORY:
            assert value is not None
            found += expand(unpack(unseal(value, "history")), "n", 3)
    return found


def tell(made: Recorder, now: int, count: int) -> None:
    made.at(now)
    made.put(events.GC_RUN | HAS_COUNT, 0, 0, 0, 0, w9=count)


def test_events_are_numbered_without_holes_over_batches_and_milliseconds() -> None:
    made = recorder()
    first: Batch = []
    second: Batch = []
    for now in (1000, 1000, 1001):
        tell(made, now, now)
    made.seal(first, 1001)
    tell(made, 1002, 7)
    made.seal(second, 1002)
    assert [family for family, _, _ in first] == [HISTORY, HISTORY]  # one row a millisecond
    assert [event["seq"] for event in rows(first + second)] == [1, 2, 3, 4]
    assert [event["count"] for event in rows(first + second)] == [1000, 1000, 1001, 7]
    assert made.outbox_bytes == sum(len(v or b"") for f, _, v in first + second if f == HISTORY)


def test_what_waits_is_due_after_the_progress_delay_and_not_before() -> None:
    made = recorder(progress_delay_ms=200)
    assert made.next_deadline() is None
    tell(made, 1000, 1)
    assert made.next_deadline() == 1200
    assert not made.is_due(1199)
    assert made.is_due(1200)
    made.seal([], 1200)
    assert made.next_deadline() is None


def test_a_book_is_a_row_until_its_minute_is_over_and_then_events() -> None:
    made = recorder("books")
    batch: Batch = []
    account = made.book("tenant", 1000)
    made.count(account, events.STAGE_ACCEPTED, 2, 30, 5, 13)
    made.seal(batch, 1000)
    assert [family for family, _, _ in batch] == [BOOKS]
    assert not rows(batch)
    later: Batch = []
    made.count(made.book("tenant", MINUTE), events.STAGE_ACCEPTED, 1, 1, 7, 49)
    made.seal(later, MINUTE + 5000)
    (told,) = rows(later)
    assert told["ev"] == "books"
    assert (told["stage"], told["tenant"], told["bin"]) == ("accepted", "tenant", 0)
    assert (told["count"], told["total_bytes"]) == (2, 30)
    assert (told["check1"], told["check2"]) == (5, 13)
    assert (BOOKS, account.key(), None) in later  # in the very batch that tells


def test_what_comes_after_a_book_was_closed_is_told_as_a_row_more() -> None:
    made = recorder("books")
    account = made.book("", 1000)
    made.count(account, events.STAGE_ACCEPTED, 1, 10, 1, 1)
    made.seal([], 1000)
    made.seal([], MINUTE + 5000)
    made.count(account, events.STAGE_PUB_ACKED, 1, 10, 1, 1)
    made.seal([], MINUTE + 5001)
    last: Batch = []
    made.seal(last, 2 * MINUTE + 5000)
    assert [(event["stage"], event["count"]) for event in rows(last)] == [("pub_acked", 1)]


def test_books_that_a_crash_left_open_are_told_by_the_next_boot() -> None:
    store = MemoryStore(FAMILIES)
    made = recorder("books", store)
    made.count(made.book("a", 1000), events.STAGE_STORED, 4, 40, 10, 30)
    batch: Batch = []
    made.seal(batch, 1000)
    store.write(batch)
    again = recorder("books", store)
    again.count(again.book("a", 2000), events.STAGE_STORED, 1, 10, 5, 25)  # the same minute
    told: Batch = []
    again.seal(told, MINUTE + 5000)
    assert [(event["count"], event["check1"]) for event in rows(told)] == [(5, 15)]


def test_a_damaged_book_leaves_a_gap_and_stops_nobody() -> None:
    store = MemoryStore(FAMILIES)
    store.write([(BOOKS, b"12345678", b"damaged"), (BOOKS, b"87654321", b"")])
    made = recorder("books", store)
    batch: Batch = []
    made.seal(batch, 1000)
    (told,) = rows(batch)
    assert (told["ev"], told["reason"], told["count"]) == ("history_gap", 1055, 2)
    store.write(batch)
    assert store.scan(BOOKS, b"", count=9) == []


def test_many_books_are_closed_over_several_batches() -> None:
    made = recorder("books")
    for number in range(BOOKS_CLOSED_MAX + 10):
        made.count(made.book(f"t{number}", 1000), events.STAGE_ACCEPTED, 1, 1, 1, 1)
    made.seal([], 1000)
    closing: list[Batch] = [[], []]
    for batch in closing:
        made.seal(batch, MINUTE + 5000)
    assert [len(rows(batch)) for batch in closing] == [BOOKS_CLOSED_MAX, 10]


def test_at_the_end_the_books_of_the_present_minute_are_told_too() -> None:
    made = recorder("books")
    for number in range(BOOKS_CLOSED_MAX + 10):
        made.count(made.book(f"t{number}", 1000), events.STAGE_ACCEPTED, 1, 1, 1, 1)
    made.seal([], 1000)
    last: Batch = []
    made.end(last, 2000)
    made.seal(last, 2000)
    assert {event["ev"] for event in rows(last)} == {"books"}
    assert len(rows(last)) == BOOKS_CLOSED_MAX + 10
    assert sum(family == BOOKS and value is None for family, _, value in last) == len(rows(last))


def test_after_the_end_the_level_does_not_change() -> None:
    made = recorder("full")
    made.end([], 1000)
    made.change(events.BOOKS_LEVEL, 1, 1050, 1000, 5)
    batch: Batch = []
    made.seal(batch, 1000)
    assert rows(batch) == []


def test_a_gap_is_told_where_it_begins_and_how_much_it_hid_where_it_ends() -> None:
    made = recorder("full")
    account = made.book("", 1000)
    made.change(events.SAMPLED, 100, 1050, 1000, 5)
    made.count(account, events.STAGE_ACCEPTED, 30, 1, 1, 1)
    made.change(events.BOOKS_LEVEL, 1, 1050, 1000, 6)
    made.count(account, events.STAGE_ACCEPTED, 12, 1, 1, 1)
    made.change(events.FULL, 1, 1050, 1000, 7)
    made.change(events.FULL, 1, 1050, 1000, 7)
    batch: Batch = []
    made.seal(batch, 1000)
    told = [(e["reason"], e["count"], e["detail"], e["position"]) for e in rows(batch)]
    assert told == [
        (1053, 0, "sampled:1/100", 5),
        (1050, 30, "books", 6),
        (1053, 0, "books", 6),
        (1050, 12, "full", 7),
    ]
    assert made.suppressed == 42


def gaps(made: Recorder) -> list[tuple[object, object, object]]:
    batch: Batch = []
    made.seal(batch, 1000)
    return [(event["reason"], event["count"], event["detail"]) for event in rows(batch)]


def test_another_level_that_is_asked_for_is_recorded_as_a_change_and_no_gap() -> None:
    made = recorder("books")
    made.want(events.BOOKS_LEVEL, 1, 1000, 5)  # as before
    made.want(events.FULL, 1, 1000, 6)
    assert made.is_full
    made.want(events.SAMPLED, 10, 1000, 7)
    made.want(events.SAMPLED, 20, 1000, 8)
    assert (made.has_messages, made.sample) == (True, 20)
    told = [(1054, 0, "full"), (1054, 0, "sampled:1/10"), (1054, 0, "sampled:1/20")]
    assert gaps(made) == told
    made.change(events.BOOKS_LEVEL, 1, 1050, 1000, 9)
    made.change(events.SAMPLED, 20, 1050, 1000, 9)
    assert [(reason, detail) for reason, _, detail in gaps(made)] == [
        (1053, "books"),
        (1050, "sampled:1/20"),
    ]


def test_a_level_that_was_lowered_stays_until_it_is_restored() -> None:
    made = recorder("full")
    account = made.book("", 1000)
    made.change(events.BOOKS_LEVEL, 1, 1050, 1000, 5)
    made.count(account, events.STAGE_ACCEPTED, 30, 1, 1, 1)
    made.want(events.SAMPLED, 10, 1000, 6)
    assert not made.has_messages
    made.change(events.SAMPLED, 10, 1050, 1000, 7)
    assert gaps(made) == [(1053, 0, "books"), (1050, 30, "sampled:1/10")]


def test_asking_for_the_level_that_was_lowered_to_ends_the_gap() -> None:
    made = recorder("full")
    account = made.book("", 1000)
    made.change(events.BOOKS_LEVEL, 1, 1050, 1000, 5)
    made.count(account, events.STAGE_ACCEPTED, 30, 1, 1, 1)
    made.want(events.BOOKS_LEVEL, 1, 1000, 6)
    made.change(events.BOOKS_LEVEL, 1, 1050, 1000, 7)
    assert gaps(made) == [(1053, 0, "books"), (1054, 30, "books")]
    assert made.suppressed == 30


def test_rows_that_were_thrown_away_are_counted() -> None:
    made = recorder("books")
    made.lost(17, 0, 1051, 1000, 9)
    batch: Batch = []
    made.seal(batch, 1000)
    (told,) = rows(batch)
    assert (told["ev"], told["reason"], told["count"]) == ("history_gap", 1051, 17)


def test_hashed_names_can_be_compared_and_not_read() -> None:
    made = recorder("full", history_hash_names=True, history_hash_key="secret")
    for topic in ("a/b", "a/b", "c"):
        made.at(1000)
        names = made.name("client\0tenant") | made.text(topic)
        made.put(events.MSG_ACCEPTED, 1, 1, names, 5)
    batch: Batch = []
    made.seal(batch, 1000)
    told = rows(batch)
    topics = [event["topic"] for event in told]
    assert topics[0] == topics[1] != topics[2]
    assert {"a/b", "c"}.isdisjoint(topics)
    assert len({event["client_id"] for event in told}) == 1
    assert told[0]["client_id"] not in ("client", told[0]["tenant"])
    made.change(events.BOOKS_LEVEL, 1, 1050, 1000, 5)
    gap: Batch = []
    made.seal(gap, 1000)
    assert rows(gap)[0]["detail"] == "books"  # the audit has to understand it
    other = recorder("full", history_hash_names=True, history_hash_key="another")
    other.at(1000)
    other.put(events.MSG_ACCEPTED, 1, 1, other.text("a/b"), 5)
    again: Batch = []
    other.seal(again, 1000)
    assert rows(again)[0]["topic"] != topics[0]


def test_a_name_without_end_is_recorded_as_its_beginning_and_a_hash() -> None:
    """Can a client make the history grow by 128 KiB every millisecond?"""
    made = recorder("full")
    client_id, topic = "c" * 65_535, "t" * 65_535
    for now in (1000, 1001):
        made.at(now)
        made.put(events.MSG_ACCEPTED, 1, 1, made.name(f"{client_id}\0tenant") | made.text(topic), 5)
    made.put(events.BOOT, 0, 0, made.words("our own words"), 0)
    batch: Batch = []
    made.seal(batch, 1001)
    told = rows(batch)
    assert {event["client_id"] for event in told[:2]} == {shortened(client_id)}
    assert {event["topic"] for event in told[:2]} == {shortened(topic)} == {made.recorded(topic)}
    assert told[0]["tenant"] == "tenant"
    assert told[2]["detail"] == "our own words"
    assert made.outbox_bytes < 4096


@pytest.mark.parametrize("character", ["x", "\U0001f600"])
def test_a_row_has_no_more_than_a_mebibyte_of_names(character: str) -> None:
    made = recorder("full")
    for number in range(3000):
        made.at(1000)
        name = f"{number}".ljust(1000, character)
        made.put(events.MSG_DELIVERED, 1, 1, made.name(f"{name}\0"), 5)
    batch: Batch = []
    made.seal(batch, 1000)
    assert max(len(value or b"") for _, _, value in batch) < 1_500_000
    assert [event["seq"] for event in rows(batch)] == list(range(1, 3001))


def test_remembered_hashes_take_bounded_memory() -> None:
    made = recorder("full", history_hash_names=True, history_hash_key="secret")
    for number in range(200):
        made.recorded(f"{number}".ljust(65_535, "x"))
        assert sum(map(len, made._hashes)) <= HASHES_CHARACTERS_MAX + 65_535


def test_nothing_is_recorded_when_history_is_off() -> None:
    made = recorder("off")
    assert not (made.is_on or made.has_books or made.has_messages)


def test_books_wait_for_a_batch_from_the_moment_that_something_was_counted() -> None:
    """Messages at QoS 0 leave no row: nothing else has told the time."""
    made = recorder("books")
    made.count(made.book("t", 10_000), 0, 1, 5, 0, 0)
    made.count(made.book("t", 10_700), 0, 1, 5, 0, 0)
    assert made.next_deadline() == 11_000
    assert not made.is_due(10_999)
    made.seal([], 11_000)
    made.count(made.book("t", 11_001), 0, 1, 5, 0, 0)
    assert made.next_deadline() == 12_001


def test_where_nothing_is_recorded_nothing_waits_when_old_rows_are_thrown_away() -> None:
    made = recorder("off")
    made.lost(5, 0, events.OUTBOX_TRIMMED, 2000, 0)
    assert made.next_deadline() is None
    assert made.suppressed == 5

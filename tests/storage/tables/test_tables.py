"""Are the keys and values of the state what is on disk, in the order that look-ups rely on?"""

import contextlib
import random
from pathlib import Path

import pytest

from storage.api import Batch
from storage.errors import CorruptRecord, DamagedRows
from storage.local.memory import MemoryStore
from storage.local.rocks import RocksStore
from storage.tables import tables
from tests.storage.log_cases import golden

KEYS = {
    "client prefix": tables.client_prefix("clïent"),
    "subscription": tables.subscription_key("c", "a/+/#"),
    "shared subscription": tables.subscription_key("c", "$share/g/t"),
    "incoming": tables.incoming_key("c", 65_535),
    "mailbox": tables.mailbox_key("c", 2**40),
    "session holder": tables.holder_key(258, tables.session_holder("c")),
    "backend holder": tables.holder_key(258, tables.backend_holder("cache")),
    "group holder": tables.holder_key(258, tables.group_holder("g")),
    "group": tables.group_key("g", "a/+/#"),
    "retained": tables.retained_key("täg/a/b"),
    "retained with empty levels": tables.retained_key("//a/"),
}

VALUES = {
    "sealed": tables.seal(b"body"),
    "filter": tables.encode_filter(258, 70_000),
    "since": tables.encode_since(2**40),
    "totals": tables.Totals(3, 2**40, 70_000, 259).encode(),
    "totals of a new store": tables.Totals().encode(),
    "boot": tables.encode_boot(70_000, 2**33),
}


@pytest.mark.parametrize("case", KEYS)
def test_the_keys_are_those_on_disk(case: str) -> None:
    assert KEYS[case].hex() == golden("state-keys.hex")[case].hex()


@pytest.mark.parametrize("case", VALUES)
def test_the_values_are_those_on_disk(case: str) -> None:
    assert VALUES[case].hex() == golden("state-values.hex")[case].hex()


def test_the_families_are_those_on_disk() -> None:
    assert tables.FAMILIES == (
        "meta",
        "sessions",
        "subscriptions",
        "holders",
        "filters",
        "incoming",
        "mailbox",
        "groups",
        "retained",
        "due",
        "connections",
        "history",
        "books",
        "feed",
        "backends",
        "presence",
        "dead_letters",
        "fetches",
        "bans",
    )


# Seals


def test_a_sealed_value_comes_back() -> None:
    for body in (b"", b"\0", b"x" * 100_000):
        assert tables.unseal(tables.seal(body), "thing") == body


def test_every_flipped_bit_and_every_truncation_is_noticed() -> None:
    value = tables.seal(b"body of a row")
    for position in range(len(value)):
        for bit in range(8):
            damaged = bytearray(value)
            damaged[position] ^= 1 << bit
            with pytest.raises(CorruptRecord, match="thing"):
                tables.unseal(bytes(damaged), "thing")
    for size in range(len(value)):
        with pytest.raises(CorruptRecord):
            tables.unseal(value[:size], "thing")


def test_the_damaged_row_is_named() -> None:
    with pytest.raises(CorruptRecord, match="session 'c': value of 3 bytes"):
        tables.unseal(b"abc", "session 'c'")


# Keys


def test_a_new_store_has_seen_no_start_of_a_broker() -> None:
    store = MemoryStore([tables.META])
    assert tables.load_boot(store) == (0, 0)
    store.write([(tables.META, tables.BOOT_KEY, VALUES["boot"])])
    assert tables.load_boot(store) == (70_000, 2**33)


@pytest.mark.parametrize("body", [b"", b"\1" + 7 * b"\0", b"\2" + 8 * b"\0", b"\1" + 9 * b"\0"])
def test_a_count_of_starts_that_is_not_ours_is_refused(body: bytes) -> None:
    store = MemoryStore([tables.META])
    store.write([(tables.META, tables.BOOT_KEY, tables.seal(body))])
    with pytest.raises(CorruptRecord, match="boot: version"):
        tables.load_boot(store)


def test_rows_of_one_client_are_neighbours_whatever_other_clients_are_called() -> None:
    source = random.Random(7)
    names = ["c", "c!", "c ", "ca", "b", "\x01", "c\x01", "ç"]
    store = MemoryStore([tables.SUBSCRIPTIONS])
    rows: Batch = [
        (tables.SUBSCRIPTIONS, tables.subscription_key(name, f), b"v")
        for name in names
        for f in ("a", "#", "+/b")
    ]
    source.shuffle(rows)
    store.write(rows)
    for name in names:
        found = tables.scan_prefix(store, tables.SUBSCRIPTIONS, tables.client_prefix(name))
        assert sorted(key for key, _ in found) == sorted(
            tables.subscription_key(name, f) for f in ("a", "#", "+/b")
        )


def test_a_long_scan_goes_page_by_page_and_misses_nothing() -> None:
    store = MemoryStore([tables.MAILBOX])
    count = 2 * tables.SCAN_PAGE + 1
    store.write([(tables.MAILBOX, tables.mailbox_key("c", n), b"") for n in range(count)])
    store.write([(tables.MAILBOX, tables.mailbox_key("d", 1), b"")])
    found = list(tables.scan_prefix(store, tables.MAILBOX, tables.client_prefix("c")))
    assert [key for key, _ in found] == [tables.mailbox_key("c", n) for n in range(count)]
    assert len(list(tables.scan_all(store, tables.MAILBOX, b"", None))) == count + 1


@pytest.mark.parametrize("stop", [None, b"3", b"4", b"5", b"9"])
def test_rows_that_cannot_be_read_are_passed_over_up_to_the_end_and_told_once(
    stop: bytes | None,
) -> None:
    store = MemoryStore([tables.MAILBOX])
    rows = [(b"%d" % number, b"value") for number in range(8)]
    store.write([(tables.MAILBOX, key, value) for key, value in rows])
    store.damage(tables.MAILBOX, [b"2", b"3", b"4"])
    damages: list[DamagedRows] = []
    found = tables.scan_readable(store, tables.MAILBOX, b"", stop, damages, count=99)
    sound = rows[:2] + rows[5:]
    assert found == [row for row in sound if stop is None or row[0] < stop]
    assert [damage.start for damage in damages] == [b"2"]


def test_rows_before_damage_that_has_no_end_are_found(tmp_path: Path) -> None:
    store = RocksStore(tmp_path / "db", families=[tables.MAILBOX])
    source = random.Random(1)
    rows = [(b"%05d" % number, source.randbytes(50)) for number in range(3000)]
    store.write([(tables.MAILBOX, key, value) for key, value in rows])
    store.flush()
    store.close()
    value = rows[2000][1]
    (table,) = (file for file in (tmp_path / "db").glob("*.sst") if value in file.read_bytes())
    content = bytearray(table.read_bytes())
    content[content.index(value)] ^= 1
    table.write_bytes(content)
    with contextlib.closing(RocksStore(tmp_path / "db")) as store:
        damages: list[DamagedRows] = []
        found = tables.scan_readable(store, tables.MAILBOX, b"", b"02000", damages, count=9999)
        assert 1900 < len(found) < 2000 and found == rows[: len(found)]
        assert [damage.resume for damage in damages] == [None]


def test_mailbox_rows_sort_by_number_and_holders_by_filter() -> None:
    numbers = [1, 2, 255, 256, 65_536, 2**40]
    keys = [tables.mailbox_key("c", number) for number in numbers]
    assert keys == sorted(keys)
    keys = [tables.holder_key(number, tables.session_holder("c")) for number in numbers]
    assert keys == sorted(keys)


def test_sessions_and_groups_are_told_apart_among_holders() -> None:
    assert tables.session_holder("x") != tables.group_holder("x")
    assert tables.prefix_end(tables.holder_key(7, b"c")) < tables.holder_key(7, b"g")


@pytest.mark.parametrize(
    ("share_name", "topic_filter"), [("g", "t"), ("gröup", "a/+/#"), ("g", "/")]
)
def test_a_group_key_is_taken_apart_again(share_name: str, topic_filter: str) -> None:
    key = tables.group_key(share_name, topic_filter)
    assert tables.split_group_key(key) == (share_name, topic_filter)


@pytest.mark.parametrize("topic", ["t", "a/b", "/", "//a", "a/", "täg/☃", "$SYS/x", "a b/!"])
def test_a_retained_key_gives_the_topic_back(topic: str) -> None:
    assert tables.retained_topic(tables.retained_key(topic)) == topic


def test_all_topics_below_a_level_are_neighbours() -> None:
    topics = ["a", "a/", "a/b", "a/b/c", "a/c", "a!", "a b", "a\x01/b", "ab", "b"]
    keys = sorted(tables.retained_key(topic) for topic in topics)
    below = [key for key in keys if key == b"a" or key.startswith(b"a\0")]
    first = keys.index(below[0])
    assert keys[first : first + len(below)] == below
    assert [tables.retained_topic(key) for key in below] == ["a", "a/", "a/b", "a/b/c", "a/c"]


# Values


def test_a_filter_row_comes_back_and_a_wrong_one_does_not() -> None:
    assert tables.decode_filter(tables.encode_filter(258, 70_000)) == (258, 70_000)
    for body in (b"", b"\x02" + bytes(12), bytes(13) + b"\0"):
        with pytest.raises(CorruptRecord, match="filter: version"):
            tables.decode_filter(tables.seal(body))


def test_totals_come_back() -> None:
    store = MemoryStore([tables.META])
    assert tables.load_totals(store).next_filter_id == 1
    store.write([(tables.META, tables.TOTALS_KEY, VALUES["totals"])])
    totals = tables.load_totals(store)
    assert (totals.sessions, totals.retained, totals.subscriptions, totals.next_filter_id) == (
        3,
        2**40,
        70_000,
        259,
    )


@pytest.mark.parametrize("body", [b"", b"\x02" + bytes(32), b"\x01" + bytes(33)])
def test_totals_of_another_version_or_size_are_refused(body: bytes) -> None:
    store = MemoryStore([tables.META])
    store.write([(tables.META, tables.TOTALS_KEY, tables.seal(body))])
    with pytest.raises(CorruptRecord, match="totals: version"):
        tables.load_totals(store)


# The format of the whole store


def test_a_new_store_is_marked_with_our_format() -> None:
    store = MemoryStore([tables.META])
    batch: Batch = []
    tables.check_format(store, batch)
    assert batch == [(tables.META, b"format", tables.seal(b"\x00\x01"))]
    store.write(batch)
    again: Batch = []
    tables.check_format(store, again)
    assert again == []


def test_a_store_of_a_later_format_is_refused() -> None:
    store = MemoryStore([tables.META])
    store.write([(tables.META, tables.FORMAT_KEY, tables.seal(b"\x00\x02"))])
    with pytest.raises(CorruptRecord, match="data format 2"):
        tables.check_format(store, [])


def test_a_damaged_mark_is_refused() -> None:
    store = MemoryStore([tables.META])
    store.write([(tables.META, tables.FORMAT_KEY, b"\x00\x00\x00\x00\x00\x01")])
    with pytest.raises(CorruptRecord, match="format"):
        tables.check_format(store, [])

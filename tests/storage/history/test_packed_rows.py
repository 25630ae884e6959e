"""Is what a tick recorded read back exactly, and does each record mean what it should?"""

from typing import Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage.errors import CorruptRecord
from storage.history import events, packed_rows
from storage.tables import tables
from tests.storage.history.history_cases import (
    BOOT,
    BOOT_MS,
    NODE,
    NOW_MS,
    Tick,
    everything_else,
    numbers,
    run_of_messages,
    stores,
    ticks,
    told,
)
from tests.storage.log_cases import golden

GOLDEN: Final = "history-row-v1.hex"
TICKS: Final = {
    "messages": run_of_messages,
    "others": everything_else,
    "stores": stores,
    "nothing": Tick,
}
REASON: Final = packed_rows.REASON_SHIFT


@pytest.mark.parametrize("case", TICKS)
def test_the_bytes_are_those_of_the_golden_file(case: str) -> None:
    assert TICKS[case]().pack(77) == golden(GOLDEN)[case]


def test_the_golden_file_has_no_case_of_which_nothing_is_known() -> None:
    assert golden(GOLDEN).keys() == {*TICKS, "key"}


def test_the_key_is_that_of_the_golden_file_and_comes_back() -> None:
    key = packed_rows.history_key(258, 70_000)
    assert key == golden(GOLDEN)["key"]
    assert packed_rows.split_history_key(key) == (258, 70_000)


def test_keys_sort_by_boot_and_then_by_seq() -> None:
    pairs = [(boot, seq) for boot in (0, 1, 255, 256, 2**32 - 1) for seq in (0, 1, 256, 2**64 - 1)]
    assert sorted(pairs, key=lambda pair: packed_rows.history_key(*pair)) == pairs


def test_a_long_name_is_its_beginning_and_a_hash_of_all_of_it() -> None:
    assert packed_rows.shortened("x" * 1024) == "x" * 1024
    assert packed_rows.shortened("x" * 1025) == "x" * 256 + "...a01ae43d91eeec1b32769f601d6ad377"


@pytest.mark.parametrize("key", [b"", bytes(11), bytes(13)])
def test_a_key_of_another_size_is_refused(key: bytes) -> None:
    with pytest.raises(ValueError, match="expected 12"):
        packed_rows.split_history_key(key)


@settings(derandomize=True, deadline=None)
@given(ticks())
def test_a_tick_comes_back(tick: Tick) -> None:
    row = tick.row(5)
    assert list(row.words) == tick.words
    assert list(row.extras) == tick.extras
    assert row.names == tick.names
    assert (row.now_ms, row.boot_ms, row.first_seq) == (NOW_MS, BOOT_MS, 5)
    again = packed_rows.pack(
        NOW_MS, BOOT_MS, 5, row.events, list(row.words), list(row.extras), row.names
    )
    assert again == tick.pack(5)


@settings(derandomize=True, deadline=None)
@given(ticks())
def test_a_tick_expands_to_as_many_events_as_were_counted_with_every_column(tick: Tick) -> None:
    row = tick.row(5)
    columns = [name for name, _ in events.COLUMNS]
    expanded = list(packed_rows.expand(row, NODE, BOOT))
    assert [flat["seq"] for flat in expanded] == list(range(5, 5 + row.events))
    assert all(list(flat) == columns for flat in expanded)


def test_every_event_carries_the_envelope() -> None:
    for flat in packed_rows.expand(run_of_messages().row(), NODE, BOOT):
        assert (flat["v"], flat["node"], flat["boot"]) == (events.SCHEMA_VERSION, NODE, BOOT)
        assert (flat["ts"], flat["mono_ns"]) == (NOW_MS * 1000, 3_600_000 * 10**6)


# What is damaged is never believed


@pytest.mark.parametrize("case", TICKS)
def test_every_flipped_bit_of_a_sealed_row_is_noticed(case: str) -> None:
    value = tables.seal(TICKS[case]().pack())
    for bit in range(8 * len(value)):
        damaged = bytearray(value)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CorruptRecord):
            tables.unseal(bytes(damaged), "row")


@pytest.mark.parametrize("case", TICKS)
def test_every_truncation_is_noticed_even_without_a_checksum(case: str) -> None:
    body = TICKS[case]().pack()
    for size in range(len(body)):
        with pytest.raises(ValueError, match="history row: "):
            packed_rows.unpack(body[:size])
        with pytest.raises(CorruptRecord):
            tables.unseal(tables.seal(body)[:size], "row")
    with pytest.raises(ValueError, match="1 bytes left over"):
        packed_rows.unpack(body + b"\0")


@settings(derandomize=True, deadline=None)
@given(ticks(), st.data())
def test_a_damaged_row_without_a_checksum_is_refused_or_expands(
    tick: Tick, data: st.DataObject
) -> None:
    body = bytearray(tick.pack())
    at = data.draw(st.integers(0, len(body) - 1))
    body[at] ^= data.draw(st.integers(1, 255))
    try:
        row = packed_rows.unpack(bytes(body))
    except ValueError:
        return
    assert sum(1 for _ in packed_rows.expand(row, NODE, BOOT)) == row.events


def test_another_version_is_refused() -> None:
    with pytest.raises(ValueError, match="version 02 of 41 bytes, expected 1"):
        packed_rows.unpack(b"\x02" + Tick().pack()[1:])


def test_a_wrong_count_of_events_is_refused() -> None:
    tick = run_of_messages()
    body = packed_rows.pack(NOW_MS, BOOT_MS, 1, 16, tick.words, tick.extras, tick.names)
    with pytest.raises(ValueError, match="17 events, expected 16"):
        packed_rows.unpack(body)


BOOKS_UNKNOWN: Final = events.BOOKS | 99 << REASON
ACCEPTED: Final = events.MSG_ACCEPTED
DELIVERED: Final = events.MSG_DELIVERED
STATE: Final = events.SESSION_RESUMED | packed_rows.HAS_SESSION_STATE


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({0: 255}, "event 255 is not known"),
        ({0: 0}, "event 0 is not known"),
        ({0: ACCEPTED | 1 << 61}, "flags .* are not known"),
        ({0: ACCEPTED | 1 << 37}, "flags .* are not known"),
        ({0: ACCEPTED - 2**63}, "flags .* are not known"),
        ({0: events.BOOKS | packed_rows.HAS_COUNT}, "flags .* are not known"),
        ({0: ACCEPTED | 9 << packed_rows.ACTOR_SHIFT}, "actor 9 is not known"),
        ({0: ACCEPTED | 2**15 << REASON}, "reason or stage 32768 is not known"),
        ({0: BOOKS_UNKNOWN}, "reason or stage 99 is not known"),
        ({0: ACCEPTED | 128 << packed_rows.PROTO_SHIFT}, "protocol version 128"),
        ({0: ACCEPTED | packed_rows.HAS_MSG | packed_rows.HAS_POSITION}, ".* two meanings"),
        ({0: ACCEPTED | packed_rows.HAS_EXPIRY | packed_rows.HAS_AT}, ".* two meanings"),
        ({0: ACCEPTED | packed_rows.HAS_BYTES | packed_rows.HAS_STREAM}, ".* two meanings"),
        ({0: ACCEPTED | packed_rows.HAS_COUNT}, ".* two meanings"),
        ({5: 0}, "stands for 0 events"),
        ({5: -1}, "stands for -1 events"),
        ({0: events.BOOKS, 5: 2}, "stands for 2 events"),
        ({3: 3}, "name 3 of 2"),
        ({3: 3 << packed_rows.TEXT_SHIFT}, "name 3 of 2"),
        ({3: 3 << packed_rows.TEXT2_SHIFT}, "name 3 of 2"),
        ({3: -1}, "name 1048575 of 2"),
        ({0: DELIVERED | packed_rows.HAS_PID, 6: 65_536}, "packet id 65536"),
        ({0: DELIVERED | packed_rows.HAS_PID, 5: 2, 6: ~5}, "packet id -6"),
        ({0: DELIVERED | packed_rows.HAS_PID, 5: 2, 6: ~4}, "a packet id above 65535"),
        ({0: DELIVERED | packed_rows.HAS_BYTES, 7: 2**31}, "payload of 2147483648 bytes"),
        ({0: DELIVERED | packed_rows.HAS_BYTES, 5: 2, 7: ~5}, "payload of -6 bytes"),
        ({0: DELIVERED | packed_rows.HAS_BYTES, 5: 2, 7: ~4}, "a payload above 2 GiB"),
        ({0: STATE, 7: 0}, "state of the session at -1"),
        ({0: STATE, 7: ~2}, "state of the session at 2 of 6"),
        ({0: STATE, 7: ~1}, "state of the session holds 4294967296"),
        ({9: 1}, "filter ids at -2"),
        ({9: ~6}, "filter ids at 6"),
        ({9: ~4}, "filter ids at 4"),
        ({9: ~5}, "filter ids at 5"),
        ({0: DELIVERED | packed_rows.HAS_MSG, 9: 1}, "message ids at -2"),
        ({0: DELIVERED | packed_rows.HAS_MSG, 5: 2, 9: ~5}, "message ids at 5"),
    ],
)
def test_a_record_without_a_meaning_is_refused(words: dict[int, int], message: str) -> None:
    record = [ACCEPTED, 0, 0, 0, 0, 1, 0, 0, 0, 0]
    for at, word in words.items():
        record[at] = word
    extras = [0, 0, 2**32, 0, 2**32, 1]
    body = packed_rows.pack(NOW_MS, BOOT_MS, 1, 1, record, extras, ["a\0", "b"])
    with pytest.raises(ValueError, match=f"record 0: {message}"):
        packed_rows.unpack(body)


def test_a_name_that_is_not_utf8_is_refused() -> None:
    body = packed_rows.pack(NOW_MS, BOOT_MS, 1, 0, [], [], ["aa"])
    with pytest.raises(ValueError, match="utf-8"):
        packed_rows.unpack(body.replace(b"aa", b"\xff\xff"))


# What records mean


def test_a_run_of_messages_is_every_message_of_it() -> None:
    expanded = told(run_of_messages().row())
    publisher = {
        "tenant": "plant",
        "client_id": "sensor",
        "session": 70,
        "conn": 9,
    }
    accepted = [
        {
            "seq": 1 + i,
            "ev": "msg_accepted",
            **publisher,
            "actor": "client",
            "msg": 500 + i,
            "pub": 70,
            "topic": "täg/☃",
            "pid": pid,
            "pub_qos": 1,
            "dup": False,
            "retain": False,
            "bytes": 128,
            "order": 500 + i,
        }
        for i, pid in enumerate((65_534, 65_535, 1))
    ]
    assert expanded[:3] == accepted
    enqueued = [
        {
            "seq": 4 + i,
            "ev": "msg_enqueued",
            "actor": "broker",
            "msg": 500 + i // 2,
            "stream": 31 + i % 2,
        }
        for i in range(6)
    ]
    assert expanded[3:9] == enqueued
    assert [(f["seq"], f["ev"], f["actor"], f["msg"]) for f in expanded[9:12]] == [
        (10 + i, "msg_persisted", "storage", 500 + i) for i in range(3)
    ]
    acked = {"ev": "pub_acked", **publisher, "actor": "broker", "reason": 16, "pub_qos": 1}
    assert expanded[12:15] == [
        {"seq": 13, **acked, "msg": 500, "pid": 65_534},
        {"seq": 14, **acked, "pid": 65_535},
        {"seq": 15, **acked, "msg": 502, "pid": 1},
    ]
    delivered = {
        "ev": "msg_delivered",
        "tenant": "",
        "client_id": "reader",
        "session": 71,
        "conn": 10,
        "actor": "broker",
        "qos": 1,
        "dup": True,
        "retain": False,
        "share": "group",
        "attempt": 2,
    }
    assert expanded[15:] == [
        {"seq": 16, **delivered, "msg": 500, "pid": 1},
        {"seq": 17, **delivered, "msg": 502, "pid": 2},
    ]


READER: Final = {"tenant": "", "client_id": "reader", "session": 71, "actor": "broker"}
SENSOR: Final = {"tenant": "plant", "client_id": "sensor", "actor": "broker"}


def test_session_events_fill_their_columns() -> None:
    expanded = told(everything_else().row())
    assert expanded[0] == {
        **READER,
        "seq": 1,
        "ev": "session_resumed",
        "conn": 10,
        "actor": "client",
        "expiry_s": 2**32 - 1,
        "sp": True,
        "clean_start": False,
        "rmax": 20,
        "proto": 5,
        "subs": 2,
        "inflight": 1,
        "position": 499,
        "subs_check": 2**33,
    }
    assert expanded[1] == {
        **READER,
        "seq": 2,
        "ev": "session_disconnected",
        "conn": 0,
        "reason": 1002,
        "expiry_s": 60,
        "subs": 2,
        "inflight": 1,
        "position": 499,
        "at": (NOW_MS - 7) * 1000,
    }
    assert expanded[2] == {
        **READER,
        "seq": 3,
        "ev": "subscribed",
        "conn": 10,
        "tfilter": "$share/group/a/+",
        "qos": 2,
        "share": "group",
        "stream": 31,
        "position": 400,
        "no_local": True,
    }


def test_ranges_wills_and_retained_messages_fill_their_columns() -> None:
    assert told(everything_else().row())[3:6] == [
        {
            **READER,
            "seq": 4,
            "ev": "msg_dropped",
            "conn": 0,
            "reason": 1027,
            "msg": 300,
            "count": 12,
            "msg_last": 350,
        },
        {
            **SENSOR,
            "seq": 5,
            "ev": "will_delayed",
            "session": 70,
            "conn": 0,
            "at": (NOW_MS + 5000) * 1000,
        },
        {
            **SENSOR,
            "seq": 6,
            "ev": "retained_set",
            "msg": 501,
            "pub": 70,
            "topic": "a/b",
            "qos": 0,
            "bytes": 3,
            "at": NOW_MS * 1000,
        },
    ]


def test_events_of_the_broker_and_books_fill_their_columns() -> None:
    assert told(everything_else().row())[6:] == [
        {
            "seq": 7,
            "ev": "boot",
            "actor": "broker",
            "position": 499,
            "count": 12_345,
            "detail": "books",
        },
        {
            "seq": 8,
            "ev": "books",
            "tenant": "plant",
            "actor": "broker",
            "count": 10,
            "stage": "delivered",
            "bin": (NOW_MS - NOW_MS % 60_000) * 1000,
            "total_bytes": 1280,
            "check1": 2**61 - 1,
            "check2": 2**60,
        },
    ]


@pytest.mark.parametrize("ev", [events.RETAINED_CLEARED, events.RETAINED_EXPIRED])
def test_who_touched_a_retained_message_is_its_publisher_and_no_session(ev: int) -> None:
    tick = Tick()
    tick.record(ev, text="a/b", words={1: 70})
    tick.record(ev, text="a/b")
    published, nobody = told(tick.row())
    assert published["pub"] == 70 and "session" not in published and "conn" not in published
    assert "pub" not in nobody


def test_packet_ids_of_a_run_go_on_at_one_after_the_last() -> None:
    tick = Tick()
    tick.record(
        events.PUB_COMPLETED, packed_rows.HAS_PID, n=3, words={1: 7, 6: packed_rows.PID_MAX}
    )
    assert [flat["pid"] for flat in told(tick.row())] == [65_535, 1, 2]


def test_qos_0_has_packet_id_zero_however_many_messages() -> None:
    tick = Tick()
    tick.record(
        events.MSG_DELIVERED, packed_rows.HAS_PID | packed_rows.HAS_MSG, n=2, words={1: 7, 4: 5}
    )
    assert [(flat["msg"], flat["pid"]) for flat in told(tick.row())] == [(5, 0), (6, 0)]


def test_sizes_that_differ_are_listed() -> None:
    tick = Tick()
    tick.record(
        events.MSG_ACCEPTED,
        packed_rows.HAS_BYTES,
        n=2,
        words={7: tick.extra(5, 0), 9: tick.extra(0)},
    )
    assert [flat["bytes"] for flat in told(tick.row())] == [5, 0]


def test_messages_that_were_never_stored_have_ids_beyond_the_log() -> None:
    tick = Tick()
    first = 1 << 62 | 3 << 40 | 9
    tick.record(events.MSG_ACCEPTED, packed_rows.HAS_MSG, n=2, words={4: first})
    assert [flat["msg"] for flat in told(tick.row())] == [first, first + 1]


def test_a_row_may_be_made_of_arrays() -> None:
    tick = run_of_messages()
    row = packed_rows.Row(
        NOW_MS, BOOT_MS, 1, 17, numbers(*tick.words), numbers(*tick.extras), tick.names
    )
    assert told(row) == told(tick.row())


def test_a_row_can_be_counted_without_a_look_at_its_records() -> None:
    tick = Tick()
    for reason, count in ((1051, 7), (1053, 5), (1051, 2)):
        tick.record(
            events.HISTORY_GAP,
            packed_rows.HAS_REASON | packed_rows.HAS_COUNT,
            reason=reason,
            words={9: count},
        )
    body = tick.pack(30)
    assert packed_rows.peek(body) == (NOW_MS, 30, 3)
    assert packed_rows.count_missing(body) == (3, 9)
    for noise in (b"", b"\1", b"\2" + body[1:]):
        with pytest.raises(ValueError, match="history row: version"):
            packed_rows.count_missing(noise)

"""Is a session read back exactly as it was written, or not at all?"""

import pytest

from session.state.in_flight import (
    AWAITING_PUBACK,
    PERHAPS_SENT,
    RELEASED,
    STORED_MASK,
    TOOK_QUOTA,
)
from session.state.records import RecordReader, blob, decode_session, encode_session, text
from session.state.session import Session
from tests.session.state.cases import (
    AHEAD,
    GAPS,
    PURGED,
    SESSIONS,
    ahead_session,
    full_session,
    gaps_session,
    golden,
    new_session,
    purged_session,
)

KEPT = (
    "client_id",
    "identity",
    "created_at_ms",
    "connected_at_ms",
    "disconnected_at_ms",
    "expiry_due_ms",
    "will_due_ms",
    "expiry_interval_s",
    "protocol_version",
    "position",
    "next_packet_id",
    "next_mailbox",
    "in_flight",
    "leases",
    "is_stored",
    "incarnation",
)


def fields(session: Session) -> tuple[object, ...]:
    """Return everything of a session that its record keeps."""
    replays = [
        (n, r.topic_filter, r.qos, r.identifier, r.start) for n, r in session.replays.items()
    ]
    return (*(getattr(session, name) for name in KEPT), list(session.in_flight), replays)


@pytest.mark.parametrize("case", SESSIONS)
def test_a_record_gives_the_session_back(case: str) -> None:
    session = SESSIONS[case]()
    assert fields(decode_session(session.client_id, encode_session(session))) == fields(session)


@pytest.mark.parametrize("case", SESSIONS)
def test_the_format_is_the_one_on_disk(case: str) -> None:
    expected = golden("session-record-v2.hex")[case]
    session = SESSIONS[case]()
    assert encode_session(session).hex() == expected.hex()
    assert fields(decode_session(session.client_id, expected)) == fields(session)


@pytest.mark.parametrize("case", PURGED)
def test_what_was_dropped_by_topic_has_a_version_of_its_own(case: str) -> None:
    expected = golden("session-record-v4.hex")[case]
    session = PURGED[case]()
    assert encode_session(session).hex() == expected.hex()
    loaded = decode_session(session.client_id, expected)
    for found, made in zip(loaded.purged or (), session.purged or (), strict=True):
        assert (found.topic_filter, found.upto) == (made.topic_filter, made.upto)
        assert (found.count, found.size_bytes) == (made.count, made.size_bytes)


def test_what_was_dropped_by_topic_is_forgotten_when_the_position_is_behind_it() -> None:
    session = purged_session()
    session.position = 42
    loaded = decode_session("c", encode_session(session))
    assert [each.topic_filter for each in loaded.purged or ()] == ["täg/+"]
    session.position = 2**40
    assert encode_session(session)[0] == 2
    assert decode_session("c", encode_session(session)).purged is None


@pytest.mark.parametrize("case", GAPS)
def test_gaps_have_a_version_of_their_own(case: str) -> None:
    expected = golden("session-record-v5.hex")[case]
    session = GAPS[case]()
    assert encode_session(session).hex() == expected.hex()
    loaded = decode_session(session.client_id, expected)
    assert (loaded.gaps, loaded.gaps_at) == (session.gaps, session.gaps_at)
    assert len(loaded.purged or ()) == len(session.purged or ())
    assert len(loaded.in_flight) == len(session.in_flight) + len(session.reserved or ())


def test_gaps_are_forgotten_when_the_position_is_behind_them() -> None:
    session = gaps_session()
    session.position = 42
    assert decode_session("c", encode_session(session)).gaps == ((50, 2**40),)
    session.position = 2**40 - 1
    assert decode_session("c", encode_session(session)).gaps == ((50, 2**40),)
    session.position = 2**40
    assert encode_session(session)[0] == 2
    assert decode_session("c", encode_session(session)).gaps == ()


@pytest.mark.parametrize(
    "gaps",
    [((42, 41),), ((0, 42),), ((42, 50), (50, 60)), ((42, 50), (51, 60)), ((50, 60), (42, 43))],
)
def test_gaps_that_are_empty_or_touch_or_are_in_disorder_are_refused(
    gaps: tuple[tuple[int, int], ...],
) -> None:
    session = gaps_session()
    session.position = 0
    session.gaps = gaps
    assert any("a gap from" in problem for problem in session.invariants())
    with pytest.raises(ValueError, match="a gap from"):
        decode_session("c", encode_session(session))


def test_a_record_of_that_version_without_a_gap_is_refused() -> None:
    value = encode_session(gaps_session())
    without = value[: -2 - 3 * 16] + b"\0\0" + value[-16:]
    with pytest.raises(ValueError, match="no gaps"):
        decode_session("c", without)


@pytest.mark.parametrize("case", AHEAD)
def test_packet_ids_bound_ahead_have_a_version_of_their_own(case: str) -> None:
    expected = golden("session-record-v3.hex")[case]
    assert encode_session(AHEAD[case]()).hex() == expected.hex()
    loaded = decode_session("c", expected)
    reserved = AHEAD[case]().reserved
    assert reserved is not None
    for packet_id, entry in reserved.items():
        assert loaded.in_flight[packet_id] == entry | PERHAPS_SENT
    assert encode_session(loaded)[0] == 3


def test_what_was_bound_ahead_was_perhaps_sent_after_a_crash() -> None:
    session = ahead_session()
    loaded = decode_session("c", encode_session(session))
    perhaps = {packet_id for packet_id, e in loaded.in_flight.items() if e & PERHAPS_SENT}
    assert list(loaded.in_flight) == [3, 4, 5] and perhaps == {4, 5}
    assert loaded.reserved is None and loaded.position == 44
    assert session.reserved is not None and list(session.reserved) == [4, 5]
    assert list(loaded.invariants()) == []


def test_what_was_perhaps_sent_stays_so_until_it_is_sent_again() -> None:
    loaded = decode_session("c", encode_session(ahead_session()))
    loaded.begin_connection(1)
    loaded.complete(3, AWAITING_PUBACK)
    loaded.take_quota_again(4)
    again = decode_session("c", encode_session(loaded))
    assert [bool(e & PERHAPS_SENT) for e in again.in_flight.values()] == [False, True]
    loaded.give_up(5)
    assert encode_session(loaded)[0] == 2 and not loaded.has_doubts


def test_only_new_messages_of_the_log_are_bound_ahead() -> None:
    value = encode_session(ahead_session())
    packet_id = (5 << 16 | 1).to_bytes(4, "big")
    assert value.count(packet_id) == 1
    released = (5 << 16 | 2 | RELEASED).to_bytes(4, "big")
    with pytest.raises(ValueError, match="packet id 5 is bound ahead as 0x6"):
        decode_session("c", value.replace(packet_id, released))


@pytest.mark.parametrize("case", SESSIONS)
def test_a_record_of_version_1_is_read_and_has_no_incarnation_yet(case: str) -> None:
    session = SESSIONS[case]()
    session.incarnation = 0
    old = golden("session-record-v1.hex")[case]
    assert fields(decode_session(session.client_id, old)) == fields(session)


def test_the_order_of_sending_is_kept() -> None:
    session = new_session()
    session.position = 10
    for packet_id in (9, 3, 65_535, 1):
        session.in_flight[packet_id] = packet_id << 8 | 1
    assert list(decode_session("c", encode_session(session)).in_flight) == [9, 3, 65_535, 1]


def test_what_belongs_to_a_connection_is_not_kept() -> None:
    session = new_session()
    session.begin_connection(5)
    packet_id = session.bind(7, 1)
    assert session.in_flight[packet_id] & TOOK_QUOTA
    loaded = decode_session("c", encode_session(session))
    assert not loaded.in_flight[packet_id] & ~STORED_MASK & 0xFF
    assert loaded.send_quota == 0


@pytest.mark.parametrize("case", SESSIONS)
def test_every_truncation_and_every_extension_is_noticed(case: str) -> None:
    _refuses_other_sizes(encode_session(SESSIONS[case]()))
    _refuses_other_sizes(encode_session(ahead_session()))
    _refuses_other_sizes(encode_session(purged_session()))
    _refuses_other_sizes(encode_session(gaps_session()))
    _refuses_other_sizes(golden("session-record-v1.hex")[case])


def _refuses_other_sizes(value: bytes) -> None:
    for size in range(len(value)):
        with pytest.raises(ValueError):
            decode_session("c", value[:size])
    with pytest.raises(ValueError, match="left over"):
        decode_session("c", value + b"\0")


def test_another_version_is_refused() -> None:
    value = encode_session(new_session())
    for version in (b"\x00", b"\x06"):
        with pytest.raises(ValueError, match=f"version {version.hex()} of"):
            decode_session("c", version + value[1:])


@pytest.mark.parametrize("packet_id", [0, 65_533])
def test_a_packet_id_that_is_zero_or_there_twice_is_refused(packet_id: int) -> None:
    value = encode_session(full_session())
    kept = (65_534 << 16).to_bytes(4, "big")[:2]
    assert value.count(kept) == 1
    with pytest.raises(ValueError, match="in flight twice or zero"):
        decode_session("c", value.replace(kept, packet_id.to_bytes(2, "big")))


def test_a_reader_takes_no_more_than_there_is() -> None:
    reader = RecordReader(blob(b"ab") + text("ü") + b"\x07", "thing")
    assert reader.blob() == b"ab"
    assert reader.text() == "ü"
    assert reader.number(1) == 7
    reader.end()
    with pytest.raises(ValueError, match="thing: ends at 9 bytes, expected 10"):
        reader.number(1)

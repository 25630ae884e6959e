"""What the tests of the session records share: full examples, and golden files."""

from pathlib import Path
from typing import Final

from mqtt.packets import Will
from session.state.in_flight import FROM_GROUP, FROM_LOG, FROM_MAILBOX, REFERENCE_SHIFT, RELEASED
from session.state.session import EXPIRY_NEVER, PurgedTopics, Replay, Session
from session.state.shared_group_record import GroupRecord
from session.state.subscription import Subscription
from session.state.will_record import ConnectionRecord

GOLDEN: Final = Path(__file__).parent / "golden"
NOW_MS: Final = 1_763_711_111_111


def golden(name: str) -> dict[str, bytes]:
    """Return the cases of a golden file: lines of `case: hex`, `#` starts a comment line."""
    cases: dict[str, bytes] = {}
    for line in (GOLDEN / name).read_text().splitlines():
        if line and not line.startswith("#"):
            case, _, text = line.rpartition(":")
            cases[case.strip()] = bytes.fromhex(text)
    return cases


def new_session() -> Session:
    """Return a session as CONNECT makes it."""
    session = Session("c", "", NOW_MS)
    session.incarnation = 7 << 40 | 1
    session.is_stored = True
    session.protocol_version = 5
    session.connected_at_ms = NOW_MS
    session.expiry_interval_s = 3600
    session.position = 41
    return session


def full_session() -> Session:
    """Return an offline session that has something of everything."""
    session = Session("clïent-7", "ann", NOW_MS)
    session.incarnation = 2**63 - 1
    session.is_stored = True
    session.protocol_version = 4
    session.connected_at_ms = NOW_MS + 1
    session.disconnected_at_ms = NOW_MS + 60_000
    session.expiry_interval_s = EXPIRY_NEVER
    session.expiry_due_ms = 0
    session.will_due_ms = NOW_MS + 70_000
    session.position = 2**40
    session.next_packet_id = 65_535
    session.next_mailbox = 3
    session.in_flight = {
        65_533: 1 << REFERENCE_SHIFT | FROM_LOG | 1,
        65_534: 2**40 << REFERENCE_SHIFT | FROM_LOG | RELEASED | 2,
        1: 2 << REFERENCE_SHIFT | FROM_MAILBOX | 2,
        2: 77 << REFERENCE_SHIFT | FROM_GROUP | 1,
    }
    session.leases = {2: ("group", "täg/#")}
    for replay in (Replay("#", 0, 0, b""), Replay("a/+/b", 2, 268_435_455, b"a\0b\0c")):
        session.replays[replay.topic_filter] = replay
    return session


def ahead_session() -> Session:
    """Return a connected session with two packet ids bound ahead, behind one in flight."""
    session = new_session()
    session.position = 42
    session.next_packet_id = 6
    session.in_flight = {3: 42 << REFERENCE_SHIFT | FROM_LOG | 1}
    session.reserved = {
        4: 43 << REFERENCE_SHIFT | FROM_LOG | 2,
        5: 44 << REFERENCE_SHIFT | FROM_LOG | 1,
    }
    return session


def full_ahead_session() -> Session:
    """Return a session that has something of everything, and packet ids bound ahead."""
    session = full_session()
    session.reserved = {7: (2**40 + 1) << REFERENCE_SHIFT | FROM_LOG | 1}
    return session


def purged_session() -> Session:
    """Return an offline session of which an operator has dropped messages of two topics."""
    session = new_session()
    session.purged = [
        PurgedTopics("a/#", 42, 1, 7),
        PurgedTopics("täg/+", 2**40, 2**32 - 1, 2**63),
    ]
    return session


def full_purged_session() -> Session:
    """Return a session that has something of everything, and something was dropped by topic."""
    session = full_ahead_session()
    session.purged = [PurgedTopics("t", 2**40 + 1, 3, 9)]
    return session


def gaps_session() -> Session:
    """Return an offline session that is at its limit, for the second time."""
    session = new_session()
    session.gaps = ((42, 42), (50, 2**40))
    session.gaps_at = (100, 0)
    return session


def full_gaps_session() -> Session:
    """Return a session that has something of everything, and one gap that is closed."""
    session = full_purged_session()
    session.gaps = ((2**40 + 1, 2**41),)
    return session


SESSIONS: Final = {"new": new_session, "full": full_session}
# Version 3.
AHEAD: Final = {"ahead": ahead_session, "full": full_ahead_session}
# Version 4.
PURGED: Final = {"purged": purged_session, "full": full_purged_session}
# Version 5.
GAPS: Final = {"gaps": gaps_session, "full": full_gaps_session}

SUBSCRIPTIONS: Final = {
    "smallest": Subscription("t", None, "t", 0, False, False, 0, 0, 0, False),
    "all options": Subscription("t/#", None, "t/#", 2, True, True, 2, 268_435_455, 2**40, True),
    "shared": Subscription("$share/g/t", "g", "t", 1, False, True, 1, 7, 0, False),
}
# Version 2.
BYPASSING: Final = {
    "smallest": Subscription("t", None, "t", 0, False, False, 0, 0, 0, False, True),
    "all options": Subscription("t/#", None, "t/#", 2, True, True, 2, 9, 2**40, True, True),
}

CONNECTIONS: Final = {
    "without will": ConnectionRecord("", True, NOW_MS, EXPIRY_NEVER, None, 1),
    "smallest will": ConnectionRecord("", False, NOW_MS, 0, Will("w", b"", 0, False), 2),
    "full will": ConnectionRecord(
        "ann",
        True,
        NOW_MS,
        3600,
        Will(
            "täg/w",
            b"gone",
            2,
            True,
            delay_interval=60,
            message_expiry_interval=0,
            properties=b"\x01\x01\x03\x00\x04text",
        ),
        2**63 - 1,
    ),
}

GROUPS: Final = {
    "new": GroupRecord(41, 41, 1, []),
    "with owed offsets": GroupRecord(2**40, 7, 1000, [3, 9, 2**40]),
}

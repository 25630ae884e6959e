"""What is dropped for a session that is at its limit stays dropped, also over a crash.

A gap in the record of a session is a promise: the history and the counters were told of its
messages in the same batch. So when a broker starts, the messages in the gaps that are on the disk
are noted, and none of them may reach the client any more. Looks into the broker's store and log, at
its start only. Read next: `storage.log.gaps`, `session.lifetime.trimming`.
"""

from typing import TYPE_CHECKING, Final

from session.state.records import decode_session
from storage.errors import DamagedRows
from storage.log.generations import Generation
from storage.tables.tables import SESSIONS, scan_readable, unseal
from tests.simulation.mirror import index_of
from tests.simulation.rare import sometimes
from tests.simulation.verdict import Violation

if TYPE_CHECKING:
    from session.engine import Engine
    from session.state.session import Session
    from tests.simulation.client import Client
    from tests.simulation.oracle import Sent
    from tests.simulation.process import BrokerProcess
    from tests.simulation.view import SessionView

SESSION_LIMIT: Final = 1023
GAP_OFFSETS_MAX: Final = 2_000  # that are looked at of one session


class LeftOut:
    """The messages that sessions must not get, by their views."""

    def __init__(self) -> None:
        self._indexes: Final[dict[SessionView, set[int]]] = {}

    def started(self, process: "BrokerProcess", clients: "list[Client]", starts: int) -> None:
        """Note what is in the gaps of the sessions that a broker finds at its start."""
        for session in with_gaps(process):
            view = next((each.view for each in clients if each.name == session.client_id), None)
            if view is None:
                continue
            if starts > 1:
                sometimes("gap_after_crash")
            noted = self._indexes.setdefault(view, set())
            offsets = [o for first, last in session.gaps for o in range(first, last + 1)]
            for offset in offsets[:GAP_OFFSETS_MAX]:
                try:
                    message = process.engine._log.get(offset)
                except DamagedRows:
                    continue
                index = None if message is None else index_of(message)
                if index is not None:
                    noted.add(index)

    def delivered(self, view: "SessionView", sent: "Sent") -> None:
        """Judge a delivery: of a message that is in the log once, and came from there."""
        if sent.index not in self._indexes.get(view, ()):
            return
        if sent.transmissions != 1 or sent.retain or sent.is_will:
            return
        if any(item.share is not None for item in view.matching(sent.topic)):
            return
        raise Violation(
            "what_is_dropped_stays_dropped",
            f"{view.client} got {sent} on {sent.topic!r}, which was dropped for it before a crash",
        )


class ToldOnce:
    """What the history has said of messages that were dropped while their sessions were away."""

    def __init__(self) -> None:
        self._dropped: Final[set[tuple[object, object]]] = set()  # session, offset

    def take(self, flat: dict[str, object]) -> None:
        """Judge an event of the history."""
        if flat["ev"] not in ("msg_dropped", "msg_delivered") or flat["msg_last"] is not None:
            return
        key = flat["session"], flat["msg"]
        if key in self._dropped and not flat["share"]:
            raise Violation(
                "what_is_dropped_stays_dropped",
                f"{flat['ev']} of message {key[1]} and session {key[0]}, for which it was dropped",
            )
        if flat["ev"] == "msg_dropped" and not flat["conn"] and flat["reason"] == SESSION_LIMIT:
            self._dropped.add(key)


def with_gaps(process: "BrokerProcess") -> "list[Session]":
    """Return the stored sessions that have gaps."""
    damages: list[DamagedRows] = []
    found = []
    for key, value in scan_readable(process.store, SESSIONS, b"", None, damages, count=1_000):
        try:
            session = decode_session(key.decode(), unseal(value, "session"))
        except (DamagedRows, ValueError):
            continue
        if session.gaps:
            found.append(session)
    return found


def note_freed(process: "BrokerProcess", gone: list[Generation]) -> None:
    """Count generations that went because a gap covers what a session was owed of them."""
    for session in with_gaps(process):
        for first, last in session.gaps:
            if any(first <= each.last_offset and each.first_offset <= last for each in gone):
                sometimes("gap_frees_a_generation")


def note_passed(engine: "Engine", client_id: str) -> None:
    """Count sessions that come back and have a gap before them."""
    connection = engine._sessions.live.get(client_id)
    session = None if connection is None else connection.session
    if session is not None and session.gaps and session.position < session.gaps[0][0] - 1:
        sometimes("gap_passed_over")

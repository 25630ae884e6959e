"""What an operator asks of clients and sessions: end or ban them, drop what waits, publish, trace.

All are events like any other: what they change is in the batch of the tick, and the history says
who asked. Must never set the clock: `session.engine` does that before it calls. Read next:
`session.lifetime.disconnect` and `session.purging`, which do it.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from mqtt import reasons
from session.assembly import Assembly
from session.errands.banned import BannedClients
from session.errands.clearing import Clearing, RetainedClearing
from session.errands.group_purging import GroupPurge, GroupPurging
from session.errands.publishing import NO_EXPIRY, OperatorPublishing, Published
from session.history.session_events import ENDED_BY_OPERATOR
from session.live.connection import CLOSING, Connection
from session.live.connection_states import SENT_AWAY
from session.purging import PURGES_MAX, Purge, Purging
from session.scheduling.bans import NEVER, Ban, Bans
from storage.errors import Recoverable
from storage.tables.ban_rows import CLIENT_ID
from storage.tables.tables import SESSIONS


class Administration:
    """Carries out what an operator asks. Each method says who that is: `by`, for the history."""

    def __init__(self, assembly: Assembly) -> None:
        self._assembly: Final = assembly
        self._purging: Final = Purging(assembly)
        self._banned: Final = BannedClients(assembly)
        self._publishing: Final = OperatorPublishing(assembly)
        self._clearing: Final = RetainedClearing(assembly)
        self._group_purging: Final = GroupPurging(assembly)
        # Asked in every turn of the loop: so it is one answer for all four.
        self._is_busy: bool = False

    def connections(self) -> dict[str, Connection]:
        """Return the connection of each client that is connected, by client id; only to read."""
        return self._assembly.sessions.live

    def kick(self, client_id: str, by: str, reason: str = "") -> bool:
        """End the connection of a client; return False if it is not connected.

        A v5 client gets a DISCONNECT 0x98 with `reason` as its Reason String. Its will is
        published, and its session is kept unless it has no expiry interval.
        """
        connection = self._assembly.sessions.live.get(client_id)
        if connection is None or connection.state >= CLOSING:
            return False
        with self._asked_by(by, reason):
            self._end(connection, reason, ends_session=False)
        return True

    def end_session(
        self, client_id: str, by: str, reason: str = "", *, offline_ms: int = 0
    ) -> bool:
        """End a session, and first the connection of its client; return False if there is none.

        Its subscriptions, what waits for it and what is in flight go with it; its will is
        published. With `offline_ms` that happens only if the client is away for so long.
        Raises `Recoverable` if the store refuses writes just now, `DamagedRows` if the session's
        rows cannot be read.
        """
        assembly = self._assembly
        self._settle()
        live = assembly.sessions.live.get(client_id)
        if live is None:
            return self._end_stored(client_id, by, reason, offline_ms)
        if offline_ms:
            return False
        with self._asked_by(by, reason):
            self._end(live, reason, ends_session=True)
        assembly.core.counters.sessions_terminated += 1
        return True

    # Bans

    @property
    def bans(self) -> Bans:
        """Return the bans; only to read."""
        return self._assembly.bans

    def ban(self, kind: bytes, value: str, for_ms: int, by: str, reason: str = "") -> Ban:
        """Ban a client identifier, a user or an address for a time; it holds at once.

        Whoever it is against gets 0x8A in CONNACK, v3.1.1 clients 0x05. The connections of these
        end soon, with their wills; their sessions stay. Raises `Recoverable` if the store refuses
        writes just now, or there are too many bans.
        """
        assembly = self._assembly
        self._settle()
        ban = assembly.bans.add(kind, value, for_ms, by, reason)
        if kind != CLIENT_ID:
            self._is_busy = True
            self._banned.begin()
        elif value in assembly.sessions.live:
            self._banned.look_at(assembly.sessions.live[value])
        return ban

    def unban(self, kind: bytes, value: str, by: str, reason: str = "") -> bool:
        """Remove a ban; return False if there is none. Raises `Recoverable` as `ban` does."""
        self._settle()
        return self._assembly.bans.remove(kind, value, _asker(by, reason))

    # Messages

    def publish(
        self,
        topic: str,
        payload: bytes,
        qos: int,
        by: str,
        reason: str = "",
        *,
        retain: bool = False,
        properties: bytes = b"",
        expiry_s: int = NO_EXPIRY,
    ) -> Published:
        """Publish on a valid topic as a client does, but without asking the rules.

        What matches is counted before; what is refused changes nothing. `properties` are raw, to be
        passed on.
        """
        return self._publishing.publish(
            topic,
            payload,
            qos,
            retain=retain,
            properties=properties,
            expiry_s=expiry_s,
            asker=_asker(by, reason),
        )

    def clear_retained(self, topic_filter: str, by: str, reason: str = "") -> Clearing:
        """Begin to delete the retained messages that a valid topic filter matches.

        Those that are set later are kept. It is done in slices; what is deleted so far is durable
        with the commit of `settled_by`. Raises `Recoverable` if too many deletions wait.
        """
        self._is_busy = True
        return self._clearing.begin(topic_filter, _asker(by, reason))

    # Queues

    def purge(
        self,
        client_id: str,
        by: str,
        reason: str = "",
        *,
        older_ms: int = 0,
        topic: str | None = None,
        kick: bool = False,
    ) -> Purge | None:
        """Begin to drop what waits for a session whose client is away; None if it has none.

        Messages younger than `older_ms` are kept, those that the valid topic filter `topic` does
        not match, and what is in flight. It is done in slices; what is dropped so far is durable
        with the commit of `settled_by`. With `kick` the connection of its client ends first, and
        the client gets 0x89 when it comes back before the purge is over. Raises `Recoverable` if
        the store refuses writes just now, or too many purges wait, `DamagedRows` if the session's
        rows cannot be read; then the client is still connected, but in the last case.
        """
        assembly = self._assembly
        self._settle()
        live = assembly.sessions.live.get(client_id)
        if kick and live is not None and not self._purging.is_full:
            session = live.session
            if session is None or not session.is_stored or not session.expiry_interval_s:
                return None  # it would end with its connection
            with self._asked_by(by, reason):
                self._end(live, "", ends_session=False)
            self._settle()
        value = assembly.database.store.get(SESSIONS, client_id.encode())
        if value is None:
            return None
        session = assembly.sessions.decode(client_id, value)
        assembly.sessions.load_rest(session)
        purge = self._purging.begin(
            session, value, _asker(by, reason), older_ms, topic, keeps_out=kick
        )
        if purge is None:
            raise Recoverable(f"{PURGES_MAX} purges wait already: ask again later")
        self._is_busy = True
        return purge

    def purge_group(
        self,
        share_name: str,
        topic_filter: str,
        by: str,
        reason: str = "",
        *,
        older_ms: int = 0,
        topic: str | None = None,
    ) -> GroupPurge | None:
        """Begin to drop what waits for a shared subscription; None if there is no such one.

        Its members may be connected. Messages younger than `older_ms` are kept, those that the
        valid topic filter `topic` does not match, and what is in flight. It is done in slices; what
        is dropped so far is durable with the commit of `settled_by`. Raises `Recoverable` if the
        store refuses writes just now, or too many purges wait.
        """
        self._settle()
        self._is_busy = True
        return self._group_purging.begin(
            (share_name, topic_filter), _asker(by, reason), older_ms, topic
        )

    def reclaim(self) -> None:
        """Close the open generation of the log, unless it is empty.

        A closed one goes within seconds once nobody needs a message of it.
        """
        assembly = self._assembly
        if assembly.database.log.newest_size_bytes:
            assembly.collection.rotate(assembly.core.tick.now)

    # Traces

    def trace(self, client_id: str, until_ms: int, by: str) -> bool:
        """Record all of a client's rows in the history until `untrace`; it is due at `until_ms`.

        False if the present level leaves out messages on purpose (`sessions`, `off`): then nothing
        more is recorded. Raises `Recoverable` if the store refuses writes just now, `DamagedRows`
        if the session's rows cannot be read.
        """
        assembly = self._assembly
        connection = assembly.sessions.live.get(client_id)
        session = None if connection is None else connection.session
        if session is None:
            self._settle()
            session = assembly.sessions.load(client_id)
            if session is not None:
                assembly.sessions.load_rest(session)
        streams = set() if session is None else assembly.sessions.streams_of(session)
        traces = assembly.history.traces
        traces.begin(client_id, streams, until_ms, by)
        return traces.raises

    def untrace(self, client_id: str, why: str, *, by_operator: bool = False) -> None:
        """Record no more of a client than of the others, if no other trace of it is on."""
        self._assembly.history.traces.end(client_id, why, by_operator=by_operator)

    # Slices

    def next_deadline(self) -> int:
        """Return when `run` has something to do, broker ms."""
        return self._assembly.core.tick.now if self._is_busy else NEVER

    def run(self) -> None:
        """Do a slice of what was asked for."""
        if not self._is_busy:
            return
        self._banned.run()
        self._purging.run()
        self._clearing.run()
        self._group_purging.run()
        self._is_busy = (
            self._banned.is_busy
            or self._purging.is_busy
            or self._clearing.is_busy
            or self._group_purging.is_busy
        )

    def stop(self) -> None:
        """End what was asked for where it is: the broker ends."""
        self._banned.stop()
        self._purging.stop()
        self._clearing.stop()
        self._group_purging.stop()
        self._is_busy = False

    def _settle(self) -> None:
        """Write the open batch: the store then has all rows of every session that is away."""
        if not self._assembly.writer.settle():
            refused = self._assembly.health.refused_by
            raise Recoverable(f"the store takes no writes just now: {refused}")

    def _end_stored(self, client_id: str, by: str, reason: str, offline_ms: int) -> bool:
        """End the session of a client that is not connected; False if there is none to end."""
        assembly = self._assembly
        session = assembly.sessions.load(client_id)
        if session is None:
            return False
        if assembly.core.tick.now - session.disconnected_at_ms < offline_ms:
            return False
        assembly.sessions.load_rest(session)
        with self._asked_by(by, reason):
            assembly.disconnects.end_stored(session, ENDED_BY_OPERATOR)
        assembly.core.counters.sessions_terminated += 1
        return True

    def _end(self, connection: Connection, reason: str, *, ends_session: bool) -> None:
        self._assembly.core.counters.disconnects["administrative_action"] += 1
        self._assembly.disconnects.end(
            connection,
            SENT_AWAY,
            reasons.ADMINISTRATIVE_ACTION,
            ends_session=ends_session,
            ending=ENDED_BY_OPERATOR,
            reason_string=reason or None,
        )

    @contextmanager
    def _asked_by(self, by: str, reason: str) -> Iterator[None]:
        """Record what happens meanwhile as an operator's doing."""
        events = self._assembly.history.sessions
        events.asked_by = _asker(by, reason)
        try:
            yield
        finally:
            events.asked_by = ""


def _asker(by: str, reason: str) -> str:
    return f"{by}: {reason}" if reason else by

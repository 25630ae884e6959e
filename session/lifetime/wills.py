"""Wills: set at CONNECT, published when a connection ends without a normal DISCONNECT.

A will with a delay waits in a row of the timers. The batch that publishes it also deletes that row:
it fires once, whatever crashes. Read next: `session.publish.accept`.
"""

import struct
from typing import Final

from mqtt.message import NEVER, Message
from mqtt.packets import Will
from session.history.session_events import WILL_DISCONNECTED, WILL_REFUSED, WILL_RESUMED
from session.lifetime.context import ClientContext
from session.publish.accept import Publishing
from session.state.session import Session
from session.state.will_record import ConnectionRecord, decode_connection, encode_connection
from storage.errors import DamagedRows
from storage.tables.tables import CONNECTIONS, seal
from storage.tables.timers import WILL

WILL_RETRY_MS: Final = 1000  # when to try again a will that cannot be stored now


class Wills:
    """Publishes wills when they are due."""

    def __init__(
        self,
        context: ClientContext,
        publishing: Publishing,
    ) -> None:
        self._tick: Final = context.tick
        self._due: Final = context.due
        self._publishing: Final = publishing
        self._policy: Final = context.policy
        self._counters: Final = context.counters
        self._damage: Final = context.damage
        self._denied: Final = context.denied
        self._session_events: Final = context.history.sessions
        self._publish_events: Final = context.history.publishes
        self._postponed = 0  # wills that could not be stored when they were due

    def leave(
        self, session: Session, will: Will, *, is_published: bool, at_once: bool, by_client: bool
    ) -> None:
        """Cancel, publish or delay the will of a connection that ended."""
        if not is_published:
            self._counters.wills["cancelled"] += 1
            why = WILL_DISCONNECTED if by_client else WILL_RESUMED
            self._session_events.will_cancelled(
                session.client_id, session.identity, session.incarnation, will, why
            )
        elif at_once or will.delay_interval == 0:
            self._fire(session.client_id, session.identity, will, session.incarnation)
        else:
            self.arm(session, will, self._tick.now)

    def arm(self, session: Session, will: Will, closed_at_ms: int) -> None:
        """Delay a will until its delay is over or the session ends, whichever is first."""
        at_ms = closed_at_ms + will.delay_interval * 1000  # [MQTT-3.1.3-9]
        if session.expiry_due_ms:
            at_ms = min(at_ms, session.expiry_due_ms)
        session.will_due_ms = at_ms
        record = ConnectionRecord(
            session.identity,
            is_stored=True,
            connected_at_ms=0,
            expiry_interval_s=0,
            will=will,
            incarnation=session.incarnation,
        )
        name = session.client_id.encode()
        self._due.add(self._tick.batch, at_ms, WILL, name, encode_connection(record))
        self._session_events.will_delayed(
            session.client_id, session.identity, session.incarnation, will, at_ms
        )

    def arm_without_session(self, client_id: str, record: ConnectionRecord, due_ms: int) -> None:
        """Make the will of a connection that a crash ended due at `due_ms`, whoever connects."""
        assert record.will is not None
        name = client_id.encode() + b"\0" + due_ms.to_bytes(8, "big")
        self._due.add(self._tick.batch, due_ms, WILL, name, encode_connection(record))
        self._session_events.will_delayed(
            client_id, record.identity, record.incarnation, record.will, due_ms
        )

    def part(self, client_id: str, record: ConnectionRecord, closed_at_ms: int) -> None:
        """Delay the will of a connection that a crash ended while its session cannot be read.

        The connection's row stays without its will: a start that can read the session ends it.
        """
        will = record.will
        if will is None:
            return
        delay_s = min(will.delay_interval, record.expiry_interval_s)
        self.arm_without_session(client_id, record, closed_at_ms + delay_s * 1000)
        record.will = None
        row = seal(encode_connection(record))
        self._tick.batch.append((CONNECTIONS, client_id.encode(), row))

    def resumed(self, session: Session) -> None:
        """Cancel the waiting will of a session that is connected again; publish one that is due."""
        will_due_ms = session.will_due_ms
        waiting = self.take(session)
        if waiting is None:
            if will_due_ms > self._tick.now:  # cancelled, whether or not it can be read
                self._due.remove(self._tick.batch, will_due_ms, WILL, session.client_id.encode())
            return
        if will_due_ms <= self._tick.now:
            # It was due before the client connected, perhaps while the broker was down, and has
            # not been published yet [MQTT-3.1.3-9].
            self.fire_waiting(session, waiting, will_due_ms)
            return
        assert waiting.will is not None
        self._counters.wills["cancelled"] += 1
        self._session_events.will_cancelled(
            session.client_id,
            waiting.identity,
            session.incarnation,
            waiting.will,
            WILL_RESUMED,
            will_due_ms,
        )

    def take(self, session: Session) -> ConnectionRecord | None:
        """Remove and return the session's waiting will, if it has one."""
        due_ms, session.will_due_ms = session.will_due_ms, 0
        if not due_ms:
            return None
        name = session.client_id.encode()
        try:
            value = self._due.get(due_ms, WILL, name)
        except DamagedRows as problem:
            self._damage.note("timer", problem, session.client_id, "its will")
            return None
        self._due.remove(self._tick.batch, due_ms, WILL, name)
        return None if value is None else decode_connection(value)

    def fire_waiting(self, session: Session, waiting: ConnectionRecord, due_ms: int) -> None:
        """Publish a will that `take` returned; it was due at `due_ms`."""
        assert waiting.will is not None
        self._fire(session.client_id, waiting.identity, waiting.will, session.incarnation, due_ms)

    def fire_due(self, name: bytes, value: bytes, due_ms: int) -> None:
        """Publish a will that is due; the caller removes its timer row in the same batch."""
        record = decode_connection(value)
        assert record.will is not None
        client_id = name.split(b"\0")[0].decode()
        self._fire(client_id, record.identity, record.will, record.incarnation, due_ms)

    def _fire(
        self, client_id: str, identity: str, will: Will, incarnation: int, due_ms: int = 0
    ) -> None:
        """Publish a will now; its deletion is in the same batch, so it fires once.

        `due_ms` is when it was due, 0 if it was not delayed.
        """
        # A will on a `$` topic is refused here and not at CONNECT: mosquitto's bridges have one and
        # could never connect.
        is_reserved = will.topic.startswith("$")
        if is_reserved or not self._policy.may_publish(identity, client_id, will.topic):
            self._denied("will", client_id, identity, will.topic)
            self._refuse(client_id, identity, will, incarnation, due_ms)
            return
        now = self._tick.now
        expiry = will.message_expiry_interval
        message = Message(
            will.topic,
            will.payload,
            will.qos,
            will.retain,
            will.properties,
            client_id,
            now,
            NEVER if expiry is None else now + expiry * 1000,
        )
        publication = None
        if self._publish_events.is_on:
            publication = self._publish_events.will(client_id, identity)
        self._session_events.will_begins(client_id, identity, incarnation)
        route = self._publishing.route(will.topic)
        accepted = self._publishing.accept(message, route, publication, is_will=True)
        self._session_events.will_ends()
        if accepted.reason_code < 0x80:
            self._counters.wills["fired"] += 1
            self._session_events.will_fired(client_id, identity, incarnation, will, message, due_ms)
            return
        if not self._publishing.refuses_writes:
            # A limit refuses it, not the disk: this may last for ever, so do not try again.
            self._refuse(client_id, identity, will, incarnation, due_ms)
            return
        record = ConnectionRecord(
            identity,
            is_stored=False,
            connected_at_ms=0,
            expiry_interval_s=0,
            will=will,
            incarnation=incarnation,
        )
        at_ms = now + WILL_RETRY_MS
        # The number keeps the names of several postponed wills of one client apart.
        self._postponed += 1
        name = client_id.encode() + b"\0" + struct.pack(">QI", now, self._postponed)
        self._due.add(self._tick.batch, at_ms, WILL, name, encode_connection(record))
        if not due_ms:  # the history knows already of one that was delayed
            self._session_events.will_delayed(client_id, identity, incarnation, will, at_ms)

    def _refuse(
        self, client_id: str, identity: str, will: Will, incarnation: int, due_ms: int
    ) -> None:
        self._counters.wills["refused"] += 1
        self._session_events.will_cancelled(
            client_id, identity, incarnation, will, WILL_REFUSED, due_ms
        )

"""A raw MQTT client for checks: it sends only what it is told and parses strictly.

Blocking sockets, one thread. Every wait has a limit (`patience`, seconds), every broker fault
raises `Failure`. Packets that arrive while another kind is awaited are kept in order, so a check
only fails on the order of packets where the specification fixes it. Must never retry by itself.
"""

import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Final, NoReturn, TypeVar

from conformance import packets, tables, wire
from conformance.connection import Connection, Silence, Stream
from conformance.failure import Failure, Violation
from conformance.packets import (
    Auth,
    Connack,
    Disconnect,
    Packet,
    Pingresp,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Unsuback,
)
from conformance.record import Record
from conformance.wire import Block, Filter, Text, Will

P = TypeVar("P", bound=Packet)

# Never set aside: they concern the connection itself.
_URGENT: Final = (Connack, Disconnect, Auth)
_MARKER_IDS: Final = 60_000  # packet ids of barriers, above those that checks choose


class Client:
    """One client of the broker; its connection is open from the start, `connect` sends CONNECT."""

    def __init__(
        self,
        open_stream: Callable[[], Stream],
        *,
        name: str,
        client_id: str,
        version: int,
        patience: float,
        strict: bool,
        record: Record,
    ) -> None:
        self.name: str = name
        self.client_id: str = client_id
        self.version: int = version
        self.patience: float = patience
        self.strict: bool = strict
        self.connack: Connack | None = None
        self.inbox: deque[Packet] = deque()  # packets set aside, in order of arrival
        self._record = record
        self._open_stream = open_stream
        self._next_id = 0
        self._next_marker_id = _MARKER_IDS
        self._connection: Connection | None = None
        self.open()

    # The connection.

    def open(self) -> None:
        """Open a new network connection and drop the old one; the constructor calls it."""
        if self._connection is not None and self._connection.is_open:
            self._connection.close()
        self.connack = None
        self.inbox.clear()
        self._connection = Connection(
            self._open_stream, name=self.name, version=self.version, record=self._record
        )

    @property
    def connection(self) -> Connection:
        """The current or last network connection."""
        assert self._connection is not None
        return self._connection

    @property
    def is_open(self) -> bool:
        """Is the connection open on our side?"""
        return self.connection.is_open

    @property
    def eof(self) -> bool:
        """Has the broker ended the connection?"""
        return self.connection.eof

    @property
    def last(self) -> Packet | None:
        """The last packet that arrived."""
        return self.connection.last

    def send(self, data: bytes) -> None:
        """Write raw bytes. If the broker has closed the connection they are discarded."""
        self.connection.send(data, self.patience)

    send_packet = send

    def drop(self) -> None:
        """Reset the connection (RST) without DISCONNECT, like a network failure."""
        self.connection.drop()

    def close(self) -> None:
        """Close the connection without DISCONNECT; return when the broker has closed it as well."""
        self.connection.close()

    def fail(self, message: str, *, expected: str = "") -> NoReturn:
        """Raise `Failure` with the last packet that arrived."""
        packet = None if self.last is None else self.last.raw
        raise Failure(f"client {self.name}: {message}", packet=packet, expected=expected)

    def _missing(self, message: str, expected: str) -> NoReturn:
        """Raise `Failure` for something that did not arrive, with the last packet that was sent."""
        raise Failure(
            f"client {self.name}: {message}",
            packet=self.connection.last_sent,
            was_sent=True,
            expected=expected,
        )

    # Reading.

    def _deadline(self, timeout: float | None) -> float:
        return time.monotonic() + (self.patience if timeout is None else timeout)

    def receive(self, timeout: float | None = None) -> Packet:
        """Return the next packet of any kind, in order of arrival."""
        if self.inbox:
            return self.inbox.popleft()
        packet = self.connection.arrive(self._deadline(timeout))
        if packet is None:
            self._missing("the broker closed the connection", "a packet")
        return packet

    def expect(
        self, kind: type[P], timeout: float | None = None, *, packet_id: int | None = None
    ) -> P:
        """Return the next packet of this kind (and id, if one is given).

        The specification leaves the order of deliveries and of different kinds of answers open, so
        other kinds are set aside for a later `expect`. An unexpected CONNACK, DISCONNECT, AUTH or
        end of the connection is a failure. To judge the order use `receive`.
        """
        for index, packet in enumerate(self.inbox):
            if isinstance(packet, kind) and _has_id(packet, packet_id):
                del self.inbox[index]
                return packet
        deadline = self._deadline(timeout)
        wanted = kind.__name__.upper() + f" id {packet_id}" * (packet_id is not None)
        while True:
            try:
                arrived = self.connection.arrive(deadline)
            except Silence:
                aside = ", ".join(map(packets.describe, self.inbox))
                self._missing(f"no {wanted} in time{aside and f'; there is {aside}'}", wanted)
            if arrived is None:
                self._missing("the broker closed the connection", wanted)
            if isinstance(arrived, kind) and _has_id(arrived, packet_id):
                return arrived
            if isinstance(arrived, _URGENT):
                self.fail(f"received {packets.describe(arrived)}", expected=wanted)
            self.inbox.append(arrived)

    def peek(self, timeout: float | None = None) -> Packet | None:
        """Return the next packet without removing it; None if the broker has closed."""
        if not self.inbox:
            packet = self.connection.arrive(self._deadline(timeout))
            if packet is None:
                return None
            self.inbox.append(packet)
        return self.inbox[0]

    def expect_publish(
        self,
        topic: str | None = None,
        payload: Text | None = None,
        qos: int | None = None,
        retain: bool | None = None,
        dup: bool | None = None,
        *,
        acknowledge: bool = True,
        timeout: float | None = None,
    ) -> Publish:
        """Return the next delivery, which must have these values; complete its flow if asked to."""
        packet = self.expect(Publish, timeout)
        if isinstance(payload, str):
            payload = payload.encode()
        wanted: tuple[tuple[str, object, object], ...] = (
            ("topic", topic, packet.topic),
            ("payload", payload, packet.payload),
            ("QoS", qos, packet.qos),
            ("RETAIN", retain, packet.retain),
            ("DUP", dup, packet.dup),
        )
        for field, value, found in wanted:
            if value is not None and found != value:
                raise Failure(
                    f"client {self.name}: delivery has {field} {found!r}",
                    packet=packet.raw,
                    expected=f"{field} {value!r}",
                )
        if acknowledge:
            self.acknowledge(packet)
        return packet

    def expect_publishes(
        self, count: int, *, acknowledge: bool = True, timeout: float | None = None
    ) -> list[Publish]:
        """Return the next `count` deliveries."""
        return [self.expect_publish(acknowledge=acknowledge, timeout=timeout) for _ in range(count)]

    def drain(self) -> list[Packet]:
        """Return everything that arrives before the answer to a PINGREQ; acknowledge nothing."""
        found = list(self.inbox)
        self.inbox.clear()
        self.send(wire.pingreq())
        deadline = self._deadline(None)
        while True:
            try:
                packet = self.connection.arrive(deadline)
            except Silence:
                self._missing("PINGREQ is not answered", "PINGRESP")
            if packet is None:
                self._missing("the broker closed the connection", "PINGRESP")
            if isinstance(packet, Pingresp):
                return found
            found.append(packet)

    def expect_nothing(self, *kinds: type[Packet], settle: float = 0.0) -> None:
        """Fail if a packet of one of `kinds` (default: PUBLISH) has arrived or is on its way.

        PINGREQ and PINGRESP are the barrier; `settle` is a wait before it, in seconds. Packets of
        other kinds are kept; a DISCONNECT or the end of the connection always fails.
        """
        if settle:
            time.sleep(settle)
        kept = self.drain()
        unwanted = kinds or (Publish,)
        for packet in kept:
            if isinstance(packet, (*unwanted, Disconnect)):
                raise Failure(
                    f"client {self.name}: received {packets.describe(packet)}",
                    packet=packet.raw,
                    expected="no " + " or ".join(kind.__name__.upper() for kind in unwanted),
                )
        self.inbox.extend(kept)

    # Ends.

    def read_to_end(self, timeout: float | None = None) -> list[Packet]:
        """Return every packet until the broker closes the connection; fail if it does not."""
        found = list(self.inbox)
        self.inbox.clear()
        deadline = self._deadline(timeout)
        try:
            while (packet := self.connection.arrive(deadline)) is not None:
                found.append(packet)
        except Silence:
            self._missing("the broker keeps the connection open", "its end")
        return found

    def bytes_to_end(self, timeout: float | None = None) -> bytes:
        """Return the raw bytes until the broker closes the connection, without judging them."""
        return self.connection.bytes_to_end(self._deadline(timeout))

    def wait_for_end(self, seconds: float) -> bool:
        """Read for up to `seconds`; return whether the broker has closed. Packets are kept."""
        deadline = time.monotonic() + seconds
        try:
            while (packet := self.connection.arrive(deadline)) is not None:
                self.inbox.append(packet)
        except Silence:
            return False
        return True

    def expect_silent_close(self, timeout: float | None = None) -> None:
        """Fail unless the broker closes the connection without another packet."""
        packet = self._expect_end((), timeout, silent_is_fine=True)
        if packet is not None:
            self.fail(f"received {packets.describe(packet)}", expected="only a close")

    def expect_close(self, *reasons: int, timeout: float | None = None) -> Packet | None:
        """Fail unless the broker closes the connection; return the packet before that, if any.

        5.0: a DISCONNECT with one of `reasons` may come first (a CONNACK before the connection is
        accepted). If reasons are given, the strict profile requires the packet and one of them.
        Any other packet is a failure, and so is any packet in 3.1.1.
        """
        return self._expect_end(reasons, timeout, silent_is_fine=not (self.strict and reasons))

    def expect_refused(
        self, *codes: int, silent: bool | None = None, timeout: float | None = None
    ) -> Packet | None:
        """Fail unless CONNECT is refused with one of `codes` and the connection is closed.

        `silent`: the broker may close without CONNACK. That is the default in 5.0 outside the
        strict profile, and in 3.1.1 when no codes are given (then a CONNACK is a failure).
        """
        if silent is None:
            silent = not codes if self.version < 5 else not self.strict
        packet = self._expect_end(codes, timeout, silent_is_fine=silent or not codes)
        if packet is not None and not isinstance(packet, Connack):
            raise Failure("not a CONNACK", packet=packet.raw, expected="CONNACK, or a close")
        return packet

    def _expect_end(
        self, reasons: tuple[int, ...], timeout: float | None, *, silent_is_fine: bool
    ) -> Packet | None:
        deadline = self._deadline(timeout)
        names = " or ".join(tables.reason_name(code) for code in reasons)
        expected = "the end of the connection" + f", reason {names}" * bool(names)
        try:
            packet = self.inbox.popleft() if self.inbox else self.connection.arrive(deadline)
        except Silence:
            self._missing("the broker keeps the connection open", expected)
        if packet is None:
            if not silent_is_fine:
                self._missing("closed without a reason code", expected)
            return None
        code = self._parting_code(packet)
        if code is None or (self.version < 5 and not reasons):
            self.fail(f"received {packets.describe(packet)}", expected=expected)
        if reasons and code not in reasons and (self.strict or self.version < 5 or code < 0x80):
            self.fail(f"received {packets.describe(packet)}", expected=expected)
        self._expect_eof(packet, deadline)
        return packet

    def _parting_code(self, packet: Packet) -> int | None:
        """Return the code of a packet that may be the last one, None for any other."""
        if isinstance(packet, Connack) and packet.code and self.connack in (None, packet):
            return packet.code
        if isinstance(packet, Disconnect):
            return packet.reason
        return None

    def _expect_eof(self, after: Packet, deadline: float) -> None:
        kind = type(after).__name__.upper()
        try:
            extra = self.connection.arrive(max(deadline, self._deadline(1.0)))
        except Silence:
            statement = "MQTT-3.14.4-2" if isinstance(after, Disconnect) else ""
            if isinstance(after, Connack):
                statement = "MQTT-3.2.2-7" if self.version >= 5 else "MQTT-3.2.2-5"
            violation = Violation(
                (statement,),
                f"the connection stays open after {kind}",
                packet=after.raw,
                expected="a close by the broker",
            )
            self._record.violation(self.name, violation)
            raise violation from None
        if extra is not None:
            self.fail(f"received {packets.describe(extra)} after {kind}", expected="a close")

    # What a client does.

    def connect(
        self,
        clean: bool = True,
        keep_alive: int = 60,
        will: Will | None = None,
        username: Text | None = None,
        password: Text | None = None,
        properties: Block = (),
        *,
        client_id: Text | None = None,
        session_expiry: int | None = None,
        expect_code: int = 0,
        timeout: float | None = None,
        **overrides: Any,
    ) -> Connack:
        """Send CONNECT and return CONNACK, which must have `expect_code`.

        Opens a new network connection if there is none or it has been used (for a second CONNECT on
        one connection use `send`). `session_expiry` (5.0) is short for that property; `overrides`
        are further arguments of `wire.connect`.
        """
        if not self.is_open or self.eof or self.connack is not None:
            self.open()
        if self.version >= 5 and session_expiry is not None:
            assert not isinstance(properties, bytes)
            properties = [(tables.SESSION_EXPIRY, session_expiry), *properties]
        self.send(
            wire.connect(
                self.client_id if client_id is None else client_id,
                version=self.version,
                clean=clean,
                keep_alive=keep_alive,
                will=will,
                username=username,
                password=password,
                properties=properties,
                **overrides,
            )
        )
        return self.expect_connack(expect_code, timeout)

    def expect_connack(self, code: int = 0, timeout: float | None = None) -> Connack:
        """Return CONNACK, which must have this code."""
        self.connack = self.expect(Connack, timeout)
        if self.connack.code != code:
            self.fail(f"received {packets.describe(self.connack)}", expected=f"code 0x{code:02X}")
        return self.connack

    def next_id(self) -> int:
        """Return a packet identifier that this client has not used yet."""
        self._next_id += 1
        return self._next_id

    def subscribe(
        self,
        filters: Text | Iterable[Filter],
        qos: int = 0,
        properties: Block = (),
        *,
        packet_id: int | None = None,
        timeout: float | None = None,
    ) -> Suback:
        """Subscribe to one filter at `qos`, or to (filter, options byte) pairs; return SUBACK."""
        if isinstance(filters, (str, bytes)):
            filters = [(filters, qos)]
        packet_id = self.next_id() if packet_id is None else packet_id
        self.send(
            wire.subscribe(packet_id, list(filters), version=self.version, properties=properties)
        )
        return self.expect(Suback, timeout, packet_id=packet_id)

    def unsubscribe(
        self,
        filters: Text | Iterable[Text],
        properties: Block = (),
        *,
        packet_id: int | None = None,
        timeout: float | None = None,
    ) -> Unsuback:
        """Unsubscribe from one or more filters; return UNSUBACK."""
        if isinstance(filters, (str, bytes)):
            filters = [filters]
        packet_id = self.next_id() if packet_id is None else packet_id
        self.send(
            wire.unsubscribe(packet_id, list(filters), version=self.version, properties=properties)
        )
        return self.expect(Unsuback, timeout, packet_id=packet_id)

    def publish(
        self,
        topic: Text,
        payload: Text = b"",
        qos: int = 0,
        retain: bool = False,
        dup: bool = False,
        packet_id: int | None = None,
        properties: Block = (),
        wait: bool = True,
    ) -> Puback | Pubrec | Pubcomp | None:
        """Publish; with `wait` complete the handshake and return the last acknowledgement.

        A PUBREC of 0x80 and above ends the handshake and is returned. At QoS 0 or without `wait`
        return None.
        """
        if qos and packet_id is None:
            packet_id = self.next_id()
        self.send(
            wire.publish(
                topic,
                payload,
                version=self.version,
                qos=qos,
                retain=retain,
                dup=dup,
                packet_id=packet_id,
                properties=properties,
            )
        )
        if not wait or not qos:
            return None
        if qos == 1:
            return self.expect(Puback, packet_id=packet_id)
        assert packet_id is not None
        pubrec = self.expect(Pubrec, packet_id=packet_id)
        if pubrec.reason >= 0x80:
            return pubrec
        self.pubrel(packet_id)
        return self.expect(Pubcomp, packet_id=packet_id)

    def acknowledge(self, publish: Publish) -> None:
        """Complete the QoS flow of a delivery."""
        if publish.packet_id is None:
            return
        if publish.qos == 1:
            self.puback(publish.packet_id)
            return
        self.pubrec(publish.packet_id)
        self.expect_pubrel(publish.packet_id)
        self.pubcomp(publish.packet_id)

    def expect_pubrel(self, packet_id: int, timeout: float | None = None) -> Pubrel:
        """Return the PUBREL of this delivery."""
        return self.expect(Pubrel, timeout, packet_id=packet_id)

    def puback(self, packet_id: int, reason: int | None = None) -> None:
        """Send PUBACK."""
        self.send(wire.puback(packet_id, reason))

    def pubrec(self, packet_id: int, reason: int | None = None) -> None:
        """Send PUBREC."""
        self.send(wire.pubrec(packet_id, reason))

    def pubrel(self, packet_id: int, reason: int | None = None) -> None:
        """Send PUBREL."""
        self.send(wire.pubrel(packet_id, reason))

    def pubcomp(self, packet_id: int, reason: int | None = None) -> None:
        """Send PUBCOMP."""
        self.send(wire.pubcomp(packet_id, reason))

    def ping(self) -> Pingresp:
        """Send PINGREQ and return PINGRESP."""
        self.send(wire.pingreq())
        return self.expect(Pingresp)

    def disconnect(self, reason: int | None = None, properties: Block | None = None) -> None:
        """Send DISCONNECT and close; return when the broker has closed the connection as well."""
        if self.is_open:
            self.send(wire.disconnect(reason, properties))
            self.close()

    def subscribe_marker(self, topic: str, qos: int) -> None:
        """Subscribe to the topic of a barrier, see `Bench.barrier`."""
        self.connection.marker = topic
        self._next_marker_id += 1
        self.subscribe(topic, qos, packet_id=self._next_marker_id)

    def publish_marker(self, topic: str, qos: int) -> None:
        """Publish the message of a barrier."""
        self._next_marker_id += 1
        self.publish(topic, qos=qos, packet_id=self._next_marker_id if qos else None)

    def await_marker(self, timeout: float | None = None) -> None:
        """Set everything aside until the message of the barrier has arrived."""
        deadline = self._deadline(timeout)
        topic = self.connection.marker
        while self.connection.marker:
            try:
                packet = self.connection.arrive(deadline, until_marker=True)
            except Silence:
                self._missing("the barrier message is not delivered", f"PUBLISH {topic}")
            if packet is not None:
                self.inbox.append(packet)
            elif self.connection.marker:
                self._missing("the broker closed the connection", f"PUBLISH {topic}")


def _has_id(packet: Packet, packet_id: int | None) -> bool:
    return packet_id is None or getattr(packet, "packet_id", None) == packet_id


__all__ = ["Client", "Failure", "Silence", "Stream", "Will"]

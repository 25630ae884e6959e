"""A blocking MQTT client that does only what a test tells it.

It never acknowledges, re-sends or reconnects by itself, so a test can leave any exchange open. It
uses the broker's own codec. Its verbs: `connect`, `resume`, `subscribe`, `publish`, `take`,
`expect_publish`, `expect_nothing`, `drop`. Every failure shows the last packets of the connection.
Read next: `load` (clients that behave as MQTT requires).
"""

import socket
import struct
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, Self, TypeVar

from mqtt.decoder import Decoder
from mqtt.encoder import encode
from mqtt.packets import (
    Connack,
    Connect,
    Disconnect,
    Pingreq,
    Pingresp,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    Subscription,
    Unsuback,
    Unsubscribe,
    Will,
)
from mqtt.reasons import USE_ANOTHER_SERVER

PATIENCE_SECONDS: Final = 60.0  # for one packet; long because the machine may be busy
AGAIN_SECONDS: Final = 0.3  # how long `take_all` listens after the answer to its PINGREQ
LISTEN_SECONDS: Final = 0.1  # how long `expect_nothing` listens between its two round trips
FOREVER: Final = 0xFFFFFFFF
# The reason code of a CONNACK of a node that does not lead its cluster, in MQTT 3 and in MQTT 5.
AWAY: Final = (3, USE_ANOTHER_SERVER)
TRACE_MAX: Final = 60
PACKET_MAX: Final = 268_435_460

P = TypeVar("P")


class Closed(AssertionError):
    """The broker closed the connection. `disconnect` is the DISCONNECT it sent before, if any."""

    def __init__(self, message: str, disconnect: Disconnect | None) -> None:
        super().__init__(message)
        self.disconnect = disconnect


class Silence(AssertionError):
    """No packet arrived in time."""


class RawClient:
    """One MQTT client with at most one connection at a time."""

    def __init__(self, port: int, client_id: str, *, version: int = 5) -> None:
        self.port: int = port
        self.client_id: str = client_id
        self.version: int = version
        self.inbox: deque[Any] = deque()  # received, not taken yet
        self.trace: deque[tuple[str, Any]] = deque(maxlen=TRACE_MAX)
        self.disconnected: Disconnect | None = None  # the DISCONNECT the broker sent last
        self._socket: socket.socket | None = None
        self._decoder: Decoder | None = None
        self.window_max: int = 65_535  # Receive Maximum of the broker
        self._last_packet_id: int = 0

    # Connection

    def open(self) -> Self:
        """Open the TCP connection only."""
        self.drop()
        self._socket = socket.create_connection(("127.0.0.1", self.port), PATIENCE_SECONDS)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._decoder = Decoder("client", PACKET_MAX, self.version)
        self.inbox.clear()
        self.disconnected = None
        self.trace.append(("--", "open"))
        return self

    def connect(
        self,
        *,
        clean_start: bool = True,
        expiry: int = 0,
        keep_alive: int = 0,
        will: Will | None = None,
        reason: int = 0,
        **fields: Any,
    ) -> Connack:
        """Connect and return the CONNACK, whose reason code must be `reason`.

        `expiry` is the Session Expiry Interval in seconds, not used in v3.1.1; `fields` are further
        fields of `mqtt.packets.Connect`.
        """
        self.open()
        if self.version == 5:
            fields["session_expiry_interval"] = expiry
        fields.setdefault("username", None)
        fields.setdefault("password", None)
        packet = Connect(
            client_id=self.client_id,
            protocol_version=self.version,
            clean_start=clean_start,
            keep_alive=keep_alive,
            will=will,
            **fields,
        )
        self.send(packet)
        connack = self.receive()
        assert isinstance(connack, Connack), self._story(f"expected CONNACK, got {connack!r}")
        if connack.reason_code == AWAY[self.version == 5] and reason == 0:
            raise Closed(self._story(f"sent away: {connack!r}"), None)
        assert connack.reason_code == reason, self._story(f"CONNACK {connack!r}")
        self.window_max = connack.receive_maximum
        if connack.assigned_client_id is not None:
            self.client_id = connack.assigned_client_id
        return connack

    def durable(self, *, expiry: int = 3600, **fields: Any) -> Connack:
        """Connect with Clean Start 0 and a session expiry of `expiry` seconds."""
        return self.connect(clean_start=False, expiry=expiry, **fields)

    def resume(self, *, expiry: int = 3600, **fields: Any) -> Connack:
        """Connect as `durable` does; the broker must still have the session."""
        connack = self.durable(expiry=expiry, **fields)
        assert connack.session_present, self._story("the session is gone: session_present=0")
        return connack

    def disconnect(self, reason: int = 0, *, expiry: int | None = None) -> None:
        """Send DISCONNECT and wait until the broker has closed."""
        self.send(Disconnect(reason, session_expiry_interval=expiry))
        self.expect_closed()
        self.drop()

    def drop(self, *, reset: bool = False) -> None:
        """Close without DISCONNECT, with FIN or RST; do nothing if already closed."""
        if self._socket is None:
            return
        if reset:
            linger = struct.pack("ii", 1, 0)
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        self._socket.close()
        self._socket = None
        self.trace.append(("--", "drop"))

    @property
    def is_open(self) -> bool:
        """Return whether there is a connection that we have not closed."""
        return self._socket is not None

    def expect_closed(self, timeout: float = PATIENCE_SECONDS) -> Disconnect | None:
        """Wait until the broker closes; return the DISCONNECT it sent, if any."""
        deadline = time.monotonic() + timeout
        while True:
            try:
                self._fill(deadline)
            except Closed as closed:
                return closed.disconnect

    def __del__(self) -> None:
        if self._socket is not None:  # the test failed
            self._socket.close()

    # Packets

    def send(self, *packets: Any) -> None:
        """Send packets in one write."""
        for packet in packets:
            self.trace.append(("->", packet))
        self.send_bytes(b"".join(encode(packet, self.version) for packet in packets))

    def send_bytes(self, data: bytes) -> None:
        """Send raw bytes."""
        assert self._socket is not None, self._story("not connected")
        try:
            self._socket.settimeout(PATIENCE_SECONDS)
            self._socket.sendall(data)
        except (ConnectionError, TimeoutError) as error:
            raise Closed(self._story(f"cannot send: {error}"), self.disconnected) from None

    def receive(self, timeout: float = PATIENCE_SECONDS) -> Any:
        """Return the next packet; raises Closed or Silence."""
        deadline = time.monotonic() + timeout
        while not self.inbox:
            self._fill(deadline)
        return self.inbox.popleft()

    def expect(
        self,
        kind: type[P],
        matches: Callable[[P], bool] = lambda packet: True,
        timeout: float = PATIENCE_SECONDS,
    ) -> P:
        """Return the next packet of this kind that `matches`; others stay in the inbox."""
        deadline = time.monotonic() + timeout
        position = 0
        while True:
            while position < len(self.inbox):
                packet = self.inbox[position]
                if isinstance(packet, kind) and matches(packet):
                    del self.inbox[position]
                    return packet
                position += 1
            self._fill(deadline)

    def packet_id(self) -> int:
        """Return the next packet id of this client."""
        self._last_packet_id = self._last_packet_id % 65_535 + 1
        return self._last_packet_id

    def ping(self) -> None:
        """Make a PINGREQ round trip."""
        self.send(Pingreq())
        self.expect(Pingresp)

    def expect_nothing(self, *, listen: float = LISTEN_SECONDS) -> None:
        """Check that nothing comes during two PINGREQ round trips with a wait between them."""
        self.ping()
        try:
            self._fill(time.monotonic() + listen)
        except Silence:
            self.ping()
        assert not self.inbox, self._story(f"unexpected: {[_short(p) for p in self.inbox]}")

    # Subscribing

    def subscribe(self, *filters: str, qos: int = 1, identifier: int = 0, **options: Any) -> Suback:
        """Subscribe to all filters with the same options; all must be granted."""
        wanted = [Subscription(topic_filter, qos, **options) for topic_filter in filters]
        packet_id = self.packet_id()
        self.send(Subscribe(packet_id, wanted, subscription_identifier=identifier))
        suback = self.expect(Suback, lambda packet: packet.packet_id == packet_id)
        assert suback.reason_codes == [qos] * len(filters), self._story(f"SUBACK {suback!r}")
        return suback

    def unsubscribe(self, *filters: str) -> Unsuback:
        """Unsubscribe and return the UNSUBACK."""
        packet_id = self.packet_id()
        self.send(Unsubscribe(packet_id, list(filters)))
        return self.expect(Unsuback, lambda packet: packet.packet_id == packet_id)

    # Publishing

    def publish(
        self,
        topic: str,
        payload: bytes | str = b"",
        *,
        qos: int = 1,
        reason: int = 0,
        **fields: Any,
    ) -> int:
        """Publish one message and complete its handshake; return its packet id."""
        packet_id = self.publish_begin(topic, payload, qos=qos, **fields)
        if qos == 1:
            answer: Any = self.expect(Puback, lambda packet: packet.packet_id == packet_id)
        elif qos == 2:
            answer = self.expect(Pubrec, lambda packet: packet.packet_id == packet_id)
        else:
            return 0
        # 0x10 is success too: accepted, but no matching subscriber.
        assert answer.reason_code in (reason, 0x10 if reason == 0 else reason), self._story(
            f"{answer!r}"
        )
        if qos == 2 and answer.reason_code < 0x80:
            self.release(packet_id)
        return packet_id

    def publish_begin(
        self,
        topic: str,
        payload: bytes | str = b"",
        *,
        qos: int = 1,
        packet_id: int = 0,
        **fields: Any,
    ) -> int:
        """Send a PUBLISH only; return its packet id (0 at QoS 0)."""
        if qos and not packet_id:
            packet_id = self.packet_id()
        data = payload.encode() if isinstance(payload, str) else payload
        self.send(Publish(topic, data, qos=qos, packet_id=packet_id if qos else 0, **fields))
        return packet_id

    def release(self, packet_id: int) -> Pubcomp:
        """Send PUBREL and return the PUBCOMP."""
        self.send(Pubrel(packet_id))
        return self.expect(Pubcomp, lambda packet: packet.packet_id == packet_id)

    def publish_all(
        self,
        messages: Sequence[tuple[str, bytes]],
        *,
        qos: int,
        window: int = 100,
        retain: bool = False,
    ) -> None:
        """Publish many with up to `window` in flight; return at the last PUBACK or PUBCOMP."""
        window = min(window, self.window_max)
        to_send = iter(messages)
        open_ids: set[int] = set()
        left = len(messages)
        while left:
            burst: list[Any] = []
            while len(open_ids) < window and (message := next(to_send, None)) is not None:
                packet_id = self.packet_id()
                open_ids.add(packet_id)
                burst.append(Publish(*message, qos=qos, retain=retain, packet_id=packet_id))
            for packet in [self.receive()] if not burst else []:
                if isinstance(packet, Pubrec) and packet.reason_code < 0x80:
                    burst.append(Pubrel(packet.packet_id))
                elif isinstance(packet, (Puback, Pubcomp)):
                    assert packet.reason_code < 0x80, self._story(f"{packet!r}")
                    open_ids.remove(packet.packet_id)
                    left -= 1
                else:
                    raise AssertionError(self._story(f"unexpected {packet!r}"))
            self.send(*burst)

    # Receiving

    def expect_publish(
        self,
        payload: bytes | str | None = None,
        *,
        acknowledge: bool = True,
        timeout: float = PATIENCE_SECONDS,
        **fields: Any,
    ) -> Publish:
        """Return the next PUBLISH, which must have this payload and these field values."""
        publish = self.expect(Publish, timeout=timeout)
        if payload is not None:
            wanted = payload.encode() if isinstance(payload, str) else payload
            assert publish.payload == wanted, self._story(f"expected {wanted!r}, got {publish!r}")
        for name, value in fields.items():
            actual = getattr(publish, name)
            assert actual == value, self._story(f"{name}={actual!r}, not {value!r}: {publish!r}")
        if acknowledge:
            self.acknowledge(publish)
        return publish

    def acknowledge(self, publish: Publish) -> None:
        """Complete the handshake of a received PUBLISH."""
        if publish.qos == 1:
            self.send(Puback(publish.packet_id))
        elif publish.qos == 2:
            self.send(Pubrec(publish.packet_id))
            self.expect(Pubrel, lambda packet: packet.packet_id == publish.packet_id)
            self.send(Pubcomp(publish.packet_id))

    def take(self, count: int, *, timeout: float = PATIENCE_SECONDS) -> list[Publish]:
        """Receive `count` messages and complete their handshakes."""
        received: list[Publish] = []
        owed: set[int] = set()
        while len(received) < count or owed:
            try:
                packet = self.receive(timeout)
            except Silence:
                raise Silence(
                    self._story(f"{len(received)} of {count} messages, then silence")
                ) from None
            if isinstance(packet, Publish):
                received.append(packet)
                if packet.qos == 1:
                    self.send(Puback(packet.packet_id))
                elif packet.qos == 2:
                    self.send(Pubrec(packet.packet_id))
                    owed.add(packet.packet_id)
            elif isinstance(packet, Pubrel):
                self.send(Pubcomp(packet.packet_id))
                owed.discard(packet.packet_id)
            else:
                raise AssertionError(self._story(f"unexpected {packet!r}"))
        assert len(received) == count, self._story(f"{len(received)} messages, not {count}")
        return received

    def take_all(
        self, *, idle: float, enough: int = 0, idle_then: float | None = None
    ) -> list[Publish]:
        """Receive and acknowledge until nothing has come for `idle` seconds (for any broker).

        After `enough` messages it waits for `idle_then` seconds only. A silence counts if a
        PINGREQ is answered after it: a broker may just have got no processor for so long.
        """
        received: list[Publish] = []
        has_answered = False
        while True:
            if idle_then is not None and len(received) >= enough:
                idle = idle_then
            try:
                packet = self.receive(min(idle, AGAIN_SECONDS) if has_answered else idle)
            except Closed:
                return received
            except Silence:
                if has_answered:
                    return received
                try:
                    self.ping()
                except (Silence, Closed):
                    return received
                has_answered = True
                continue
            has_answered = False
            if isinstance(packet, Publish):
                received.append(packet)
                if packet.qos:
                    kind = Puback if packet.qos == 1 else Pubrec
                    self.send(kind(packet.packet_id))
            elif isinstance(packet, Pubrel):
                self.send(Pubcomp(packet.packet_id))

    # Inside

    def _fill(self, deadline: float) -> None:
        """Read from the socket once and put the packets into the inbox."""
        assert self._socket is not None and self._decoder is not None, self._story("not connected")
        self._socket.settimeout(max(0.001, deadline - time.monotonic()))
        try:
            data = self._socket.recv(262_144)
        except TimeoutError:
            raise Silence(self._story("nothing arrived")) from None
        except ConnectionError:
            data = b""
        if not data:
            self.trace.append(("--", "closed by the broker"))
            raise Closed(self._story("closed by the broker"), self.disconnected)
        packets = self._decoder.receive(data)
        assert self._decoder.error is None, self._story(f"bad bytes: {self._decoder.error!r}")
        for packet in packets:
            self.trace.append(("<-", packet))
            if isinstance(packet, Disconnect):
                self.disconnected = packet
        self.inbox.extend(packets)

    def _story(self, message: str) -> str:
        lines = "\n  ".join(f"{way} {_short(packet)}" for way, packet in self.trace)
        return f"{self.client_id}: {message}\n  {lines}"


def _short(packet: Any) -> str:
    text = packet if isinstance(packet, str) else repr(packet)
    return text if len(text) <= 200 else text[:200] + "…"

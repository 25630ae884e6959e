"""One MQTT 5 client of a canary: connects with a backoff, keeps its session, logs what it saw.

Must never be used inside the broker: to connect and to send, it blocks for some seconds at most.
"""

import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from broker.cli.canary.log import CanaryLog, message_fields
from mqtt import encoder
from mqtt.decoder import Decoder
from mqtt.packets import (
    Connack,
    Connect,
    Disconnect,
    Packet,
    Pingreq,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    Subscription,
)

VERSION_5: Final = 5
RECEIVE_BYTES: Final = 65_536
CONNECT_S: Final = 10.0
KEEP_ALIVE_S: Final = 60
PING_S: Final = 20.0
BACKOFF_MIN_S: Final = 0.5
BACKOFF_MAX_S: Final = 30.0
FAILED: Final = 0x80


class ClientError(Exception):
    """The connection ended or was refused; one line that says why."""


@dataclass(frozen=True)
class Server:
    """Where to connect, and as whom."""

    host: str
    port: int
    tls: ssl.SSLContext | None
    username: str | None
    password: bytes | None

    @property
    def name(self) -> str:
        """Return the address as it is logged."""
        return f"{self.host}:{self.port}"


class CanaryClient:
    """A client whose session lasts over its connections, if `expiry_s` says so."""

    def __init__(
        self,
        server: Server,
        client_id: str,
        log: CanaryLog | None,
        clock: Callable[[], float],
        *,
        expiry_s: int,
    ) -> None:
        self.client_id: Final = client_id
        self.connected_at: float | None = None
        self.session_present: bool = False
        self.on_message: Callable[[Publish], None] = _ignore
        self.on_acknowledged: Callable[[int, int], None] = _ignore_answer  # packet id, reason
        self.granted: set[str] = set()
        self._server: Final = server
        self._log: Final = log
        self._clock: Final = clock
        self._expiry_s: Final = expiry_s
        self._socket: socket.socket | None = None
        self._decoder: Decoder = Decoder("client", 0, VERSION_5)
        self._packet_id: int = 0
        self._outgoing: Final[dict[int, tuple[Publish, bool]]] = {}  # and is it released?
        self._incoming: Final[set[int]] = set()  # at QoS 2, until PUBREL
        self._asked: Final[dict[int, str]] = {}  # topic filters without SUBACK
        self._backoff_s: float = BACKOFF_MIN_S
        self._retry_at: float = 0.0
        self._sent_at: float = 0.0
        self._heard_at: float = 0.0

    # The connection.

    @property
    def socket(self) -> socket.socket | None:
        """Return what to wait for, or None without a connection."""
        return self._socket

    def may_connect(self, now: float) -> bool:
        """Return whether it is time to try (again)."""
        return self._socket is None and now >= self._retry_at

    def connect(self, *, clean_start: bool) -> None:
        """Connect and send again what has no answer. Raises `ClientError`, then waits longer."""
        now = self._clock()
        self._retry_at = now + self._backoff_s
        self._backoff_s = min(self._backoff_s * 2, BACKOFF_MAX_S)
        try:
            opened = socket.create_connection((self._server.host, self._server.port), CONNECT_S)
        except (OSError, UnicodeError) as problem:
            raise ClientError(f"cannot connect to {self._server.name}: {_words(problem)}") from None
        try:
            opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._server.tls is not None:
                opened = self._server.tls.wrap_socket(opened, server_hostname=self._server.host)
        except (OSError, ValueError) as problem:
            opened.close()
            raise ClientError(f"no TLS with {self._server.name}: {_words(problem)}") from None
        self._socket = opened
        self._decoder = Decoder("client", 0, VERSION_5)
        self._send(
            Connect(
                self.client_id,
                clean_start=clean_start,
                keep_alive=KEEP_ALIVE_S,
                username=self._server.username,
                password=self._server.password,
                session_expiry_interval=self._expiry_s,
            )
        )
        self._shake_hands()

    def _shake_hands(self) -> None:
        packets: list[Packet] = []
        while not packets:
            packets = self._read()
        connack = packets[0]
        if not isinstance(connack, Connack) or connack.reason_code:
            code = getattr(connack, "reason_code", 0)
            self.close()
            raise ClientError(f"{self._server.name} refused the connection: reason {code:#04x}")
        self._backoff_s = BACKOFF_MIN_S
        self.connected_at = self._heard_at = self._clock()
        self.session_present = connack.session_present
        self._note("connected", session_present=connack.session_present, server=self._server.name)
        if not self.session_present:
            self._outgoing.clear()
            self._incoming.clear()
            self.granted.clear()
        self._asked.clear()
        for packet_id, (publish, is_released) in self._outgoing.items():
            publish.dup = True
            self._send(Pubrel(packet_id) if is_released else publish)
        for packet in packets[1:]:
            self._handle(packet)

    def leave(self, *, expiry_s: int | None = None) -> None:
        """Say good-bye; with `expiry_s` 0 the session ends."""
        if self._socket is None:
            return
        try:
            self._send(Disconnect(0, session_expiry_interval=expiry_s))
        except ClientError:
            return  # it is closed already
        self._note("disconnected", reason=0)
        self.close()

    def close(self) -> None:
        """Close the socket."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        self.connected_at = None

    # What it asks for.

    def subscribe(self, topic_filter: str, qos: int) -> None:
        """Subscribe; `granted` has the filter when SUBACK came. Raises `ClientError`."""
        packet_id = self._next_packet_id()
        self._asked[packet_id] = topic_filter
        self._send(Subscribe(packet_id, [Subscription(topic_filter, qos)]))

    def publish(self, topic: str, payload: bytes, qos: int, *, retain: bool = False) -> int:
        """Publish at QoS 1 or 2; return the packet id. Raises `ClientError`: it is sent later."""
        publish = Publish(topic, payload, qos, retain=retain, packet_id=self._next_packet_id())
        self._outgoing[publish.packet_id] = (publish, False)
        self._note(
            "published", pid=publish.packet_id, qos=qos, topic=topic, retain=retain,
            **message_fields(payload),
        )  # fmt: skip
        return publish.packet_id

    def flush(self, packet_id: int) -> None:
        """Send what `publish` made. Raises `ClientError`; then `connect` sends it again."""
        publish, _ = self._outgoing[packet_id]
        self._send(publish)

    # What comes.

    def turn(self) -> None:
        """Handle what has come, and ask for a sign of life when it is time. `ClientError`."""
        for packet in self._read():
            self._handle(packet)
        self.ping()

    def ping(self) -> None:
        """Ask for a sign of life when it is time. Raises `ClientError`."""
        if self._socket is None:
            return
        now = self._clock()
        if now - self._heard_at > 2 * PING_S + CONNECT_S:
            self.close()
            self._note("disconnected")
            raise ClientError("the broker says nothing any more")
        if now - self._sent_at > PING_S or now - self._heard_at > 2 * PING_S:
            self._send(Pingreq())

    def _handle(self, packet: Packet) -> None:
        if isinstance(packet, Publish):
            self._take(packet)
        elif isinstance(packet, Puback):
            self._note("puback", pid=packet.packet_id, reason=packet.reason_code)
            self._end(packet.packet_id, packet.reason_code)
        elif isinstance(packet, Pubrec):
            self._note("pubrec", pid=packet.packet_id, reason=packet.reason_code)
            self._release(packet)
        elif isinstance(packet, Pubcomp):
            self._note("pubcomp", pid=packet.packet_id, reason=packet.reason_code)
            # Behind a crash the broker may not know the identifier any more: it has ended. The
            # message was accepted with PUBREC.
            self._end(packet.packet_id, 0)
        elif isinstance(packet, Pubrel):
            self._incoming.discard(packet.packet_id)
            self._send(Pubcomp(packet.packet_id))
        elif isinstance(packet, Suback):
            self._answered(packet)
        elif isinstance(packet, Disconnect):
            self._note("disconnected", reason=packet.reason_code)
            self.close()
            raise ClientError(f"the broker disconnected: reason {packet.reason_code:#04x}")

    def _take(self, publish: Publish) -> None:
        is_known = publish.qos == 2 and publish.packet_id in self._incoming
        if not is_known:
            self._note(
                "received", pid=publish.packet_id, qos=publish.qos, topic=publish.topic,
                dup=publish.dup, retain=publish.retain, **message_fields(publish.payload),
            )  # fmt: skip
            self.on_message(publish)
        if publish.qos == 2:
            self._incoming.add(publish.packet_id)
            self._send(Pubrec(publish.packet_id))
        elif publish.qos == 1:
            self._send(Puback(publish.packet_id))

    def _release(self, pubrec: Pubrec) -> None:
        open_ = self._outgoing.get(pubrec.packet_id)
        if pubrec.reason_code >= FAILED:
            self._end(pubrec.packet_id, pubrec.reason_code)
            return
        if open_ is not None:
            self._outgoing[pubrec.packet_id] = (open_[0], True)
        self._send(Pubrel(pubrec.packet_id))

    def _end(self, packet_id: int, reason: int) -> None:
        if self._outgoing.pop(packet_id, None) is not None:
            self.on_acknowledged(packet_id, reason)

    def _answered(self, suback: Suback) -> None:
        topic_filter = self._asked.pop(suback.packet_id, None)
        if topic_filter is None:
            return
        reason = suback.reason_codes[0]
        self._note("subscribed", filter=topic_filter, reason=reason)
        if reason >= FAILED:
            raise ClientError(f"the subscription to {topic_filter} was refused: {reason:#04x}")
        self.granted.add(topic_filter)

    # Bytes.

    def _next_packet_id(self) -> int:
        self._packet_id = self._packet_id % 65_535 + 1
        while self._packet_id in self._outgoing:
            self._packet_id = self._packet_id % 65_535 + 1
        return self._packet_id

    def _send(self, packet: Packet) -> None:
        if self._socket is None:
            raise ClientError("not connected")
        try:
            self._socket.sendall(encoder.encode(packet, VERSION_5))
        except OSError as problem:
            self._lost(_words(problem))
        self._sent_at = self._clock()

    def _read(self) -> list[Packet]:
        if self._socket is None:
            return []
        try:
            data = self._socket.recv(RECEIVE_BYTES)
            while isinstance(self._socket, ssl.SSLSocket) and self._socket.pending():
                data += self._socket.recv(self._socket.pending())
        except OSError as problem:
            self._lost(_words(problem))
        if not data:
            self._lost("the broker closed it")
        packets = list(self._decoder.receive(data))
        if self._decoder.error is not None:
            self._lost(f"not MQTT 5: {self._decoder.error}")
        self._heard_at = self._clock()
        return packets

    def _lost(self, why: str) -> None:
        if self.connected_at is not None:
            self._note("disconnected")
        self.close()
        raise ClientError(f"connection lost: {why}")

    def _note(self, event: str, **fields: object) -> None:
        if self._log is not None:
            self._log.record(self.client_id, event, **fields)


def _words(problem: Exception) -> str:
    return getattr(problem, "strerror", None) or str(problem) or type(problem).__name__


def _ignore(publish: Publish) -> None:
    pass


def _ignore_answer(packet_id: int, reason: int) -> None:
    pass

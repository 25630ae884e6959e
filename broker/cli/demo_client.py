"""A small MQTT 5 client over a blocking socket, for `holdfast demo` and for operators' tools.

Keeps its QoS 1/2 state in memory across `connect` calls, as a device with a durable session does,
and sends again what was not acknowledged. Must never be used inside the broker: it blocks.
"""

import socket
from collections import deque
from typing import Final

from mqtt import encoder, reasons
from mqtt.decoder import Decoder
from mqtt.packets import (
    Connack,
    Connect,
    Disconnect,
    Packet,
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


class ClientError(Exception):
    """The connection ended or the broker refused; one line saying what happened."""


class Client:
    """One MQTT 5 client with a session that lasts an hour after each connection."""

    def __init__(self, client_id: str, *, timeout_s: float = 10.0) -> None:
        self.client_id: str = client_id
        self.session_present: bool = False
        self.acknowledged: list[bytes] = []  # payloads whose flow is complete, in that order
        self.received: deque[Publish] = deque()  # deliveries, a repeated QoS 2 id not twice
        self._timeout_s = timeout_s
        self._socket: socket.socket | None = None
        self._decoder = Decoder("client", 0, VERSION_5)
        self._buffer: deque[Packet] = deque()  # decoded and not yet looked at
        self._next_packet_id = 1
        # Unfinished publishes by packet id in sending order: the message, and is it released?
        self._outgoing: dict[int, tuple[Publish, bool]] = {}
        self._incoming_qos2: set[int] = set()

    # The connection.

    def connect(self, port: int, *, session_expiry_interval: int = 3600) -> None:
        """Connect to 127.0.0.1, resume the session and send again what is unfinished."""
        self._decoder = Decoder("client", 0, VERSION_5)
        self._buffer.clear()
        self.close()
        try:
            self._socket = socket.create_connection(("127.0.0.1", port), self._timeout_s)
        except OSError as problem:
            raise ClientError(f"cannot connect to 127.0.0.1:{port}: {problem}") from None
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._send(
            Connect(
                self.client_id,
                clean_start=False,
                session_expiry_interval=session_expiry_interval,
            )
        )
        connack = self._next()
        if not isinstance(connack, Connack) or connack.reason_code:
            self.close()
            raise ClientError(f"{self.client_id}: CONNECT was answered by {connack!r}")
        self.session_present = connack.session_present
        for packet_id, (publish, is_released) in self._outgoing.items():
            if is_released:
                self._send(Pubrel(packet_id))
            else:
                publish.dup = True
                self._send(publish)

    def disconnect(self) -> None:
        """Say good-bye and close; the session stays for its expiry interval."""
        self._send(Disconnect(reasons.NORMAL_DISCONNECTION))
        self.close()

    def close(self) -> None:
        """Close the socket and say nothing, as a device that lost its network."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    # Sending.

    def subscribe(self, topic_filter: str, qos: int) -> None:
        """Subscribe and wait for the answer."""
        self._send(Subscribe(self._packet_id(), [Subscription(topic_filter, qos)]))
        answer = self._next()
        if not isinstance(answer, Suback) or max(answer.reason_codes) >= 0x80:
            raise ClientError(f"{self.client_id}: SUBSCRIBE was answered by {answer!r}")

    def publish(self, topic: str, payload: bytes, qos: int) -> None:
        """Send a QoS 1 or 2 message; its acknowledgement arrives through `step`."""
        publish = Publish(topic, payload, qos, packet_id=self._packet_id())
        self._outgoing[publish.packet_id] = (publish, False)
        self._send(publish)

    @property
    def unfinished(self) -> int:
        """Publishes that are not completely acknowledged."""
        return len(self._outgoing)

    def finish(self) -> None:
        """Wait until every publish is acknowledged."""
        while self._outgoing:
            self.step()

    # Receiving.

    def step(self) -> None:
        """Wait for one packet and answer it; TimeoutError when none comes."""
        packet = self._next()
        if isinstance(packet, Puback):
            self._complete(packet.packet_id, packet.reason_code)
        elif isinstance(packet, Pubrec):
            self._release(packet)
        elif isinstance(packet, Pubcomp):
            self._complete(packet.packet_id, 0)
        elif isinstance(packet, Publish):
            self._take(packet)
        elif isinstance(packet, Pubrel):
            self._incoming_qos2.discard(packet.packet_id)
            self._send(Pubcomp(packet.packet_id))
        elif isinstance(packet, Disconnect):
            raise ClientError(f"{self.client_id}: the broker said {packet!r}")

    def receive_all(self, *, quiet_s: float) -> None:
        """Take deliveries until none has come for `quiet_s` seconds."""
        assert self._socket is not None
        self._socket.settimeout(quiet_s)
        try:
            while True:
                self.step()
        except TimeoutError:
            self._socket.settimeout(self._timeout_s)

    def _take(self, publish: Publish) -> None:
        if publish.qos == 2:
            if publish.packet_id not in self._incoming_qos2:
                self._incoming_qos2.add(publish.packet_id)
                self.received.append(publish)
            self._send(Pubrec(publish.packet_id))
            return
        self.received.append(publish)
        if publish.qos == 1:
            self._send(Puback(publish.packet_id))

    def _release(self, pubrec: Pubrec) -> None:
        publish, _ = self._outgoing[pubrec.packet_id]
        if pubrec.reason_code >= 0x80:
            raise ClientError(f"{self.client_id}: PUBLISH was refused by {pubrec!r}")
        self._outgoing[pubrec.packet_id] = (publish, True)
        self._send(Pubrel(pubrec.packet_id))

    def _complete(self, packet_id: int, reason_code: int) -> None:
        if reason_code >= 0x80:
            raise ClientError(f"{self.client_id}: PUBLISH was refused with {reason_code:#04x}")
        publish, _ = self._outgoing.pop(packet_id)
        self.acknowledged.append(publish.payload)

    # Bytes.

    def _packet_id(self) -> int:
        while self._next_packet_id in self._outgoing:
            self._next_packet_id = self._next_packet_id % 65_535 + 1
        packet_id = self._next_packet_id
        self._next_packet_id = packet_id % 65_535 + 1
        return packet_id

    def _send(self, packet: Packet) -> None:
        assert self._socket is not None
        try:
            self._socket.sendall(encoder.encode(packet, VERSION_5))
        except OSError as problem:
            raise ClientError(f"{self.client_id}: connection lost: {problem}") from None

    def _next(self) -> Packet:
        """Return the next packet; TimeoutError when the broker stays silent."""
        assert self._socket is not None
        while not self._buffer:
            try:
                data = self._socket.recv(RECEIVE_BYTES)
            except TimeoutError:
                raise
            except OSError as problem:
                raise ClientError(f"{self.client_id}: connection lost: {problem}") from None
            if not data:
                raise ClientError(f"{self.client_id}: the broker closed the connection")
            self._buffer.extend(self._decoder.receive(data))
            if self._decoder.error is not None:
                raise ClientError(f"{self.client_id}: {self._decoder.error}")
        return self._buffer.popleft()

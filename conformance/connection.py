"""One network connection of a client: it sends bytes and receives whole, judged packets.

Blocking, with a limit on every wait. Every packet that arrives is parsed strictly and judged by
`conformance.rules`; a violation is booked even if the check never looks at the packet. Which packet
should come next is the client's to judge. Read next: `conformance.client`.
"""

import contextlib
import socket
import ssl
import struct
import time
from collections.abc import Callable
from typing import Final, Protocol

from conformance import packets, wire
from conformance.failure import Failure, Violation
from conformance.packets import Packet, Publish
from conformance.record import Record
from conformance.rules import Rules

MARKER: Final = "~"  # first character of the topics of `Bench.barrier`
_RECEIVE_SIZE: Final = 1 << 16
_CLOSE_PATIENCE_S: Final = 1.0  # for the broker to close its side


class Stream(Protocol):
    """What a connection reads and writes: a socket, or a WebSocket over one."""

    def sendall(self, data: bytes, /) -> None:
        """Write all of `data`."""

    def recv(self, size: int, /) -> bytes:
        """Return some bytes, b"" at the end; raises TimeoutError."""

    def settimeout(self, seconds: float, /) -> None:
        """Set the longest wait of `recv` and `sendall`."""

    def shutdown(self, how: int, /) -> None:
        """End one direction."""

    def setsockopt(self, level: int, name: int, value: bytes, /) -> None:
        """Set an option of the socket."""

    def close(self) -> None:
        """Close it."""


class Silence(Failure):
    """Nothing arrived in time."""


class Connection:
    """One connection, open when it is made; raises `Failure` if it cannot be opened."""

    def __init__(
        self, open_stream: Callable[[], Stream], *, name: str, version: int, record: Record
    ) -> None:
        self.rules: Rules = Rules(version)
        self.last: Packet | None = None  # the last packet that arrived
        self.last_sent: bytes | None = None
        self.eof: bool = False  # has the broker ended the connection?
        self.alert: str = ""  # with which alert of TLS
        self.marker: str = ""  # topic of the barrier that is waited for
        self._name = name
        self._version = version
        self._record = record
        self._buffer = b""
        try:
            self._stream: Stream | None = open_stream()
        except OSError as problem:
            raise Failure(f"cannot open a connection to the broker: {problem}") from None

    @property
    def is_open(self) -> bool:
        """Is it open on our side?"""
        return self._stream is not None

    def send(self, data: bytes, patience: float) -> None:
        """Write raw bytes. If the broker has closed the connection they are discarded."""
        stream = self._stream
        assert stream is not None, f"client {self._name!r} is closed: call open() or connect()"
        self.last_sent = wire.hidden(data)
        for packet in self.rules.sent(data):
            self.last_sent = wire.hidden(packet.raw)
            self._record.sent(self._name, self.last_sent, packet.describe())
            if packet.retained_topic is not None:
                self._record.retained(packet.retained_topic)
        try:
            stream.settimeout(patience)
            stream.sendall(data)
        except TimeoutError:
            raise Failure(
                f"client {self._name}: the broker does not take what is sent to it"
            ) from None
        except OSError:
            pass  # closed by the broker: the next read sees the end

    def drop(self) -> None:
        """Reset the connection (RST), like a network failure."""
        if self._stream is not None:
            with contextlib.suppress(OSError):
                self._stream.setsockopt(
                    socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
                )
            self._record.note(self._name, "cuts the connection")
        self._discard()

    def close(self) -> None:
        """Close the connection; return when the broker has closed it as well."""
        if self._stream is None:
            return
        self._record.note(self._name, "closes the connection")
        with contextlib.suppress(OSError):
            self._stream.shutdown(socket.SHUT_WR)
        end = time.monotonic() + _CLOSE_PATIENCE_S
        while not self.eof and self._read_some(end - time.monotonic()):
            pass
        self._discard()

    def _discard(self) -> None:
        if self._stream is not None:
            self._stream.close()
            self._stream = None

    # Reading.

    def arrive(self, deadline: float, *, until_marker: bool = False) -> Packet | None:
        """Read the next packet; return None at the end of the connection, or at the marker.

        Raises `Silence` at `deadline`, `Violation` if the packet is wrong.
        """
        while True:
            packet = self._from_buffer()
            if packet is not None:
                return packet
            if self.eof or (until_marker and not self.marker):
                return None
            if not self._read_some(deadline - time.monotonic()) and time.monotonic() >= deadline:
                raise Silence(
                    f"client {self._name}: nothing came in time",
                    packet=self.last_sent,
                    was_sent=True,
                )

    def bytes_to_end(self, deadline: float) -> bytes:
        """Return the raw bytes up to the end of the connection, without judging them.

        Raises `Silence` if the connection is still open at `deadline`.
        """
        while not self.eof:
            if not self._read_some(deadline - time.monotonic()) and time.monotonic() >= deadline:
                raise Silence(f"client {self._name}: the broker keeps the connection open")
        data, self._buffer = self._buffer, b""
        if data:
            self._record.received(self._name, data, f"{len(data)} bytes")
        return data

    def _read_some(self, timeout: float) -> bool:
        """Read available bytes into the buffer; return False if none arrived in time."""
        assert self._stream is not None, f"client {self._name!r} is closed"
        self._stream.settimeout(max(timeout, 0.0005))
        try:
            data = self._stream.recv(_RECEIVE_SIZE)
        except (TimeoutError, BlockingIOError):
            return False
        except OSError as problem:
            data = b""  # a reset is an end too
            if isinstance(problem, ssl.SSLError):
                self.alert = (problem.reason or str(problem)).replace("_", " ").lower()
        if not data and not self.eof:
            self.eof = True
            self._record.note(self._name, "sees the end of the connection")
        self._buffer += data
        return True

    def _from_buffer(self) -> Packet | None:
        while len(self._buffer) >= 2:
            try:
                found = packets.header(self._buffer, self._version)
                if found is None or len(self._buffer) < sum(found):
                    return None
                raw, self._buffer = self._buffer[: sum(found)], self._buffer[sum(found) :]
                packet = self._parse(raw)
                self.last = packet
                self._record.received(self._name, raw, packets.describe(packet))
                packet = self.rules.received(packet)
            except Violation as violation:
                self._record.violation(self._name, violation)
                raise
            if not self._is_marker(packet):
                return packet
        return None

    def _parse(self, raw: bytes) -> Packet:
        if self._version >= 5 and self.rules.asked_for not in (None, self._version):
            foreign = packets.parse_foreign_connack(raw)
            if foreign is not None:
                return foreign
        return packets.parse(raw, self._version)

    def _is_marker(self, packet: Packet) -> bool:
        """Return whether this is the marker of a barrier; note it if it is our own."""
        if not isinstance(packet, Publish) or not packet.topic.startswith(MARKER):
            return False
        if packet.topic == self.marker:
            self.marker = ""
        if packet.packet_id is not None and packet.qos == 1:
            self.send(wire.puback(packet.packet_id), _CLOSE_PATIENCE_S)
        return True


def open_tcp(host: str, port: int, patience: float) -> socket.socket:
    """Return a connected TCP socket."""
    channel = socket.create_connection((host, port), timeout=patience)
    channel.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return channel

"""The broker's side of one connection, played by the test: what it says, byte for byte."""

import socket

from conformance.client import Client
from conformance.record import Ledger, Record

CONNACK = {4: b"\x20\x02\x00\x00", 5: b"\x20\x03\x00\x00\x00"}


class FarEnd:
    """A client and the other end of its connection; say what the broker says before it is read."""

    def __init__(self, version: int = 5, *, strict: bool = False, patience: float = 0.05) -> None:
        self.ledger: Ledger = Ledger()
        self.record: Record = Record(self.ledger, version=version, check="test")
        self.version: int = version
        self.channels: list[socket.socket] = []
        self.client: Client = Client(
            self._open,
            name="a",
            client_id="clienta",
            version=version,
            patience=patience,
            strict=strict,
            record=self.record,
        )

    def _open(self) -> socket.socket:
        near, far = socket.socketpair()
        far.settimeout(5.0)
        self.channels += [near, far]
        self.far: socket.socket = far
        return near

    def says(self, *packets: bytes) -> None:
        """Write packets to the client."""
        self.far.sendall(b"".join(packets))

    def heard(self) -> bytes:
        """Return what the client has written since the last time."""
        self.far.setblocking(False)
        try:
            return self.far.recv(1 << 20)
        except BlockingIOError:
            return b""
        finally:
            self.far.settimeout(5.0)

    def hangs_up(self) -> None:
        """Close the connection."""
        self.far.close()

    def accepts(self) -> Client:
        """Take the client's CONNECT; return the connected client."""
        self.says(CONNACK[self.version])
        self.client.connect()
        self.heard()
        return self.client

    def booked(self) -> list[str]:
        """Return the statements that faults were booked on."""
        return [booking.statement for booking in self.ledger.bookings()]

    def close(self) -> None:
        """Close both ends of everything."""
        for channel in self.channels:
            channel.close()

"""A raw WebSocket client (RFC 6455) that can also send invalid frames.

To the MQTT client `WebSocket` looks like a socket (`sendall`, `recv`, `settimeout`, `close`), so
that the same checks run over it; `send_frame` and `next_frame` work with single frames. Frames are
read strictly: one that breaks RFC 6455 raises `BadFrame`.
"""

import base64
import contextlib
import hashlib
import socket
import struct
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from conformance.failure import Failure

CONTINUATION: Final = 0
TEXT: Final = 1
BINARY: Final = 2
CLOSE: Final = 8
PING: Final = 9
PONG: Final = 10

GUID: Final = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
KEY: Final = "dGhlIHNhbXBsZSBub25jZQ=="
"""The key we send; it is constant, so that its answer is easy to find in a dump."""

RESPONSE_BYTES_MAX: Final = 65_536
FRAME_BYTES_MAX: Final = 268_435_460
"""The size of the largest MQTT packet; larger frames are refused."""


class BadFrame(Failure):
    """The server broke RFC 6455."""


class Frame(NamedTuple):
    """One received frame: the final bit, the opcode and the payload."""

    fin: bool
    opcode: int
    payload: bytes


class Response(NamedTuple):
    """The server's answer to the upgrade; status 0 if it closed without one."""

    status: int
    headers: tuple[tuple[str, str], ...]

    def all(self, name: str) -> list[str]:
        """Return the values of every header `name`, in order."""
        return [value for key, value in self.headers if key.lower() == name.lower()]


def frame(
    opcode: int,
    payload: bytes = b"",
    *,
    fin: bool = True,
    reserved: int = 0,
    mask: bytes | None = b"\x37\xfa\x21\x3d",
    width: int | None = None,
) -> bytes:
    """Build a frame. `mask=None` sends it unmasked; `width` forces a length form of 0, 2 or 8."""
    size = len(payload)
    if width is None:
        width = 0 if size < 126 else 2 if size < 65_536 else 8
    masked = 0 if mask is None else 0x80
    head = bytes([(0x80 if fin else 0) | reserved << 4 | opcode])
    if width == 0:
        head += bytes([masked | size])
    elif width == 2:
        head += struct.pack("!BH", masked | 126, size)
    else:
        head += struct.pack("!BQ", masked | 127, size)
    if mask is None:
        return head + payload
    return head + mask + _masked(payload, mask)


def in_one_frame(data: bytes) -> bytes:
    """Return one binary frame with all of `data`."""
    return frame(BINARY, data)


def in_bytes(data: bytes) -> bytes:
    """Return a binary frame for each byte."""
    return b"".join(frame(BINARY, data[at : at + 1]) for at in range(len(data)))


def in_parts(data: bytes) -> bytes:
    """Return one message in fragments of three bytes with a ping between them."""
    pieces = [data[at : at + 3] for at in range(0, len(data), 3)] or [b""]
    frames = [
        frame(CONTINUATION if index else BINARY, piece, fin=index == len(pieces) - 1)
        for index, piece in enumerate(pieces)
    ]
    return frame(PING, b"between").join(frames)


def among_empty(data: bytes) -> bytes:
    """Return `data` in two binary frames, with empty frames before, between and after them."""
    half = len(data) // 2
    return b"".join(frame(BINARY, piece) for piece in (b"", data[:half], b"", data[half:], b""))


def as_text(data: bytes) -> bytes:
    """Return one text frame with all of `data`."""
    return frame(TEXT, data)


def accept_key(key: str) -> str:
    """Return the Sec-WebSocket-Accept for `key`."""
    return base64.b64encode(hashlib.sha1((key + GUID).encode()).digest()).decode()


def upgrade_request(
    host: str,
    port: int,
    *,
    path: str = "/mqtt",
    subprotocols: str | None = "mqtt",
    origin: str | None = None,
    key: str | None = KEY,
    version: str | None = "13",
    upgrade: str | None = "websocket",
    extra: Sequence[tuple[str, str]] = (),
) -> bytes:
    """Build the upgrade request; a header given as None is left out."""
    headers = [
        ("Host", f"{host}:{port}"),
        ("Upgrade", upgrade),
        ("Connection", "Upgrade"),
        ("Sec-WebSocket-Key", key),
        ("Sec-WebSocket-Version", version),
        ("Sec-WebSocket-Protocol", subprotocols),
        ("Origin", origin),
        *extra,
    ]
    lines = [f"GET {path} HTTP/1.1", *(f"{k}: {v}" for k, v in headers if v is not None)]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


class WebSocket:
    """One connection. `response` is the answer to the upgrade, `opened` whether it was accepted.

    `opcodes` lists the opcodes of all received frames in order. `framing` turns the data of
    `sendall` into frames: by default `in_one_frame`, or for example `in_bytes`.
    """

    def __init__(self, transport: socket.socket, response: Response, rest: bytes) -> None:
        self.response = response
        self.opened = response.status == 101
        self.opcodes: list[int] = []
        self.close_code: int | None = None
        self.framing: Callable[[bytes], bytes] = in_one_frame
        self._socket = transport
        self._raw = bytearray(rest)
        self._data = bytearray()
        self._inside_message = False
        self._ended = False

    @classmethod
    def open(
        cls, host: str, port: int, *, timeout: float, request: bytes | None = None
    ) -> "WebSocket":
        """Connect, send the upgrade (`request`, or a valid one) and read the whole answer.

        Raises BadFrame if the answer is not HTTP, accepts with a wrong key or does not come within
        `timeout` seconds. A refusal is not an error: see `opened`.
        """
        with contextlib.ExitStack() as unless_opened:
            transport = socket.create_connection((host, port), timeout=timeout)
            unless_opened.callback(transport.close)
            transport.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            opened = cls.over(transport, host, port, request=request)
            unless_opened.pop_all()
        return opened

    @classmethod
    def over(
        cls, transport: socket.socket, host: str, port: int, *, request: bytes | None = None
    ) -> "WebSocket":
        """Do the same over an open `transport`, which the caller closes if this raises."""
        transport.sendall(upgrade_request(host, port) if request is None else request)
        response, rest = _read_response(transport)
        keys = response.all("Sec-WebSocket-Accept")
        if response.status == 101 and keys != [accept_key(KEY)]:
            raise BadFrame(f"Sec-WebSocket-Accept is {keys}, expected {accept_key(KEY)}")
        return cls(transport, response, rest)

    def sendall(self, data: bytes) -> None:
        """Send `data` in frames, as `framing` says."""
        self._socket.sendall(self.framing(data))

    def send_raw(self, data: bytes) -> None:
        """Send raw bytes on the TCP connection, e.g. frames built by `frame`."""
        self._socket.sendall(data)

    def recv(self, size: int) -> bytes:
        """Return up to `size` bytes from data frames; b"" after the end of the TCP connection.

        Pings are answered and a close frame is echoed. After a close frame it waits for the server
        to close the TCP connection.
        """
        while not self._data:
            got = self.next_frame()
            if got is None:
                return b""
            if got.opcode == PING:
                self._socket.sendall(frame(PONG, got.payload))
            elif got.opcode == CLOSE:
                self._answer_close(got.payload)
            elif got.opcode != PONG:
                self._data += got.payload
        taken = bytes(self._data[:size])
        del self._data[:size]
        return taken

    def next_frame(self) -> Frame | None:
        """Return the next frame, None at the end of the TCP connection; raises TimeoutError."""
        while (got := self._parse()) is None:
            if self._ended:
                return None
            try:
                received = self._socket.recv(65_536)
            except ConnectionError:
                received = b""
            self._ended = not received
            self._raw += received
        self.opcodes.append(got.opcode)
        return got

    def settimeout(self, timeout: float | None) -> None:
        """Set the longest wait of a call in seconds."""
        self._socket.settimeout(timeout)

    def gettimeout(self) -> float | None:
        """Return what `settimeout` set."""
        return self._socket.gettimeout()

    def setsockopt(self, level: int, option: int, value: int | bytes) -> None:
        """Set an option of the TCP socket, e.g. SO_LINGER for a reset on close."""
        self._socket.setsockopt(level, option, value)

    def shutdown(self, how: int) -> None:
        """Shut down the TCP connection."""
        self._socket.shutdown(how)

    def fileno(self) -> int:
        """Return the descriptor of the TCP socket. Our own buffer may hold frames as well."""
        return self._socket.fileno()

    def close(self) -> None:
        """Close the TCP connection, without a close frame."""
        self._socket.close()

    def _answer_close(self, payload: bytes) -> None:
        if self.close_code is not None:
            raise BadFrame("a frame follows the close frame")
        self.close_code = struct.unpack("!H", payload[:2])[0] if len(payload) >= 2 else 1005
        try:
            self._socket.sendall(frame(CLOSE, payload[:2]))
        except ConnectionError:
            self._ended = True

    def _parse(self) -> Frame | None:
        raw = self._raw
        if len(raw) < 2:
            return None
        first, size = raw[0], raw[1]
        at = 2
        if size & 0x80:
            raise BadFrame(f"frame {bytes(raw[:16]).hex()} of the server is masked")
        for marker, width in ((126, 2), (127, 8)):
            if size == marker:
                if len(raw) < at + width:
                    return None
                size = int.from_bytes(raw[at : at + width], "big")
                at += width
                break
        self._check(first, size)
        if len(raw) < at + size:
            return None
        payload = bytes(raw[at : at + size])
        del raw[: at + size]
        opcode = first & 0x0F
        if opcode < CLOSE:
            self._inside_message = not first & 0x80
        return Frame(bool(first & 0x80), opcode, payload)

    def _check(self, first: int, size: int) -> None:
        """Raise BadFrame unless a frame with this first byte and size may come now."""
        opcode = first & 0x0F
        if first & 0x70:
            raise BadFrame(f"frame byte {first:#04x}: a reserved bit without an extension")
        if opcode not in (CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG):
            raise BadFrame(f"frame byte {first:#04x}: unknown opcode {opcode}")
        if opcode >= CLOSE and (not first & 0x80 or size > 125):
            raise BadFrame(f"frame byte {first:#04x}: a control frame of {size} bytes or in parts")
        if opcode < CLOSE and (opcode == CONTINUATION) != self._inside_message:
            raise BadFrame(f"frame byte {first:#04x}: continuation out of place")
        if size > FRAME_BYTES_MAX:
            raise BadFrame(f"frame of {size} bytes")


def _read_response(transport: socket.socket) -> tuple[Response, bytes]:
    """Read up to the end of the HTTP headers; return them and the bytes after them."""
    raw = bytearray()
    while b"\r\n\r\n" not in raw:
        try:
            received = transport.recv(4096)
        except TimeoutError:
            raise BadFrame("the upgrade is not answered", expected="HTTP status 101") from None
        except ConnectionError:
            received = b""
        if not received and not raw:
            return Response(0, ()), b""
        if not received or len(raw) > RESPONSE_BYTES_MAX:
            raise BadFrame(f"answer to the upgrade does not end: {bytes(raw[:80])!r}")
        raw += received
    head, _, rest = bytes(raw).partition(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    parts = first.split(" ", 2)
    if len(parts) < 2 or not parts[0].startswith("HTTP/1.") or not parts[1].isdigit():
        raise BadFrame(f"answer to the upgrade is {first!r}, expected an HTTP status line")
    headers = []
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon:
            raise BadFrame(f"header {line!r} in the answer to the upgrade has no colon")
        headers.append((name.strip(), value.strip()))
    return Response(int(parts[1]), tuple(headers)), rest


def _masked(payload: bytes, mask: bytes) -> bytes:
    size = len(payload)
    key = int.from_bytes((mask * (size // 4 + 1))[:size], "big")
    return (int.from_bytes(payload, "big") ^ key).to_bytes(size, "big")

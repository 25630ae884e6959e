"""The suite's own WebSocket client, against bytes a server would write."""

import socket
import struct
import threading
from collections.abc import Callable, Iterator

import pytest

from conformance import websocket
from conformance.websocket import BadFrame, Response, WebSocket, frame

GRANTED = Response(101, ())


class Wire:
    """A client and the server's end of its connection."""

    def __init__(self) -> None:
        ours, self.server = socket.socketpair()
        ours.settimeout(5)
        self.server.settimeout(5)
        self.client = WebSocket(ours, GRANTED, b"")

    def serve(self, opcode: int, payload: bytes, **options: int | bool) -> None:
        self.server.sendall(frame(opcode, payload, mask=None, **options))  # type: ignore[arg-type]

    def close(self) -> None:
        self.client.close()
        self.server.close()


@pytest.fixture
def wire() -> Iterator[Wire]:
    made = Wire()
    yield made
    made.close()


def test_the_examples_of_the_rfc_come_out_byte_for_byte() -> None:
    assert websocket.accept_key("dGhlIHNhbXBsZSBub25jZQ==") == "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="
    assert frame(websocket.TEXT, b"Hello").hex() == "818537fa213d7f9f4d5158"
    assert frame(websocket.TEXT, b"Hello", mask=None).hex() == "810548656c6c6f"
    assert frame(websocket.TEXT, b"Hel", fin=False, mask=None).hex() == "010348656c"
    assert frame(websocket.BINARY, bytes(256), mask=None)[:4].hex() == "827e0100"
    assert frame(websocket.BINARY, bytes(65536), mask=None)[:10].hex() == "827f0000000000010000"


@pytest.mark.parametrize("size", [0, 1, 5, 125, 126, 65_535, 65_536])
def test_a_frame_of_any_size_is_read_whole(wire: Wire, size: int) -> None:
    payload = bytes(i % 251 for i in range(size))
    sender = threading.Thread(target=wire.serve, args=(websocket.BINARY, payload))
    sender.start()
    assert wire.client.next_frame() == (True, websocket.BINARY, payload)
    sender.join()


def test_data_comes_as_one_stream_whatever_the_frames(wire: Wire) -> None:
    wire.serve(websocket.BINARY, b"ab", fin=False)
    wire.serve(websocket.PING, b"are you there")
    wire.serve(websocket.CONTINUATION, b"")
    wire.serve(websocket.BINARY, b"cd")
    assert wire.client.recv(1) + wire.client.recv(9) == b"ab"
    assert wire.client.recv(9) == b"cd"
    assert wire.server.recv(99) == frame(websocket.PONG, b"are you there")
    assert wire.client.opcodes == [2, 9, 0, 2]


@pytest.mark.parametrize(
    ("framing", "opcodes"),
    [
        (websocket.in_one_frame, [2]),
        (websocket.in_bytes, [2] * 7),
        (websocket.in_parts, [2, 9, 0, 9, 0]),
        (websocket.among_empty, [2] * 5),
        (websocket.as_text, [1]),
    ],
)
def test_what_is_sent_is_framed_as_told(
    wire: Wire, framing: Callable[[bytes], bytes], opcodes: list[int]
) -> None:
    wire.client.framing = framing
    wire.client.sendall(b"packets")
    raw, found, data = wire.server.recv(999), [], b""
    while raw:
        size = raw[1] & 0x7F
        found.append(raw[0] & 0x0F)
        if found[-1] < websocket.CLOSE:
            data += bytes(b ^ raw[2 + i % 4] for i, b in enumerate(raw[6 : 6 + size]))
        raw = raw[6 + size :]
    assert (data, found) == (b"packets", opcodes)


def test_a_close_frame_is_echoed_and_the_end_awaited(wire: Wire) -> None:
    wire.serve(websocket.CLOSE, struct.pack("!H", 1003) + b"text")
    wire.client.settimeout(0.05)
    with pytest.raises(TimeoutError):
        wire.client.recv(9)
    assert wire.server.recv(99) == frame(websocket.CLOSE, struct.pack("!H", 1003))
    wire.server.close()
    assert wire.client.recv(9) == b""
    assert wire.client.close_code == 1003


@pytest.mark.parametrize(
    "raw",
    [
        frame(websocket.BINARY, b"x"),
        frame(websocket.BINARY, b"x", reserved=4, mask=None),
        frame(3, b"x", mask=None),
        frame(websocket.PING, b"x", fin=False, mask=None),
        frame(websocket.PING, bytes(126), mask=None),
        frame(websocket.CONTINUATION, b"x", mask=None),
        frame(websocket.BINARY, fin=False, mask=None) + frame(websocket.BINARY, mask=None),
        b"\x82\x7f" + (1 << 40).to_bytes(8, "big"),
    ],
)
def test_a_frame_that_breaks_the_rules_is_reported(wire: Wire, raw: bytes) -> None:
    wire.server.sendall(raw)
    with pytest.raises(BadFrame):
        while wire.client.next_frame() is not None:
            pass


def answered_with(answer: bytes) -> WebSocket:
    """Open a WebSocket to a server that reads a request and writes `answer`, then closes."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                request = b""
                while not request.endswith(b"\r\n\r\n"):
                    request += connection.recv(4096)
                connection.sendall(answer)

        server = threading.Thread(target=serve)
        server.start()
        try:
            return WebSocket.open(*listener.getsockname(), timeout=5)
        finally:
            server.join()


def test_an_upgrade_is_granted_with_the_right_key_only() -> None:
    head = "HTTP/1.1 101 Switching Protocols\r\nsec-websocket-accept: {}\r\n\r\n"
    right = head.format(websocket.accept_key(websocket.KEY)).encode()
    opened = answered_with(right + frame(websocket.BINARY, b"early", mask=None))
    assert opened.opened and opened.recv(99) == b"early" and opened.recv(1) == b""
    opened.close()
    with pytest.raises(BadFrame, match="Sec-WebSocket-Accept"):
        answered_with(head.format("wrong").encode())


def test_a_refusal_is_an_answer_and_so_is_none() -> None:
    refused = answered_with(b"HTTP/1.1 400 Bad Request\r\nX: a\r\nx: b\r\n\r\n")
    assert not refused.opened
    assert refused.response.status == 400 and refused.response.all("X") == ["a", "b"]
    refused.close()
    silent = answered_with(b"")
    assert (silent.opened, silent.response) == (False, (0, ()))
    silent.close()


@pytest.mark.parametrize("answer", [b"no HTTP\r\n\r\n", b"HTTP/1.1 101 X\r\nbad\r\n\r\n", b"HTTP"])
def test_an_answer_that_is_not_http_is_reported(answer: bytes) -> None:
    with pytest.raises(BadFrame):
        answered_with(answer)


def test_an_upgrade_that_is_not_answered_is_reported() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        with pytest.raises(BadFrame, match="not answered"):
            WebSocket.open(*listener.getsockname(), timeout=0.05)


def test_a_header_of_the_request_can_be_left_out_or_added() -> None:
    request = websocket.upgrade_request(
        "h", 1, path="/", subprotocols=None, origin="http://x", extra=[("A", "b")]
    )
    assert request.startswith(b"GET / HTTP/1.1\r\nHost: h:1\r\n")
    assert b"Sec-WebSocket-Protocol" not in request
    assert request.endswith(b"Origin: http://x\r\nA: b\r\n\r\n")

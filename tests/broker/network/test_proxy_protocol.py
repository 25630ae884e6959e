"""PROXY headers of both versions: whole, in pieces, damaged, and followed by something else."""

import socket
import struct

import pytest

from broker.network.proxy_protocol import (
    FIXED_BYTES,
    HEADER_BYTES_MAX,
    LINE_BYTES_MAX,
    SIGNATURE,
    ProxyError,
    ProxyHeader,
)

FOLLOWS = b"\x16\x03\x01 a client's first bytes \r\n PROXY "
LOCAL, PROXY = 0x20, 0x21


def binary(rest: bytes = b"", *, command: int = PROXY, family: int = 0x11, size: int = -1) -> bytes:
    """Return a header of version 2; `size` is a length field that lies."""
    return SIGNATURE + struct.pack("!BBH", command, family, len(rest) if size < 0 else size) + rest


def addition(kind: int, value: bytes) -> bytes:
    """Return one addition (type, length, value)."""
    return struct.pack("!BH", kind, len(value)) + value


IPV4 = socket.inet_aton("192.0.2.7") + socket.inet_aton("127.0.0.1") + struct.pack("!HH", 9, 1883)
IPV6 = (
    socket.inet_pton(socket.AF_INET6, "2001:db8::7")
    + socket.inet_pton(socket.AF_INET6, "::1")
    + struct.pack("!HH", 65_535, 1883)
)
UNIX = b"/run/client".ljust(108, b"\0") + b"/run/proxy".ljust(108, b"\0")
# PP2_TYPE_SSL: client (certificate shown), verified, and the certificate's CN as the proxy tells.
CERTIFICATE = addition(0x20, b"\x03" + bytes(4) + addition(0x22, b"admin"))

GOOD = [
    (b"PROXY TCP4 192.0.2.7 127.0.0.1 9 1883\r\n", "192.0.2.7:9"),
    (b"PROXY TCP4 255.255.255.255 0.0.0.0 0 65535\r\n", "255.255.255.255:0"),
    (b"PROXY TCP6 2001:db8::7 ::1 65535 1883\r\n", "[2001:db8::7]:65535"),
    (b"PROXY TCP6 " + b"ffff:" * 7 + b"ffff " + b"ffff:" * 7 + b"ffff 65535 65535\r\n",
     "[" + "ffff:" * 7 + "ffff]:65535"),
    (b"PROXY UNKNOWN\r\n", ""),
    (b"PROXY UNKNOWN " + b"ffff:" * 7 + b"ffff " + b"ffff:" * 7 + b"ffff 65535 65535\r\n", ""),
    (binary(IPV4), "192.0.2.7:9"),
    (binary(IPV4 + addition(0x04, b"padding") + addition(0xEA, b"")), "192.0.2.7:9"),
    (binary(IPV4 + CERTIFICATE), "192.0.2.7:9"),
    (binary(IPV6, family=0x21), "[2001:db8::7]:65535"),
    (binary(UNIX, family=0x31), "/run/client"),
    (binary(b"\xff" * 216, family=0x31), "\\xff" * 108),
    (binary(b"", family=0x00), ""),
    (binary(addition(0x04, b"padding"), family=0x00), ""),
    (binary(IPV4, family=0x10), ""),
    (binary(b"", command=LOCAL, family=0x00), ""),
    (binary(b"anything at all", command=LOCAL, family=0xFF), ""),
    (binary(IPV4 + addition(0x04, bytes(HEADER_BYTES_MAX - FIXED_BYTES - 12 - 3))), "192.0.2.7:9"),
]  # fmt: skip


@pytest.mark.parametrize(("header", "remote"), GOOD)
def test_a_header_is_read_and_nothing_behind_it(header: bytes, remote: str) -> None:
    reader = ProxyHeader()
    assert reader.receive(header + FOLLOWS) == len(header)
    assert reader.is_complete
    assert reader.remote == remote
    assert reader.receive(FOLLOWS) == 0


@pytest.mark.parametrize(("header", "remote"), GOOD)
def test_a_header_may_come_in_any_two_pieces_and_byte_by_byte(header: bytes, remote: str) -> None:
    for cut in range(len(header)):
        reader = ProxyHeader()
        assert reader.receive(header[:cut]) == cut
        assert not reader.is_complete
        assert reader.receive(header[cut:] + FOLLOWS) == len(header) - cut
        assert reader.is_complete and reader.remote == remote
    reader = ProxyHeader()
    for number, byte in enumerate(header):
        assert not reader.is_complete, number
        assert reader.receive(bytes([byte])) == 1
    assert reader.is_complete and reader.remote == remote


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (b"\x10\x0c\x00\x04MQTT", "neither version"),
        (b"GET / HTTP/1.1\r\n", "neither version"),
        (b"PROXX", "neither version"),
        (b"PROXY\r\n", "neither version"),
        (b"proxy TCP4 1.2.3.4 1.2.3.4 1 1\r\n", "neither version"),
        (SIGNATURE[:11] + b"!", "neither version"),
        (b"PROXY \r\n", "expected 'PROXY TCP4"),
        (b"PROXY TCP4 1.2.3.4 1.2.3.4 1 1\n", "ends in CR LF"),
        (b"PROXY TCP4 1.2.3.4 1.2.3.4 1\r\n", "expected 'PROXY TCP4"),
        (b"PROXY TCP4 1.2.3.4 1.2.3.4 1 1 \r\n", "expected 'PROXY TCP4"),
        (b"PROXY TCP4  1.2.3.4 1.2.3.4 1 1\r\n", "expected 'PROXY TCP4"),
        (b"PROXY UDP4 1.2.3.4 1.2.3.4 1 1\r\n", "expected 'PROXY TCP4"),
        (b"PROXY TCP4 1.2.3.4 1.2.3.256 1 1\r\n", "'1.2.3.256'"),
        (b"PROXY TCP4 01.2.3.4 1.2.3.4 1 1\r\n", "'01.2.3.4'"),
        (b"PROXY TCP4 ::1 ::1 1 1\r\n", "'::1'"),
        (b"PROXY TCP6 1.2.3.4 1.2.3.4 1 1\r\n", "'1.2.3.4'"),
        (b"PROXY TCP6 fe80::1%eth0 ::1 1 1\r\n", "'fe80::1%eth0'"),
        (b"PROXY TCP4 1.2.3.4 1.2.3.4 65536 1\r\n", "'65536'"),
        (b"PROXY TCP4 1.2.3.4 1.2.3.4 1 01\r\n", "'01'"),
        (b"PROXY TCP4 1.2.3.4 1.2.3.4 -1 1\r\n", "'-1'"),
        (b"PROXY TCP4 1.2.3.4 1.2.3.4 1 \r\n", "''"),
        ("PROXY TCP4 1.2.3.4 1.2.3.4 1 ٣\r\n".encode(), "not ASCII"),
        (b"PROXY UNKNOWN " + b"x" * LINE_BYTES_MAX, "no line of at most"),
        (b"PROXY UNKNOWN " + b"x" * LINE_BYTES_MAX + b"\r\n", "no line of at most"),
        (binary(IPV4, command=0x11), "version and command 0x11"),
        (binary(IPV4, command=0x22), "version and command 0x22"),
        (binary(IPV4, family=0x41), "family 0x41"),
        (binary(IPV4, family=0x13), "family 0x13"),
        (binary(IPV4, family=0x12), "datagram"),
        (binary(IPV4[:-1]), "expected at least 12"),
        (binary(IPV4, family=0x21), "expected at least 36"),
        (binary(IPV6, family=0x31), "expected at least 216"),
        (binary(IPV4 + b"\x04"), "longer than the header"),
        (binary(IPV4 + b"\x04\x00"), "longer than the header"),
        (binary(IPV4 + b"\x04\x00\x02x"), "longer than the header"),
        (binary(IPV4, size=HEADER_BYTES_MAX - FIXED_BYTES + 1), "expected at most 4096"),
        (binary(IPV4, command=LOCAL, size=65_535), "expected at most 4096"),
    ],
)
def test_anything_else_is_refused(data: bytes, complaint: str) -> None:
    with pytest.raises(ProxyError, match=complaint):
        ProxyHeader().receive(data)
    reader = ProxyHeader()
    with pytest.raises(ProxyError, match=complaint):
        for byte in data:
            reader.receive(bytes([byte]))


def test_a_wrong_header_is_refused_before_it_is_complete() -> None:
    for start in (b"G", b"\r\n\r\n\x00\r\nQUIT\r", binary(b"", command=0x00)[:16]):
        with pytest.raises(ProxyError):
            ProxyHeader().receive(start)
    reader = ProxyHeader()
    oversized = binary(b"", size=65_535)
    with pytest.raises(ProxyError, match="65551 bytes"):
        reader.receive(oversized)

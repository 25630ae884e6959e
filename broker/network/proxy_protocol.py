"""The PROXY protocol, versions 1 and 2: who the client behind a load balancer is.

One `ProxyHeader` takes the first bytes of one connection until the header is complete, and returns
how many of them were header, so that a caller who peeks takes no byte of what follows. Must never
trust more than the address: what a proxy says of the client's certificate is no proof. Facts: https://www.haproxy.org/download/3.0/doc/proxy-protocol.txt
Read next: `broker.network.listeners`, which reads the header before TLS or MQTT begin.
"""

import ipaddress
from typing import Final

SIGNATURE: Final = b"\r\n\r\n\x00\r\nQUIT\n"
# Version 1 is one line; the longest one the protocol knows has 107 bytes with its end.
LINE_BYTES_MAX: Final = 107
LINE_START: Final = b"PROXY "
# Version 2 has a fixed part and what follows it: addresses, and what load balancers add to them.
# Its own limit is 64 KiB; the additions in use (endpoint names, a certificate's names) are short.
FIXED_BYTES: Final = 16
HEADER_BYTES_MAX: Final = 4096
ADDITION_BYTES: Final = 3  # type and length of one addition

LOCAL: Final = 0x20
PROXY: Final = 0x21
DATAGRAM: Final = 0x2  # low half of the family byte
# Bytes of both addresses by family (high half of the family byte); 0 = not said.
ADDRESS_BYTES: Final = {0x0: 0, 0x1: 12, 0x2: 36, 0x3: 216}
IPV4: Final = 0x1
IPV6: Final = 0x2
UNIX: Final = 0x3
UNIX_PATH_BYTES: Final = 108


class ProxyError(Exception):
    """Not a PROXY header that we accept; the connection has to be closed."""


class ProxyHeader:
    """Reads the header of one connection."""

    __slots__ = ("_buffer", "is_complete", "remote")

    def __init__(self) -> None:
        self._buffer: bytearray = bytearray()
        self.is_complete: bool = False
        # The client's address as people write it; "" = the header does not say, which leaves the
        # address of the connection itself (a health check of the load balancer).
        self.remote: str = ""

    def receive(self, data: bytes) -> int:
        """Take the next bytes; return how many of them belong to the header.

        Until `is_complete` all of them do. Raises `ProxyError`; call it no more after that.
        """
        used = 0
        while used < len(data) and not self.is_complete:
            wanted = self._wanted(data, used)
            self._buffer += data[used : used + wanted]
            used += min(wanted, len(data) - used)
            self._look()
        return used

    def _wanted(self, data: bytes, used: int) -> int:
        """Return how many bytes may be taken without taking one too many."""
        buffer = self._buffer
        if not buffer:
            return 1  # the first byte tells the version
        if buffer[0] == LINE_START[0]:
            end = data.find(b"\n", used, used + LINE_BYTES_MAX)
            return LINE_BYTES_MAX if end < 0 else end - used + 1
        if len(buffer) < FIXED_BYTES:
            return FIXED_BYTES - len(buffer)
        return FIXED_BYTES + int.from_bytes(buffer[14:16], "big") - len(buffer)

    def _look(self) -> None:
        """Check what is there as early as possible."""
        buffer = self._buffer
        if buffer[0] == LINE_START[0]:
            if buffer[:6] != LINE_START[: len(buffer)]:
                raise ProxyError("neither version of a PROXY header")
            if buffer.endswith(b"\n"):
                self.remote = _line_address(bytes(buffer))
                self.is_complete = True
            elif len(buffer) >= LINE_BYTES_MAX:
                raise ProxyError(f"no line of at most {LINE_BYTES_MAX} bytes")
            return
        if buffer[:12] != SIGNATURE[: len(buffer)]:
            raise ProxyError("neither version of a PROXY header")
        if len(buffer) < FIXED_BYTES:
            return
        size = FIXED_BYTES + int.from_bytes(buffer[14:16], "big")
        if size > HEADER_BYTES_MAX:
            raise ProxyError(f"header of {size} bytes: expected at most {HEADER_BYTES_MAX}")
        if len(buffer) == FIXED_BYTES:
            _check_fixed(buffer[12], buffer[13], size - FIXED_BYTES)
        if len(buffer) == size:
            self.remote = _binary_address(bytes(buffer))
            self.is_complete = True


def _line_address(line: bytes) -> str:
    """Return the client's address from a header of version 1."""
    if len(line) > LINE_BYTES_MAX or not line.endswith(b"\r\n"):
        raise ProxyError(f"no line of at most {LINE_BYTES_MAX} bytes that ends in CR LF")
    if not line.isascii():
        raise ProxyError("not ASCII")
    words = line[:-2].decode("ascii").split(" ")
    if words[1] == "UNKNOWN":
        return ""  # whatever follows is to be ignored
    if len(words) != 6 or words[1] not in ("TCP4", "TCP6"):
        raise ProxyError(f"{line[:-2]!r}: expected 'PROXY TCP4|TCP6 SOURCE TARGET PORT PORT'")
    _, family, source, target, source_port, target_port = words
    hosts = [_host(text, family) for text in (source, target)]
    ports = [_port(text) for text in (source_port, target_port)]
    return _written(hosts[0], ports[0])


def _host(text: str, family: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    try:
        if family == "TCP4":
            return ipaddress.IPv4Address(text)
        if "%" in text:  # a scope means something on the proxy's machine only
            raise ValueError(text)
        return ipaddress.IPv6Address(text)
    except ValueError:
        raise ProxyError(f"address {text!r}: expected one of family {family}") from None


def _port(text: str) -> int:
    is_number = text.isdecimal() and len(text) <= 5 and (text == "0" or text[0] != "0")
    if not is_number or int(text) > 65_535:
        raise ProxyError(f"port {text!r}: expected 0 to 65535")
    return int(text)


def _check_fixed(command: int, family: int, size: int) -> None:
    """Check the fixed part of version 2, and that it leaves room for the addresses."""
    if command not in (LOCAL, PROXY):
        raise ProxyError(f"version and command {command:#04x}: expected 0x20 or 0x21")
    if command == LOCAL:
        return  # the connection is the proxy's own; what follows is to be ignored
    needed = ADDRESS_BYTES.get(family >> 4)
    if needed is None or family & 0xF > DATAGRAM:
        raise ProxyError(f"address family {family:#04x} is not known")
    if family & 0xF == DATAGRAM:
        raise ProxyError("a connection cannot come from a datagram")
    if size < needed:
        raise ProxyError(f"{size} bytes of addresses: expected at least {needed}")


def _binary_address(header: bytes) -> str:
    """Return the client's address from a complete header of version 2."""
    command, family = header[12], header[13] >> 4
    if command == LOCAL:
        return ""
    rest = header[FIXED_BYTES:]
    _check_additions(rest[ADDRESS_BYTES[family] :])
    if header[13] & 0xF == 0:
        return ""  # a proxy that knows no protocol knows no address either
    if family == IPV4:
        return _written(ipaddress.IPv4Address(rest[:4]), int.from_bytes(rest[8:10], "big"))
    if family == IPV6:
        return _written(ipaddress.IPv6Address(rest[:16]), int.from_bytes(rest[32:34], "big"))
    if family == UNIX:
        path = rest[:UNIX_PATH_BYTES].split(b"\0", 1)[0]
        return path.decode("utf-8", "backslashreplace")
    return ""


def _check_additions(additions: bytes) -> None:
    """Check that the additions (type, length, value) fill their room exactly; none is used."""
    position = 0
    while position < len(additions):
        value = position + ADDITION_BYTES
        position = value + int.from_bytes(additions[value - 2 : value], "big")
        if position > len(additions):
            raise ProxyError("an addition is longer than the header")


def _written(host: ipaddress.IPv4Address | ipaddress.IPv6Address, port: int) -> str:
    return f"{host}:{port}" if host.version == 4 else f"[{host}]:{port}"

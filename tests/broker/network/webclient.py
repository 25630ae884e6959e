"""A WebSocket client that does exactly what a test tells it, right or wrong. Frames by hand."""

import asyncio
import base64
import hashlib
import struct
from typing import Final

from mqtt.encoder import encode
from mqtt.packets import Packet
from tests.broker.inside import PATIENCE_S, Peer

KEY: Final = base64.b64encode(b"0123456789abcdef").decode()
ACCEPT: Final = base64.b64encode(
    hashlib.sha1(KEY.encode() + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11").digest()
).decode()
CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG = 0x0, 0x1, 0x2, 0x8, 0x9, 0xA
MASK: Final = b"\x01\x02\x03\x04"

REQUEST: Final = {
    "Host": "localhost",
    "Connection": "Upgrade",
    "Upgrade": "websocket",
    "Sec-WebSocket-Key": KEY,
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Protocol": "mqtt",
}


def request(line: str = "GET /mqtt HTTP/1.1", /, **changes: str | None) -> bytes:
    """Return an upgrade request; `changes` are header fields by lower-case name, None removes."""
    fields = {name.lower().replace("-", "_"): (name, value) for name, value in REQUEST.items()}
    for key, value in changes.items():
        name = fields.get(key, (key.replace("_", "-").title(), ""))[0]
        fields[key] = (name, "" if value is None else value)
        if value is None:
            del fields[key]
    head = [line, *(f"{name}: {value}" for name, value in fields.values())]
    return "\r\n".join([*head, "", ""]).encode()


def frame(
    payload: bytes = b"",
    opcode: int = BINARY,
    *,
    fin: bool = True,
    masked: bool = True,
    size: int | None = None,
    reserved: int = 0,
) -> bytes:
    """Return one frame; `size` is a length that lies, always written in 8 bytes."""
    first = bytes([fin << 7 | reserved << 4 | opcode])
    mask_bit = 0x80 if masked else 0
    if size is not None:
        length = bytes([mask_bit | 127]) + struct.pack("!Q", size)
    elif len(payload) < 126:
        length = bytes([mask_bit | len(payload)])
    elif len(payload) < 65_536:
        length = bytes([mask_bit | 126]) + struct.pack("!H", len(payload))
    else:
        length = bytes([mask_bit | 127]) + struct.pack("!Q", len(payload))
    if not masked:
        return first + length + payload
    return first + length + MASK + bytes(b ^ MASK[i % 4] for i, b in enumerate(payload))


def close_frame(code: int | None = None, reason: bytes = b"") -> bytes:
    """Return a Close frame."""
    return frame(b"" if code is None else struct.pack("!H", code) + reason, CLOSE)


class WebPeer(Peer):
    """One connection."""

    def write(self, data: bytes) -> None:
        """Send bytes as they are."""
        self.writer.write(data)

    async def answer(self) -> tuple[int, dict[str, str]]:
        """Return the status and the header fields of the answer to a request."""
        text = await asyncio.wait_for(self.reader.readuntil(b"\r\n\r\n"), PATIENCE_S)
        first, *lines = text.decode().split("\r\n")[:-2]
        fields = dict(line.split(": ", 1) for line in lines)
        body = await self.reader.readexactly(int(fields.get("Content-Length", "0")))
        assert b"Traceback" not in body
        return int(first.split(" ")[1]), fields

    async def upgrade(self, **changes: str | None) -> dict[str, str]:
        """Upgrade, and return the header fields of the answer."""
        self.write(request(**changes))
        status, fields = await self.answer()
        assert status == 101
        assert fields["Sec-WebSocket-Accept"] == ACCEPT
        return fields

    async def receive_frame(self) -> tuple[int, bytes]:
        """Return opcode and payload of the next frame, which is whole and not masked."""
        first, second = await asyncio.wait_for(self.reader.readexactly(2), PATIENCE_S)
        assert first & 0xF0 == 0x80, "fragmented, or reserved bits"
        assert not second & 0x80, "masked by a server"
        size = second
        if size == 126:
            (size,) = struct.unpack("!H", await self.reader.readexactly(2))
        elif size == 127:
            (size,) = struct.unpack("!Q", await self.reader.readexactly(8))
        return first & 0xF, await asyncio.wait_for(self.reader.readexactly(size), PATIENCE_S)

    def send(self, *packets: Packet) -> None:
        """Send packets, all in one frame."""
        self.write(frame(b"".join(encode(packet, 5) for packet in packets)))

    async def _read(self) -> bytes:
        opcode, payload = await self.receive_frame()
        assert opcode == BINARY, (opcode, payload)
        return payload

    async def closed(self, code: int | None = None) -> None:
        """Expect a Close frame with `code` (none: no frame at all), and the end."""
        if code is not None:
            while True:
                opcode, payload = await self.receive_frame()
                if opcode == CLOSE:
                    break
            assert struct.unpack("!H", payload[:2]) == (code,), payload
        assert await asyncio.wait_for(self.reader.read(), PATIENCE_S) == b""

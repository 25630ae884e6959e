"""Three brokers that are no brokers: mute, yes-man, parrot. They never close a connection.

Everybody, to the parrot, is who has the same first characters in the client id: the clients of one
check. What one check says would make all others fail, and none for its own reason.
"""

import asyncio
import signal
from typing import Final

from tests.conformance.wrong import frames
from tests.conformance.wrong.frames import Cutter, Frame
from tests.conformance.wrong.proxy import OUTER

CHECK: Final = 8  # characters of a client id that are those of its check


class _Talker:
    """One connection."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self.writer = writer
        self.version: int = 4
        self.check: bytes = b""


_TALKERS: Final[list[_Talker]] = []


def answer(raw: bytes, version: int) -> bytes:
    """Return the packet that says yes."""
    frame = Frame(raw, version)
    five = b"\0" if version >= 5 else b""
    number = (frame.packet_id or 0).to_bytes(2, "big")
    if frame.kind == frames.PUBLISH and frame.qos:
        return bytes([0x40 if frame.qos == 1 else 0x50, 2]) + number
    if frame.kind in (frames.SUBSCRIBE, frames.UNSUBSCRIBE):
        codes = bytes(min(options & 3, 2) for _, options in frame.filters)
        if frame.kind == frames.UNSUBSCRIBE and version < 5:
            codes = b""
        body = number + five + codes
        return bytes([(frame.kind + 1) << 4, len(body)]) + body
    fixed = {
        frames.CONNECT: b"\x20\x03\0\0\0" if version >= 5 else b"\x20\x02\0\0",
        frames.PUBREC: b"\x62\x02" + number,
        frames.PUBREL: b"\x70\x02" + number,
        frames.PINGREQ: b"\xd0\x00",
    }
    return fixed.get(frame.kind, b"")


def _repeat(me: _Talker, raw: bytes) -> None:
    for other in _TALKERS:
        # Whoever publishes before CONNECT is of no check: all others that are silent yet are not.
        alike = bool(me.check) and (other.version, other.check) == (me.version, me.check)
        if (alike or other is me) and not other.writer.is_closing():
            other.writer.write(raw)


async def _talk(name: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    cutter, me = Cutter(), _Talker(writer)
    _TALKERS.append(me)
    try:
        while data := await reader.read(65_536):
            for raw in cutter.feed(data) if name != "mute" else ():
                if raw[0] >> 4 == frames.CONNECT:
                    connect = Frame(raw, 4)
                    me.version, me.check = connect.version, connect.client_id[:CHECK]
                writer.write(answer(raw, me.version))
                if name == "parrot" and raw[0] >> 4 == frames.PUBLISH:
                    _repeat(me, raw)
            await writer.drain()
    except OSError:
        writer.transport.abort()
    _TALKERS.remove(me)
    writer.close()


def serve(name: str, *ports: int) -> int:
    """Serve until SIGTERM; a port for WebSocket is one more where the same is said."""

    async def run() -> None:
        servers = [
            await asyncio.start_server(lambda r, w: _talk(name, r, w), OUTER, port)
            for port in ports
        ]
        ended = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
        await ended.wait()
        for server in servers:
            server.close()

    asyncio.run(run())
    return 0

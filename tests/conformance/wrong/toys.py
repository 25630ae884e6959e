"""Three brokers that are no brokers: mute, yes-man, parrot. They never close a connection."""

import asyncio
import signal
from typing import Final

from tests.conformance.wrong import frames
from tests.conformance.wrong.frames import Cutter, Frame
from tests.conformance.wrong.proxy import OUTER

_PARROTS: Final[list[tuple[asyncio.StreamWriter, list[int]]]] = []


def answer(raw: bytes, version: int) -> bytes:
    """Return the packet that says yes."""
    frame = Frame(raw, version)
    five = b"\0" if version >= 5 else b""
    number = (frame.packet_id or 0).to_bytes(2, "big")
    if frame.kind == frames.PUBLISH and frame.qos:
        return bytes([0x40 if frame.qos == 1 else 0x50, 2]) + number
    if frame.kind in (frames.SUBSCRIBE, frames.UNSUBSCRIBE):
        codes = bytes(options & 3 for _, options in frame.filters)
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


async def _talk(name: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    cutter, version = Cutter(), [4]
    me = (writer, version)
    _PARROTS.append(me)
    try:
        while data := await reader.read(65_536):
            for raw in cutter.feed(data) if name != "mute" else ():
                if raw[0] >> 4 == frames.CONNECT:
                    version[0] = Frame(raw, 4).version
                writer.write(answer(raw, version[0]))
                if name == "parrot" and raw[0] >> 4 == frames.PUBLISH:
                    for other, spoken in _PARROTS:
                        if spoken == version and not other.is_closing():
                            other.write(raw)
            await writer.drain()
    except OSError:
        writer.transport.abort()
    _PARROTS.remove(me)
    writer.close()


def serve(name: str, port: int) -> int:
    """Serve until SIGTERM."""

    async def run() -> None:
        server = await asyncio.start_server(lambda r, w: _talk(name, r, w), OUTER, port)
        ended = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
        await ended.wait()
        server.close()

    asyncio.run(run())
    return 0

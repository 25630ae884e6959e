"""MQTT over WebSocket: a layer between the loop and a `ClientStream`.

To the loop this is the protocol of a connection, to the `ClientStream` its transport: HTTP and
frames on one side, bytes of MQTT on the other. The Sans-I/O core of the `websockets` library
implements RFC 6455; this module does the I/O and checks the upgrade. Must decide nothing about
MQTT, and must hold no more of a peer's bytes than one frame. permessage-deflate is never offered: a
few bytes could then mean gigabytes. Imported only where a websocket listener is configured. Read
next: `broker.loop.client_stream`.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any, Final, cast

from websockets.datastructures import Headers
from websockets.frames import CloseCode, Frame, Opcode
from websockets.http11 import Request, Response
from websockets.protocol import OPEN, SEND_EOF
from websockets.server import ServerProtocol
from websockets.typing import Origin, Subprotocol

from broker.loop.client_stream import LINGER_S, ClientStream

# [MQTT-6.0.0-4]; clients of MQTT 3.1 offer the second name. The first in this order is chosen.
SUBPROTOCOLS: Final = (Subprotocol("mqtt"), Subprotocol("mqttv3.1"))
# The whole request header; browsers with many cookies send 2 to 4 KiB.
HEADER_BYTES_MAX: Final = 8192
HEADER_END: Final = b"\r\n\r\n"
# A frame may hold several packets. What it holds is only handed on when the frame is complete, so
# this is what a peer can make us keep beyond one packet of the greatest size.
FRAME_SPARE_BYTES: Final = 64 << 10
# A read is taken apart in slices of this size, with the loop's other work between them: a read may
# have 256 KiB, and 16 KiB of frames of one byte are 2,340 frames and take 6 ms, of pings 10 ms.
SLICE_BYTES: Final = 16 << 10
PONG_START: Final = 0x80 | Opcode.PONG


def _silent() -> logging.Logger:
    """Return the logger for the library, which reports bugs only."""
    logger = logging.getLogger("holdfast.websocket")
    logger.setLevel(logging.ERROR)
    return logger


class Upgrade:
    """What a listener asks of a client that wants to speak WebSocket."""

    __slots__ = ("early_frame_bytes_max", "frame_bytes_max", "logger", "origins", "refused")

    def __init__(
        self,
        origins: Sequence[str],
        *,
        connect_size_max: int,
        packet_size_max: int,
        refused: Callable[[str, str], None],
    ) -> None:
        """`origins` as configured; `refused` is called with (remote, reason) at each refusal."""
        # Clients that are no browsers send no Origin, so None is allowed.
        is_any = not origins or "*" in origins
        self.origins: list[Origin | None] | None = (
            None if is_any else [None, *(Origin(origin) for origin in origins)]
        )
        self.early_frame_bytes_max: int = min(connect_size_max, packet_size_max) + FRAME_SPARE_BYTES
        self.frame_bytes_max: int = packet_size_max + FRAME_SPARE_BYTES
        self.refused: Callable[[str, str], None] = refused
        self.logger: logging.Logger = _silent()

    def answer(self, header: bytes) -> tuple[ServerProtocol, Response, str]:
        """Check a complete request header; return protocol, answer, and the reason of a refusal."""
        protocol = ServerProtocol(
            origins=self.origins,
            subprotocols=SUBPROTOCOLS,
            max_size=(None, self.early_frame_bytes_max),
            logger=self.logger,
        )
        protocol.receive_data(header)
        events = protocol.events_received()
        if not events:
            return protocol, refusal(400, "Bad Request"), "no valid HTTP request"
        request = events[0]
        assert isinstance(request, Request)
        response = protocol.accept(request)
        why = "" if response.status_code == 101 else str(protocol.handshake_exc)
        return protocol, response, why


def refusal(status: int, phrase: str) -> Response:
    """Return a response without a body."""
    return Response(status, phrase, Headers([("Connection", "close"), ("Content-Length", "0")]))


class WebSocketStream(asyncio.Protocol):
    """One accepted connection of a websocket listener."""

    __slots__ = (
        "_backlog",
        "_header",
        "_inner",
        "_is_over",
        "_is_paused",
        "_is_slow",
        "_linger",
        "_loop",
        "_next_slice",
        "_pong",
        "_protocol",
        "_transport",
        "_upgrade",
    )

    def __init__(self, inner: ClientStream, upgrade: Upgrade) -> None:
        """`inner` takes the bytes of MQTT, and sees this as its transport."""
        self._inner: ClientStream = inner
        self._upgrade: Upgrade = upgrade
        self._loop: asyncio.AbstractEventLoop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._header: bytearray = bytearray()  # of the request, until it is complete
        self._protocol: ServerProtocol | None = None  # from then on
        self._backlog: memoryview | None = None  # the rest of a read that is not taken apart yet
        self._next_slice: asyncio.Handle | None = None
        self._pong: bytes = b""  # the last pong, for a peer that pings and does not read
        self._is_paused: bool = False  # does the inner stream want no bytes?
        self._is_slow: bool = False  # does the peer take its bytes too slowly?
        self._is_over: bool = False  # nothing is read any more, nothing written
        self._linger: asyncio.TimerHandle | None = None

    # What the loop calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Introduce the client to the engine: its connect timeout covers the upgrade."""
        self._transport = cast(asyncio.Transport, transport)
        self._inner.connection_made(cast(asyncio.Transport, self))

    def data_received(self, data: bytes) -> None:
        """Take the request's header, or frames."""
        if self._is_over:
            return
        if self._protocol is None:
            data = self._take_header(data)
        if data:
            self._take(data)

    def eof_received(self) -> bool:
        """End the connection: a peer that closes without a Close frame is gone all the same."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell the inner stream."""
        if self._linger is not None:
            self._linger.cancel()
        if self._next_slice is not None:
            self._next_slice.cancel()
        self._is_over = True
        self._backlog = None
        self._transport = None
        self._inner.connection_lost(exc)

    def pause_writing(self) -> None:
        """Pass on that the write buffer is above its high-water mark."""
        self._is_slow = True
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        """Pass on that the write buffer has drained; send the last pong."""
        self._is_slow = False
        pong, self._pong = self._pong, b""
        if pong and self._transport is not None and not self._is_over:
            self._transport.write(pong)
        self._inner.resume_writing()

    # The upgrade.

    def _take_header(self, data: bytes) -> bytes:
        """Collect the request's header and answer it; return what came behind it."""
        header = self._header
        searched = max(0, len(header) - len(HEADER_END) + 1)
        header += data
        if not header[:1].isalpha():  # a client that speaks MQTT or TLS to the wrong port
            self._refuse(refusal(400, "Bad Request"), "not HTTP")
            return b""
        end = header.find(HEADER_END, searched, HEADER_BYTES_MAX)
        if end < 0:
            if len(header) >= HEADER_BYTES_MAX:
                why = f"request header of more than {HEADER_BYTES_MAX} bytes"
                self._refuse(refusal(431, "Request Header Fields Too Large"), why)
            return b""
        end += len(HEADER_END)
        behind = bytes(header[end:])
        protocol, response, why = self._upgrade.answer(bytes(header[:end]))
        header.clear()
        if why:
            self._refuse(response, why)
            return b""
        protocol.send_response(response)
        self._protocol = protocol
        self._flush(protocol)
        return behind

    def _refuse(self, response: Response, why: str) -> None:
        assert self._transport is not None
        self._upgrade.refused(self._inner.remote, f"websocket: {why}")
        self._header.clear()
        self._transport.write(response.serialize())
        self._finish()

    # Frames.

    def _take(self, data: bytes | memoryview) -> None:
        """Take frames apart, the first slice of them now."""
        if self._backlog is not None:  # only what was on its way when we stopped reading
            data = bytes(self._backlog) + data
            self._backlog = None
        if len(data) <= SLICE_BYTES:
            self._parse(bytes(data))
            return
        view = memoryview(data)
        self._backlog = view[SLICE_BYTES:]
        self._stop_reading()
        self._parse(bytes(view[:SLICE_BYTES]))
        if self._backlog is not None and self._next_slice is None:
            self._next_slice = self._loop.call_soon(self._go_on)

    def _go_on(self) -> None:
        """Parse the next slice, unless reading is paused."""
        self._next_slice = None
        if self._is_paused or self._is_over:
            return
        backlog, self._backlog = self._backlog, None
        if backlog is not None:
            self._take(backlog)
        if self._backlog is None and not self._is_paused:
            self._start_reading()

    def _parse(self, data: bytes) -> None:
        """Hand on the payload of complete frames, and answer pings and Close."""
        protocol = self._protocol
        assert protocol is not None
        if self._inner.is_accepted:
            protocol.max_fragment_size = self._upgrade.frame_bytes_max
        protocol.receive_data(data)
        held: list[bytes] = []
        for event in protocol.events_received():
            assert isinstance(event, Frame)
            if event.opcode is Opcode.BINARY or event.opcode is Opcode.CONT:
                held.append(bytes(event.data))
            elif event.opcode is Opcode.TEXT:  # [MQTT-6.0.0-1]
                protocol.fail(CloseCode.UNSUPPORTED_DATA, "MQTT wants binary frames")
                break
        # MQTT packets may span frames [MQTT-6.0.0-2]. An empty frame does not count as keep-alive.
        whole = held[0] if len(held) == 1 else b"".join(held)
        if whole:
            self._inner.data_received(whole)
        self._flush(protocol)

    def _flush(self, protocol: ServerProtocol) -> None:
        """Send what the library has queued: pongs, a Close, the end of the stream."""
        transport = self._transport
        if transport is None:
            return
        is_end = False
        pong = b""
        others: list[bytes] = []
        for data in protocol.data_to_send():
            if data == SEND_EOF:
                is_end = True
            elif data[0] == PONG_START:
                pong = data  # the answer to the latest ping answers those before it
            else:
                others.append(data)
        if pong and self._is_slow:
            self._pong = pong
        elif pong:
            transport.write(pong)
        for data in others:
            transport.write(data)
        if is_end:
            self._finish()

    def _finish(self) -> None:
        """End our side, and give the peer time to read the rest and to end its own."""
        transport = self._transport
        if transport is None or self._is_over:
            return
        self._is_over = True
        self._backlog = None
        if not transport.is_closing():
            transport.resume_reading()  # to see its end
        try:
            transport.write_eof()
        except (OSError, NotImplementedError, RuntimeError):
            transport.close()
        self._linger = self._loop.call_later(LINGER_S, transport.abort)

    def _stop_reading(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()

    def _start_reading(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    # What the inner stream calls (a part of `asyncio.Transport`).

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Return what the loop's transport knows."""
        assert self._transport is not None
        return self._transport.get_extra_info(name, default)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Pass the marks on."""
        assert self._transport is not None
        self._transport.set_write_buffer_limits(high=high, low=low)

    def write(self, data: bytes) -> None:
        """Send `data` as one binary message; it goes nowhere before the upgrade or after a Close.

        The engine writes once per tick, so a message has what it had to say in that tick.
        """
        protocol, transport = self._protocol, self._transport
        if protocol is None or transport is None or self._is_over or protocol.state is not OPEN:
            return
        protocol.send_binary(data)
        for frame in protocol.data_to_send():
            transport.write(frame)

    def write_eof(self) -> None:
        """Begin the closing handshake; the inner stream's linger bounds how long it takes.

        Raises what the loop's transport raises where there was no upgrade to close.
        """
        protocol, transport = self._protocol, self._transport
        if transport is None or self._is_over:
            return
        if protocol is None:
            self._is_over = True
            transport.write_eof()
        elif protocol.state is OPEN:
            protocol.send_close(CloseCode.NORMAL_CLOSURE)
            self._flush(protocol)

    def close(self) -> None:
        """Close once everything written is out."""
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Drop the connection with whatever was still to be written."""
        self._is_over = True
        if self._transport is not None:
            self._transport.abort()

    def is_closing(self) -> bool:
        """Tell whether the connection is about to end."""
        return self._is_over or self._transport is None or self._transport.is_closing()

    def pause_reading(self) -> None:
        """Hand in nothing more after what is complete already."""
        self._is_paused = True
        self._stop_reading()

    def resume_reading(self) -> None:
        """Hand in bytes again, first those that are here."""
        self._is_paused = False
        if self._backlog is None:
            self._start_reading()
        elif self._next_slice is None:
            self._next_slice = self._loop.call_soon(self._go_on)

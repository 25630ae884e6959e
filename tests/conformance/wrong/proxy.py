"""The man in the middle: a process that starts the real broker and stands before it.

The broker listens on the same ports of another loopback address. Every connection is two pumps;
whole packets go through the hooks of one mutant. A packet that is not complete after a while is
passed on in pieces: the broker is to see what is too slow or too large. Ends when its child ends,
and the child with it (PR_SET_PDEATHSIG), so that SIGKILL is a crash of the broker too.
"""

import asyncio
import ctypes
import os
import signal
import socket
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from conformance.connection import MARKER as MARKER_TEXT
from tests.conformance.wrong.frames import (
    CONNECT,
    PINGREQ,
    PUBACK,
    PUBLISH,
    SUBACK,
    SUBSCRIBE,
    Cutter,
    Frame,
)
from tests.conformance.wrong.mutant import Mutant, Out

OUTER: Final = "127.0.0.1"
INNER: Final = "127.0.0.2"
SLOW_S: Final = 0.15  # an incomplete packet is passed on in pieces after this
START_S: Final = 60.0
MARKER: Final = MARKER_TEXT.encode()
CHUNK: Final = 65_536
_PR_SET_PDEATHSIG: Final = 1


class Connection:
    """One connection, the `Link` of the hooks."""

    def __init__(self, server: "Server") -> None:
        self.server = server
        self.version: int = 4
        self.client_id: bytes = b""
        self.notes: dict[Any, Any] = {}
        self.world: dict[Any, Any] = server.world
        self.links: list[Any] = server.links
        self.started: int = server.started
        self.last: Frame | None = None
        self._is_held = False
        self._barriers: set[int] = set()

    async def run(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve until both sides are closed."""
        self._client = writer
        inner_reader, self._inner = await asyncio.open_connection(INNER, self.server.port)
        self.links.append(self)
        if self.server.mutant.opened is not None:
            self.server.mutant.opened(self)
        try:
            await asyncio.gather(self._from_client(reader), self._from_broker(inner_reader))
        finally:
            self.links.remove(self)
            writer.close()
            self._inner.close()

    async def _from_client(self, reader: asyncio.StreamReader) -> None:
        reset = await self._pump(reader, self._inner, self._client_frame)
        gone = self.server.mutant.client_gone
        if gone is not None and gone(self) is False:
            return
        self._end(self._inner, reset)
        if self._is_held:
            self._client.close()

    async def _from_broker(self, reader: asyncio.StreamReader) -> None:
        reset = await self._pump(reader, self._client, self._broker_frame)
        keeps = self.server.mutant.keeps_open
        if keeps is not None and keeps(self) and not self._client.is_closing():
            self._is_held = True
            return
        if reset:
            self._client.transport.abort()
        else:
            self._client.close()

    def _end(self, writer: asyncio.StreamWriter, reset: bool) -> None:
        if reset:
            writer.transport.abort()
        elif writer.can_write_eof() and not writer.is_closing():
            try:
                writer.write_eof()
            except OSError:
                writer.close()

    async def _pump(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        work: Callable[[bytes], Sequence[Out]],
    ) -> bool:
        """Pass packets on until the end; tell whether it was a reset."""
        cutter = Cutter()
        through = 0  # bytes of a slow packet that are still to be passed on as they come
        while True:
            try:
                wait = SLOW_S if cutter.pending else None
                data = await asyncio.wait_for(reader.read(CHUNK), wait)
            except TimeoutError:
                self._write(writer, cutter.pending)
                through, cutter.pending = cutter.missing or 1 << 40, b""
                continue
            except OSError:
                return True
            if not data:
                self._write(writer, cutter.pending)
                return False
            if cutter.pending and self.server.mutant.wants_whole_packets:
                cutter.pending = b""
            head, data = data[:through], data[through:]
            through -= len(head)
            self._write(writer, head)
            for raw in cutter.feed(data):
                self._write(writer, *work(raw))
            if cutter.lost:
                self._write(writer, cutter.pending)
                cutter.pending, through = b"", 1 << 40
                cutter.lost = False
            try:
                await writer.drain()
            except OSError:
                continue

    def _write(self, writer: asyncio.StreamWriter, *out: Out) -> None:
        data = b"".join(item if isinstance(item, bytes) else item.encode() for item in out)
        if data and not writer.is_closing():
            writer.write(data)

    def _client_frame(self, raw: bytes) -> Sequence[Out]:
        frame = Frame(raw, self.version)
        if frame.kind == CONNECT and self.last is None:
            self.version, self.client_id = frame.version, frame.client_id
        found = self._hooked(self.server.mutant.client, frame)
        self.last = frame
        if self._is_held:
            if frame.kind == PINGREQ:
                self.to_client(b"\xd0\x00")
            return ()
        return found

    def _broker_frame(self, raw: bytes) -> Sequence[Out]:
        return self._hooked(self.server.mutant.broker, Frame(raw, self.version))

    def _is_barrier(self, frame: Frame) -> bool:
        """Is it the traffic of a `Bench.barrier`? Hooks leave that alone, or most checks fail.

        Likewise the connection with which the runner tries if there is a broker at all.
        """
        if self.client_id[4:] == b"probe":
            return True
        if not frame.good:
            return False
        if frame.kind == PUBLISH and frame.topic.startswith(MARKER):
            if frame.packet_id is not None:
                self._barriers.add(frame.packet_id)
            return True
        if frame.kind in (PUBACK, SUBSCRIBE, SUBACK) and frame.packet_id is not None:
            mine = frame.packet_id in self._barriers
            if frame.kind == PUBACK:
                self._barriers.discard(frame.packet_id)
            elif frame.kind == SUBSCRIBE and all(f.startswith(MARKER) for f, _ in frame.filters):
                mine = bool(frame.filters)
                self._barriers.add(frame.packet_id)
            return mine
        return False

    def _hooked(self, hooks: Sequence[Any], frame: Frame) -> Sequence[Out]:
        if self._is_barrier(frame):
            return (frame,)
        for kinds, bad, hook in hooks:
            if frame.kind in kinds and (frame.good or bad):
                found: Sequence[Out] | None = hook(self, frame)
                if found is not None:
                    return found
        return (frame,)

    # What hooks may do.

    def to_client(self, *out: Out) -> None:
        """Send to the client, past the hooks."""
        self._write(self._client, *out)

    def to_broker(self, *out: Out) -> None:
        """Send to the broker, past the hooks."""
        self._write(self._inner, *out)

    def cut(self) -> None:
        """Close the client's connection, and the broker's."""
        self._client.close()
        self._inner.close()

    def later(self, seconds: float, action: Callable[[], None]) -> None:
        """Do something after a while, if the connection is still there."""

        def act() -> None:
            if self in self.links and not self._client.is_closing():
                action()

        asyncio.get_running_loop().call_later(seconds, act)


class Server:
    """The wrapper process: the child, and a listener per port."""

    def __init__(self, mutant: Mutant, port: int, websocket_port: int) -> None:
        self.mutant = mutant
        self.port = port
        self.websocket_port = websocket_port
        self.world: dict[Any, Any] = {}
        self.links: list[Connection] = []
        self.started = 0

    def run(self, command: Sequence[str]) -> int:
        """Start the broker, serve until it ends, return its exit status."""
        directory = Path.cwd()
        self.started = _count(directory / "starts")
        _await_end(directory / "broker.pid")
        environment = dict(os.environ)
        if self.mutant.start is not None:
            self.mutant.start(directory, environment, self.started)
        child = subprocess.Popen(command, env=environment, preexec_fn=_die_with_parent)
        (directory / "broker.pid").write_text(str(child.pid))
        signal.signal(signal.SIGTERM, lambda *_: child.terminate())
        return asyncio.run(self._serve(child))

    async def _serve(self, child: subprocess.Popen[bytes]) -> int:
        ended = asyncio.get_running_loop().run_in_executor(None, child.wait)
        for port in filter(None, (self.port, self.websocket_port)):
            while not _listens(port):
                if ended.done():
                    return await ended
                await asyncio.sleep(0.02)
        servers = [await asyncio.start_server(self._accept, OUTER, self.port, backlog=1024)]
        if self.websocket_port:
            servers.append(await asyncio.start_server(self._upgrade, OUTER, self.websocket_port))
        code = await ended
        for server in servers:
            server.close()
        await asyncio.sleep(0.05)  # what the broker sent last is passed on
        return code

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await Connection(self).run(reader, writer)
        except OSError:
            writer.transport.abort()

    async def _upgrade(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Pass the bytes of a WebSocket on, through the mutant's hooks for them."""
        try:
            inner_reader, inner = await asyncio.open_connection(INNER, self.websocket_port)
        except OSError:
            writer.transport.abort()
            return
        notes: dict[Any, Any] = {}
        away, back = self.mutant.websocket_client, self.mutant.websocket_broker
        await asyncio.gather(
            _copy(reader, inner, notes, away), _copy(inner_reader, writer, notes, back)
        )


async def _copy(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    notes: dict[Any, Any],
    change: Callable[[dict[Any, Any], bytes], bytes] | None,
) -> None:
    try:
        while data := await reader.read(CHUNK):
            writer.write(data if change is None else change(notes, data))
            await writer.drain()
    except OSError:
        writer.transport.abort()
    writer.close()


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _count(path: Path) -> int:
    starts = int(path.read_text()) + 1 if path.exists() else 1
    path.write_text(str(starts))
    return starts


def _await_end(path: Path) -> None:
    """Wait until the broker of the start before is gone: it dies a moment after its parent."""
    if path.exists():
        pid = int(path.read_text())
        try:
            handle = os.pidfd_open(pid)
        except ProcessLookupError:
            return
        import select

        select.select([handle], [], [], START_S)
        os.close(handle)


def _listens(port: int) -> bool:
    try:
        socket.create_connection((INNER, port), timeout=1.0).close()
    except OSError:
        return False
    return True

"""A TLS terminator: takes TLS, and passes what is in it on to a server that has none."""

import asyncio
import contextlib
import ssl
import threading
from pathlib import Path
from typing import Final, Self

from tests.durability.process import READY_SECONDS, free_port

CHUNK_BYTES: Final = 65_536


class TlsTerminator:
    """In front of one server, over any number of starts on one port."""

    def __init__(self, server_port: int) -> None:
        self.port: Final = free_port()
        self._server_port: Final = server_port
        self._end: asyncio.Event | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def start(self, certificate: Path, key: Path) -> Self:
        """Show this certificate from now on; return once it listens."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        listens = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run(context, listens)))
        self._thread.start()
        assert listens.wait(READY_SECONDS)
        return self

    def stop(self) -> None:
        """End, and cut all connections. Idempotent."""
        thread, self._thread = self._thread, None
        if thread is not None:
            assert self._loop is not None and self._end is not None
            self._loop.call_soon_threadsafe(self._end.set)
            thread.join(READY_SECONDS)
            assert not thread.is_alive()

    async def _run(self, context: ssl.SSLContext, listens: threading.Event) -> None:
        self._loop, self._end = asyncio.get_running_loop(), asyncio.Event()
        tasks: dict[asyncio.Task[None], asyncio.StreamWriter] = {}

        async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            tasks[task] = writer
            task.add_done_callback(tasks.pop)
            with contextlib.suppress(OSError):
                await writer.start_tls(context)
                inner = await asyncio.open_connection("127.0.0.1", self._server_port)
                await asyncio.gather(_pass_on(reader, inner[1]), _pass_on(inner[0], writer))
            writer.close()

        server = await asyncio.start_server(take, "127.0.0.1", self.port)
        listens.set()
        await self._end.wait()
        server.close()
        while tasks:
            for writer in tasks.values():
                writer.transport.abort()
            await asyncio.wait(tasks)


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Pass bytes on until either end is closed, and close the other."""
    with contextlib.suppress(OSError):
        while data := await reader.read(CHUNK_BYTES):
            writer.write(data)
            await writer.drain()
    writer.close()

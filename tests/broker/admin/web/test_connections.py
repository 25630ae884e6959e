"""Connections that say nothing, say it slowly, or are too many, hold nobody else up."""

import asyncio
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

import uvicorn

from broker.admin.web import connections
from broker.admin.web.connections import PatientProtocol
from tests.broker.admin.application import Application

REQUEST: Final = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"


class Hasty(PatientProtocol):
    """A connection that waits for a very short time."""

    headers_s = 0.05


class Few(PatientProtocol):
    """A connection of which there may be two."""

    connections_max = 2


def serve(
    tmp_path: Path, protocol: type[PatientProtocol], story: Callable[[int], Awaitable[None]]
) -> None:
    """Serve the application on a port for a story."""
    application = Application(tmp_path)

    async def run() -> None:
        bound = socket.create_server(("127.0.0.1", 0))
        server = uvicorn.Server(
            uvicorn.Config(
                application.app,
                http=protocol,
                ws="none",
                log_config=None,
                h11_max_incomplete_event_size=connections.HEADERS_BYTES_MAX,
            )
        )
        serving = asyncio.create_task(server.serve(sockets=[bound]))
        try:
            await story(bound.getsockname()[1])
        finally:
            server.should_exit = True
            await serving

    asyncio.run(run())


async def answers(reader: asyncio.StreamReader) -> bytes:
    """Return the status line of the next answer, whose body is read, too."""
    head = await reader.readuntil(b"\r\n\r\n")
    length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
    await reader.readexactly(length)
    return head.partition(b"\r\n")[0]


async def is_closed(reader: asyncio.StreamReader) -> bool:
    """Wait for the end of a connection; return whether it came without another byte."""
    try:
        return await reader.read() == b""
    except ConnectionResetError:
        return True


def test_who_says_nothing_is_closed(tmp_path: Path) -> None:
    async def story(port: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        assert await is_closed(reader)
        writer.close()

    serve(tmp_path, Hasty, story)


def test_who_sends_its_headers_byte_by_byte_for_ever_is_closed(tmp_path: Path) -> None:
    async def story(port: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)

        async def drip() -> None:
            while True:
                writer.write(b"X")
                await writer.drain()
                await asyncio.sleep(0)

        writer.write(b"GET / HTTP/1.1\r\nHost: localhost\r\nX-Slow: ")
        dripping = asyncio.create_task(drip())
        closed = asyncio.create_task(is_closed(reader))
        await asyncio.wait((dripping, closed), return_when=asyncio.FIRST_COMPLETED)
        dripping.cancel()
        await asyncio.gather(dripping, return_exceptions=True)
        await closed
        writer.close()

    serve(tmp_path, Hasty, story)


def test_headers_of_a_second_request_are_not_waited_for_longer(tmp_path: Path) -> None:
    async def story(port: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(REQUEST)
        assert await answers(reader) == b"HTTP/1.1 200 OK"
        writer.write(REQUEST[:10])
        assert await is_closed(reader)
        writer.close()

    serve(tmp_path, Hasty, story)


def test_requests_that_come_at_once_are_all_answered(tmp_path: Path) -> None:
    async def story(port: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(REQUEST * 3)
        for _ in range(3):
            assert await answers(reader) == b"HTTP/1.1 200 OK"
        writer.write(REQUEST[:20])
        await writer.drain()
        writer.write(REQUEST[20:])
        assert await answers(reader) == b"HTTP/1.1 200 OK"
        writer.close()

    serve(tmp_path, PatientProtocol, story)


def test_more_connections_than_the_limit_are_closed_and_the_others_stay(tmp_path: Path) -> None:
    async def story(port: int) -> None:
        open_ones = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2)]
        for reader, writer in open_ones:
            writer.write(REQUEST)
            assert await answers(reader) == b"HTTP/1.1 200 OK"
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        assert await is_closed(reader)
        writer.close()
        for reader, writer in open_ones:
            writer.write(REQUEST)
            assert await answers(reader) == b"HTTP/1.1 200 OK"
            writer.close()

    serve(tmp_path, Few, story)


def test_the_longest_name_of_a_client_fits_into_a_path(tmp_path: Path) -> None:
    async def story(port: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        path = b"/api/v1/sessions/" + b"%2F" * 65_535
        writer.write(b"GET " + path + b" HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert await answers(reader) == b"HTTP/1.1 401 Unauthorized"
        writer.close()

    serve(tmp_path, PatientProtocol, story)

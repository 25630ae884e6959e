"""Does every connection of a plain listener become a stream, and none that cannot?"""

import asyncio
import contextlib
import os
import socket
import stat
from collections.abc import Iterator

import pytest

from broker.configuration.listener_options import UNIX, Endpoint
from broker.loop.client_stream import remote_name
from broker.network.intake import ACCEPTS_MAX
from broker.network.plain_acceptor import PlainAcceptor
from mqtt import reasons
from tests.broker.inside import InsideBroker, plain, run

BOTH = pytest.mark.parametrize("loop", ["asyncio", "uvloop"])


def connected(port: int) -> Iterator[socket.socket]:
    """Yield the sockets of this process that a listener at `port` has accepted."""
    for number in map(int, os.listdir("/proc/self/fd")):
        with contextlib.suppress(OSError):
            if not stat.S_ISSOCK(os.fstat(number).st_mode):
                continue
            with socket.socket(fileno=os.dup(number)) as channel:
                if channel.family == socket.AF_INET and channel.getsockname()[1] == port:
                    channel.getpeername()
                    yield channel


@BOTH
def test_a_storm_of_clients_is_served(loop: str) -> None:
    async def scenario(broker: InsideBroker) -> None:
        listener = await broker.listen(plain())
        count = 2 * ACCEPTS_MAX + 1
        channels = [
            socket.create_connection(("127.0.0.1", listener.port)) for _ in range(count)
        ]  # before the loop has a turn
        peers = []
        for channel in channels:
            channel.setblocking(False)
            peers.append(broker.peer_of(*await asyncio.open_connection(sock=channel)))
        for number, peer in enumerate(peers):
            assert (await broker.greet(peer, f"c{number}")).reason_code == reasons.SUCCESS
        assert broker.driver.connections["other"] == count
        remotes = {connection.remote for connection in broker.engine._connections}
        assert remotes == {remote_name(channel.getsockname()) for channel in channels}

    run(scenario, loop=loop)


@BOTH
def test_output_is_not_delayed_to_gather_more(loop: str) -> None:
    async def scenario(broker: InsideBroker) -> None:
        listener = await broker.listen(plain())
        await broker.greet(
            broker.peer_of(*await asyncio.open_connection("127.0.0.1", listener.port))
        )
        assert [
            channel.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
            for channel in connected(listener.port)
        ] == [1]

    run(scenario, loop=loop)


@BOTH
def test_a_client_of_a_socket_file_has_its_path_for_a_name(loop: str, tmp_path: object) -> None:
    async def scenario(broker: InsideBroker) -> None:
        made = Endpoint("file")
        made.type, made.path, made.mode = UNIX, f"{tmp_path}/s", 0o600
        await broker.listen(made)
        await broker.greet(broker.peer_of(*await asyncio.open_unix_connection(made.path)))
        (connection,) = broker.engine._connections
        assert connection.remote == made.path

    run(scenario, loop=loop)


@BOTH
def test_whoever_is_gone_before_its_stream_was_told_leaves_nothing(loop: str) -> None:
    async def scenario(broker: InsideBroker) -> None:
        listener = await broker.listen(plain())
        for _ in range(5):
            socket.create_connection(("127.0.0.1", listener.port)).close()
        await broker.until(lambda: broker.counters.connections_accepted == 5)
        await broker.until(lambda: not broker.driver.streams)
        assert not broker.engine._connections

    run(scenario, loop=loop)


@BOTH
def test_a_connection_that_the_loop_does_not_take_is_refused_and_closed(loop: str) -> None:
    async def scenario(broker: InsideBroker) -> None:
        refused: list[tuple[str, str]] = []

        def no_stream(remote: str, identity: str | None, waited_ms: int) -> asyncio.Protocol:
            raise OSError("not this one")

        channel = socket.create_server(("127.0.0.1", 0))
        acceptor = PlainAcceptor(
            channel, no_stream, name="", refused=lambda *told: refused.append(told)
        )
        with socket.create_connection(channel.getsockname()) as client:
            peer = broker.peer_of(*await asyncio.open_connection(sock=client.dup()))
            await peer.closed()
            host, port = client.getsockname()
            assert refused == [(f"{host}:{port}", "not this one")]
        acceptor.close()

    run(scenario, loop=loop)


@BOTH
def test_new_clients_are_refused_after_the_end_and_those_that_are_connected_stay(loop: str) -> None:
    async def scenario(broker: InsideBroker) -> None:
        listener = await broker.listen(plain())
        peer = broker.peer_of(*await asyncio.open_connection("127.0.0.1", listener.port))
        await broker.until(lambda: bool(broker.driver.streams))
        listener.stop()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", listener.port))
        listener.stop()
        assert (await broker.greet(peer)).reason_code == reasons.SUCCESS
        assert len(broker.driver.streams) == 1

    run(scenario, loop=loop)

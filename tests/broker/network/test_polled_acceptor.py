"""Does the compiled build accept every connection, and wait where none can be accepted?"""

import asyncio
import socket

import pytest

from broker.configuration.listener_options import UNIX, Endpoint
from broker.network.intake import EXHAUSTED_PAUSE_S
from broker.network.polled_acceptor import PolledAcceptor
from mqtt import reasons
from tests.broker.descriptors import no_files_left
from tests.broker.inside import InsideBroker, plain, run

pytest.importorskip("broker.loop._sockets", reason="the pure build has none")

BOTH = pytest.mark.parametrize("loop", ["asyncio", "uvloop"])


@BOTH
def test_without_file_descriptors_connections_wait_and_the_reason_is_logged(loop: str) -> None:
    async def scenario(broker: InsideBroker) -> None:
        listener = await broker.listen(plain())
        (server,) = listener._servers
        assert isinstance(server, PolledAcceptor)
        channel = socket.socket()
        with no_files_left():
            channel.connect(("127.0.0.1", listener.port))
            await broker.until(lambda: bool(broker.events("connection_refused")))
        (line,) = broker.events("connection_refused")
        assert line["message"] == "cannot accept: Too many open files"
        channel.setblocking(False)
        peer = broker.peer_of(*await asyncio.open_connection(sock=channel))
        assert (await broker.greet(peer)).reason_code == reasons.SUCCESS

    assert EXHAUSTED_PAUSE_S < 5
    run(scenario, loop=loop)


@BOTH
def test_a_listener_that_stops_refuses_new_clients_and_keeps_the_others(loop: str) -> None:
    async def scenario(broker: InsideBroker) -> None:
        listener = await broker.listen(plain())
        peer = broker.peer_of(*await asyncio.open_connection("127.0.0.1", listener.port))
        await broker.until(lambda: broker.driver.connections["other"] == 1)
        listener.stop()
        listener.stop()
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", listener.port)
        assert (await broker.greet(peer)).reason_code == reasons.SUCCESS

    run(scenario, loop=loop)


def test_a_client_of_a_unix_socket_is_named_after_its_path(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    path = str(tmp_path_factory.mktemp("s") / "socket")

    async def scenario(broker: InsideBroker) -> None:
        made = Endpoint("other")
        made.type, made.path = UNIX, path
        await broker.listen(made)
        peer = broker.peer_of(*await asyncio.open_unix_connection(path))
        assert (await broker.greet(peer)).reason_code == reasons.SUCCESS
        assert {each.remote for each in broker.engine._connections} == {path}

    run(scenario)

"""Are connections taken many at a time, and none lost when the process has no descriptor left?"""

import asyncio
import contextlib
import socket
import time
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from broker.network import intake
from broker.network.intake import ACCEPTS_MAX, Accepted, Intake
from tests.broker.descriptors import no_files_left
from tests.broker.inside import LOOPS

BOTH = pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
PATIENCE_S = 60.0


class Listening:
    """A listening socket with its intake, and what that has told."""

    def __init__(self) -> None:
        self.channel = socket.create_server(("127.0.0.1", 0), backlog=1000)
        self.turns: list[Accepted] = []
        self.failures: list[str] = []
        self.intake = Intake(self.channel, self.turns.append, self.failures.append)

    def connect(self) -> socket.socket:
        """Return a client; the kernel has it, the intake not yet."""
        return socket.create_connection(self.channel.getsockname())

    async def refuse(self, client: socket.socket) -> None:
        """Connect `client`, and wait until it could not be taken."""
        client.connect(self.channel.getsockname())
        await until(lambda: bool(self.failures))

    @property
    def peers(self) -> list[object]:
        """The addresses of all connections that were taken."""
        return [peer for turn in self.turns for _, peer in turn]


async def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, "it never became true"
        await asyncio.sleep(0.001)


def run(scenario: Callable[[Listening], Coroutine[Any, Any, None]], loop: str) -> None:
    async def main() -> None:
        with contextlib.ExitStack() as stack:
            listening = Listening()
            stack.callback(listening.channel.close)
            stack.callback(listening.intake.close)
            await scenario(listening)
            for turn in listening.turns:
                for connection, _ in turn:
                    connection.close()

    with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        runner.run(main())


@BOTH
def test_what_waits_is_taken_in_one_turn_but_no_more_than_so_many(loop: str) -> None:
    async def scenario(listening: Listening) -> None:
        clients = [listening.connect() for _ in range(ACCEPTS_MAX + 5)]
        await until(lambda: len(listening.peers) == len(clients))
        assert [len(turn) for turn in listening.turns] == [ACCEPTS_MAX, 5]
        assert listening.peers == [client.getsockname() for client in clients]
        for client in clients:
            client.close()

    run(scenario, loop)


@BOTH
def test_nothing_is_taken_after_close(loop: str) -> None:
    async def scenario(listening: Listening) -> None:
        with listening.connect():
            listening.intake.close()
            await asyncio.sleep(0.05)
            assert not listening.turns

    run(scenario, loop)


@BOTH
def test_without_file_descriptors_connections_wait(
    loop: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(intake, "EXHAUSTED_PAUSE_S", 0.05)

    async def scenario(listening: Listening) -> None:
        client = socket.socket()
        with no_files_left():
            await listening.refuse(client)
            assert listening.failures[0] == "cannot accept: Too many open files"
            assert not listening.peers
        await until(lambda: len(listening.peers) == 1)
        client.close()

    run(scenario, loop)


@BOTH
def test_one_that_pauses_can_be_closed(loop: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intake, "EXHAUSTED_PAUSE_S", 0.05)

    async def scenario(listening: Listening) -> None:
        client = socket.socket()
        with no_files_left():
            await listening.refuse(client)
            listening.intake.close()
        await asyncio.sleep(0.1)
        assert not listening.peers
        client.close()

    run(scenario, loop)

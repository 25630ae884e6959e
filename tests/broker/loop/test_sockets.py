"""The sockets of the compiled build: what asyncio promises of a transport, they keep."""

import errno
import gc
import os
import socket
import struct
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from tests.broker.descriptors import no_files_left

sockets = pytest.importorskip("broker.loop._sockets", reason="the pure build has none")

PATIENCE_S: Final = 20.0
MUCH: Final = b"x" * (8 << 20)  # more than the kernel takes


class Told:
    """A protocol that notes what it is told."""

    def __init__(self, house: "House") -> None:
        self.house = house
        self.transport: Any = None
        self.peer: Any = None
        self.received = b""
        self.events: list[str] = []
        self.lost: list[object] = []
        self.on_data: Callable[[bytes], object] = lambda data: None

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self.peer = transport.get_extra_info("peername")

    def data_received(self, data: bytes) -> None:
        self.received += data
        self.on_data(data)

    def eof_received(self) -> bool:
        self.events.append("eof")
        return False

    def connection_lost(self, error: object) -> None:
        assert not self.house.is_polling, "from within another call"
        self.lost.append(error)

    def pause_writing(self) -> None:
        self.events.append("pause")

    def resume_writing(self) -> None:
        self.events.append("resume")


class House:
    """A poller, a listening socket, and what a loop does with them."""

    def __init__(self, family: int, address: Any) -> None:
        self.soon: list[tuple[Callable[..., object], tuple[object, ...]]] = []
        self.is_polling = False
        self.exhausted: list[int] = []
        self.told: list[Told] = []
        self.failures: list[BaseException] = []
        self.poller = sockets.Poller(self.call_soon, self.failures.append)
        self.listening = socket.socket(family)
        self.listening.bind(address)
        self.listening.listen()
        self.listening.setblocking(False)
        self.listener = self.poller.listen(
            self.listening.fileno(), self._accepted, self.exhausted.append
        )
        self.clients: list[socket.socket] = []

    def call_soon(self, call: Callable[..., object], *arguments: object) -> object:
        self.soon.append((call, arguments))
        return object()

    def _accepted(self) -> Told:
        self.told.append(Told(self))
        return self.told[-1]

    def turn(self) -> int:
        """Do what a turn of the loop does; return how many sockets had news."""
        self.is_polling = True
        found: int = self.poller.poll()
        self.poller.flush()
        self.is_polling = False
        self.run_soon()
        return found

    def run_soon(self) -> None:
        """Make the calls that were asked for."""
        soon, self.soon = self.soon, []
        for call, arguments in soon:
            call(*arguments)

    def until(self, condition: Callable[[], bool]) -> None:
        """Turn until something is true."""
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < deadline, "it never became true"
            self.turn()

    def client(self) -> tuple[socket.socket, Told]:
        """Connect; return the client's side and the protocol of ours."""
        client = socket.socket(self.listening.family)
        client.settimeout(PATIENCE_S)
        client.connect(self.listening.getsockname())
        self.clients.append(client)
        known = len(self.told)
        self.until(lambda: len(self.told) > known)
        return client, self.told[-1]

    def close(self) -> None:
        self.listener.close()
        for told in self.told:
            told.transport.abort()
        self.run_soon()
        for each in (*self.clients, self.listening):
            each.close()


@pytest.fixture
def house() -> Iterator[House]:
    house = House(socket.AF_INET, ("127.0.0.1", 0))
    yield house
    house.close()


def everything(client: socket.socket, size: int, house: House) -> bytes:
    """Read so many bytes while the house turns."""
    client.setblocking(False)
    found = bytearray()

    def read() -> bool:
        try:
            found.extend(client.recv(1 << 20))
        except BlockingIOError:
            pass
        return len(found) >= size

    house.until(read)
    return bytes(found)


def reset(client: socket.socket) -> None:
    """End a connection with a reset."""
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()


def test_bytes_arrive_and_what_is_written_leaves_with_the_flush(house: House) -> None:
    client, told = house.client()
    client.sendall(b"hello")
    house.until(lambda: told.received == b"hello")
    house.poller.expect()
    for piece in (b"a", b"b", bytearray(b"c"), memoryview(b"d"), b""):
        told.transport.write(piece)
    assert told.transport.get_write_buffer_size() == 4
    client.setblocking(False)
    with pytest.raises(BlockingIOError):
        client.recv(10)
    house.poller.flush()
    assert everything(client, 4, house) == b"abcd"
    assert told.transport.get_write_buffer_size() == 0
    assert house.soon == []


def test_a_write_that_no_flush_is_expected_for_asks_for_one(house: House) -> None:
    client, told = house.client()
    told.transport.write(b"a")
    told.transport.write(b"b")
    assert len(house.soon) == 1
    house.run_soon()
    client.setblocking(True)
    assert client.recv(10) == b"ab"


def test_only_bytes_can_be_written(house: House) -> None:
    _, told = house.client()
    with pytest.raises(TypeError):
        told.transport.write("text")


def test_many_pieces_keep_their_order(house: House) -> None:
    client, told = house.client()
    pieces = [b"%d," % number * (number % 7) for number in range(3000)]
    for number, piece in enumerate(pieces):
        told.transport.write(piece)
        if number % 701 == 0:
            house.turn()
    whole = b"".join(pieces)
    assert everything(client, len(whole), house) == whole


def test_a_peer_that_does_not_read_is_told_of_once_and_gets_everything(house: House) -> None:
    client, told = house.client()
    told.transport.set_write_buffer_limits(high=1000, low=100)
    told.transport.write(MUCH)
    house.turn()
    told.transport.write(b"end")
    for _ in range(3):
        house.turn()
    assert told.events == ["pause"]
    assert everything(client, len(MUCH) + 3, house) == MUCH + b"end"
    assert told.events == ["pause", "resume"]
    assert house.turn() == 0, "it is told of room that nobody waits for"


def test_marks_that_make_no_sense_are_refused(house: House) -> None:
    _, told = house.client()
    with pytest.raises(ValueError, match="high must be at least low"):
        told.transport.set_write_buffer_limits(high=1, low=2)


def test_close_sends_what_is_queued_first(house: House) -> None:
    client, told = house.client()
    told.transport.write(MUCH)
    told.transport.close()
    told.transport.close()
    assert told.transport.is_closing()
    told.transport.write(b"too late")
    house.turn()
    assert told.lost == []
    assert everything(client, len(MUCH), house) == MUCH
    house.until(lambda: told.lost == [None])
    client.setblocking(True)
    assert client.recv(10) == b""


def test_close_with_nothing_queued_is_told_soon_and_once(house: House) -> None:
    client, told = house.client()
    told.transport.close()
    assert told.lost == []
    house.run_soon()
    assert told.lost == [None]
    told.transport.abort()
    told.transport.close()
    house.turn()
    assert told.lost == [None]
    assert client.recv(10) == b""


def test_abort_drops_what_is_queued(house: House) -> None:
    _client, told = house.client()
    told.transport.write(MUCH)
    told.transport.abort()
    house.turn()
    assert told.lost == [None]
    assert told.transport.get_write_buffer_size() == 0


def test_the_end_of_writing_follows_what_was_written_and_reading_goes_on(house: House) -> None:
    client, told = house.client()
    told.transport.write(MUCH)
    told.transport.write_eof()
    told.transport.write(b"too late")
    assert everything(client, len(MUCH), house) == MUCH
    client.setblocking(True)
    house.turn()
    assert client.recv(10) == b""
    client.sendall(b"still here")
    house.until(lambda: told.received == b"still here")
    assert told.lost == []


def test_a_peer_that_ends_is_closed_after_it_was_told(house: House) -> None:
    client, told = house.client()
    client.sendall(b"last")
    client.shutdown(socket.SHUT_WR)
    house.until(lambda: bool(told.lost))
    assert (told.received, told.events, told.lost) == (b"last", ["eof"], [None])


def test_a_reset_is_told_with_its_reason(house: House) -> None:
    client, told = house.client()
    reset(client)
    house.until(lambda: bool(told.lost))
    (error,) = told.lost
    assert isinstance(error, OSError) and error.errno == errno.ECONNRESET


def test_a_write_to_a_peer_that_is_gone_ends_the_connection_only(house: House) -> None:
    client, told = house.client()
    other, healthy = house.client()
    told.transport.pause_reading()
    reset(client)
    told.transport.write(b"x")
    house.until(lambda: bool(told.lost))
    assert isinstance(told.lost[0], OSError)
    other.sendall(b"fine")
    house.until(lambda: healthy.received == b"fine")


@pytest.mark.parametrize("how", ["data", "reset", "end"])
def test_a_connection_that_is_not_read_from_costs_nothing(house: House, how: str) -> None:
    client, told = house.client()
    told.transport.pause_reading()
    told.transport.pause_reading()
    if how == "data":
        client.sendall(b"later")
    elif how == "end":
        client.shutdown(socket.SHUT_WR)
    else:
        reset(client)
    assert [house.turn() for _ in range(5)] == [0] * 5
    assert (told.received, told.lost) == (b"", [])
    told.transport.resume_reading()
    house.until(lambda: bool(told.received or told.lost))


def test_a_read_is_bounded_so_that_others_have_their_turn(house: House) -> None:
    client, told = house.client()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
    sizes: list[int] = []
    told.on_data = lambda data: sizes.append(len(data))
    client.setblocking(False)
    sent = client.send(MUCH)
    house.until(lambda: len(told.received) == sent)
    assert max(sizes) <= 256 << 10


def test_one_connection_may_end_another_one_that_has_news_too(house: House) -> None:
    pairs = [house.client() for _ in range(8)]

    def end_all(data: bytes) -> None:
        for _, told in pairs:
            told.transport.abort()

    for client, told in pairs:
        told.on_data = end_all
        client.sendall(b"x")
    house.turn()
    house.turn()
    assert sum(told.received == b"x" for _, told in pairs) == 1
    assert [told.lost for _, told in pairs] == [[None]] * 8


def test_a_protocol_that_raises_costs_its_connection_only(house: House) -> None:
    client, told = house.client()
    other, healthy = house.client()

    def fail(data: bytes) -> None:
        raise ValueError("a bug")

    told.on_data = fail
    client.sendall(b"x")
    house.until(lambda: told.lost == [None])
    (error,) = house.failures
    assert str(error) == "a bug" and error.__traceback__ is not None
    other.sendall(b"y")
    house.until(lambda: healthy.received == b"y")


def test_nothing_is_held_of_a_connection_that_is_over(house: House) -> None:
    _client, told = house.client()
    found = weakref.ref(told)
    before = set(os.listdir("/proc/self/fd"))
    told.transport.write(b"x")
    house.turn()
    told.transport.close()
    house.run_soon()
    assert len(set(os.listdir("/proc/self/fd"))) == len(before) - 1
    house.told.clear()
    del told
    gc.collect()
    assert found() is None


def test_a_poller_that_is_dropped_closes_its_sockets() -> None:
    house = House(socket.AF_INET, ("127.0.0.1", 0))
    client, told = house.client()
    found = weakref.ref(told)
    told.transport.write(b"never flushed")
    house.listening.close()
    del told, house
    gc.collect()
    assert found() is None
    assert client.recv(100) == b""
    client.close()


def test_without_descriptors_connections_wait(house: House) -> None:
    client = socket.socket()
    client.settimeout(PATIENCE_S)
    house.clients.append(client)
    with no_files_left():
        client.connect(house.listening.getsockname())
        house.until(lambda: bool(house.exhausted))
        assert house.turn() == 0, "it would spin"
    assert house.exhausted == [errno.EMFILE]
    house.listener.resume()
    house.listener.resume()
    house.until(lambda: len(house.told) == 1)


def test_a_listener_that_is_closed_accepts_no_more(house: House) -> None:
    _client, told = house.client()
    house.listener.close()
    house.listener.close()
    house.listener.resume()
    other = socket.create_connection(house.listening.getsockname())
    assert house.turn() == 0
    assert len(house.told) == 1 and told.lost == []
    other.close()


def test_every_kind_of_peer_is_named_as_python_names_it(tmp_path: Path) -> None:
    for family, address in (
        (socket.AF_INET, ("127.0.0.1", 0)),
        (socket.AF_INET6, ("::1", 0)),
        (socket.AF_UNIX, str(tmp_path / "socket")),
    ):
        house = House(family, address)
        client, told = house.client()
        assert told.peer == client.getsockname()
        assert told.transport.get_extra_info("socket") is None
        assert told.transport.get_extra_info("other", 5) == 5
        house.close()


def test_another_protocol_can_take_over(house: House) -> None:
    client, told = house.client()
    later = Told(house)
    told.transport.set_protocol(later)
    assert told.transport.get_protocol() is later
    client.sendall(b"x")
    house.until(lambda: later.received == b"x")
    assert told.received == b""

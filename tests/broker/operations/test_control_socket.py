"""The operator's socket in the data directory."""

import errno
import json
import os
import pwd
import socket
import stat
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path

import pytest

from broker.operations import control_socket
from broker.operations.control_socket import (
    CLIENTS_MAX,
    REQUEST_BYTES_MAX,
    Answer,
    ControlError,
    ControlServer,
    Request,
    ask,
)
from tests.broker.descriptors import no_files_left
from tests.broker.event_loop import Loop
from tests.stand_in import replace_in

PATIENCE_S = 60.0


class Broker:
    """A loop that makes the calls it is asked for, on a thread of its own."""

    def __init__(self, data_dir: Path) -> None:
        self.loop = Loop()
        self.threads: set[str] = set()
        self.later: list[Future[Request]] = []  # requests that are not answered yet
        self.failures: list[str] = []
        self.server = ControlServer(
            data_dir,
            self.answer,
            self.loop.call_soon_threadsafe,
            failed=self.failures.append,
        )

    def answer(self, request: Request) -> Answer:
        self.threads.add(threading.current_thread().name)
        if request.get("do") == "later":
            self.later.append(Future())
            return self.later[-1]
        if request.get("do") == "who":
            return {"by": request["by"]}
        if request.get("do") == "fail":
            raise ControlError("no")
        if request.get("do") == "much":
            return {"heard": "x" * 100_000}
        return {"heard": request["do"]}

    def ask(self, data_dir: Path, word: str) -> Request:
        """Ask while the loop turns once."""
        turn = threading.Thread(target=self.loop.run_one, name="the loop")
        turn.start()
        try:
            return ask(data_dir, {"do": word})
        finally:
            turn.join()


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    made = Broker(tmp_path)
    yield made
    made.server.close()


def test_a_request_is_answered_on_the_loops_thread(broker: Broker, tmp_path: Path) -> None:
    assert broker.ask(tmp_path, "hello") == {"heard": "hello"}
    with pytest.raises(ControlError, match=r"^no$"):
        broker.ask(tmp_path, "fail")
    assert broker.threads == {"the loop"}


def test_an_answer_may_be_longer_than_a_request(broker: Broker, tmp_path: Path) -> None:
    """The status of sixteen stores that are all down for a long reason is."""
    assert broker.ask(tmp_path, "much") == {"heard": "x" * 100_000}


def test_a_request_that_is_too_long_is_not_sent(tmp_path: Path) -> None:
    with pytest.raises(ControlError, match=r"^a request of 524311 bytes: expected 524288"):
        ask(tmp_path, {"do": "x" * REQUEST_BYTES_MAX, "more": ""})


def test_a_request_says_which_user_asks(broker: Broker, tmp_path: Path) -> None:
    user = pwd.getpwuid(os.getuid()).pw_name
    assert broker.ask(tmp_path, "who") == {"by": user}


def test_an_answer_that_comes_later_delays_no_other_one(broker: Broker, tmp_path: Path) -> None:
    answers: list[Request | ControlError] = []

    def wait() -> None:
        try:
            answers.append(ask(tmp_path, {"do": "later"}))
        except ControlError as problem:
            answers.append(problem)

    waiting = [threading.Thread(target=wait) for _ in range(CLIENTS_MAX)]
    for thread in waiting:
        thread.start()
    for _ in waiting:
        broker.loop.run_one()
    with pytest.raises(ControlError, match="requests wait already"):
        ask(tmp_path, {"do": "hello"})
    broker.later[0].set_exception(ControlError("no"))
    broker.later[1].set_result({"is": "done"})
    while len(answers) < 2:
        assert any(thread.is_alive() for thread in waiting)
    turn = threading.Thread(target=broker.loop.run_one)
    turn.start()
    answer: Request | None = None
    while answer is None:  # a place is free a moment after its answer was sent
        try:
            answer = ask(tmp_path, {"do": "hello"})
        except ControlError as problem:
            assert "wait already" in str(problem)
    turn.join()
    assert answer == {"heard": "hello"}
    for each in broker.later[2:]:
        each.set_result({"is": "done"})
    for thread in waiting:
        thread.join()
    assert sum(isinstance(each, ControlError) for each in answers) == 1
    assert answers.count({"is": "done"}) == CLIENTS_MAX - 1


def test_without_descriptors_it_waits_and_then_goes_on(broker: Broker, tmp_path: Path) -> None:
    clients = [socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) for _ in range(3)]
    with no_files_left():
        for client in clients:
            client.settimeout(PATIENCE_S)
            client.connect(str(tmp_path / control_socket.NAME))
        broker.loop.run_one()
        assert broker.failures == [f"cannot accept: {os.strerror(errno.EMFILE)}"]
    for client in clients:
        client.sendall(b'{"do": "hello"}\n')
    for _ in clients:
        broker.loop.run_one()
    for client in clients:
        assert json.loads(client.recv(1000)) == {"heard": "hello"}
        client.close()
    assert broker.ask(tmp_path, "again") == {"heard": "again"}
    assert len(broker.failures) == 1


def test_without_descriptors_it_can_be_closed(broker: Broker, tmp_path: Path) -> None:
    client = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with no_files_left():
        client.connect(str(tmp_path / control_socket.NAME))
        broker.loop.run_one()
        assert broker.failures
        broker.server.close()
        broker.server.join(PATIENCE_S)
    client.close()


def test_only_its_owner_may_open_it_and_it_goes_with_the_broker(
    broker: Broker, tmp_path: Path
) -> None:
    path = tmp_path / control_socket.NAME
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    broker.server.close()
    broker.server.close()
    assert not path.exists()
    with pytest.raises(ControlError, match=r"cannot ask the broker at .*: No such file"):
        ask(tmp_path, {"do": "hello"})


def test_what_a_crash_left_is_replaced_however_deep_it_lies(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 100) / ("e" * 100)
    deep.mkdir(parents=True)
    (deep / control_socket.NAME).touch()
    broker = Broker(deep)
    try:
        assert broker.ask(deep, "hello") == {"heard": "hello"}
    finally:
        broker.server.close()


@pytest.mark.parametrize(
    "noise",
    [
        b"\n",
        b"hello\n",
        b"[1]\n",
        b'"x"\n',
        b"\xff\n",
        b"x" * control_socket.REQUEST_BYTES_MAX,
        b"[" * 100_000 + b"\n",
    ],
)
def test_noise_is_answered_and_the_next_request_served(
    broker: Broker, tmp_path: Path, noise: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(15)
        client.connect(control_socket.NAME)
        client.sendall(noise)
        assert client.recv(1000).startswith(b'{"error": "not a line of JSON"}')
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(control_socket.NAME)  # and goes without a word
    assert broker.ask(tmp_path, "hello") == {"heard": "hello"}


class Patient(socket.socket):
    """A socket that waits as long as it takes."""

    def settimeout(self, seconds: float | None, /) -> None:
        """Do nothing."""


def test_a_loop_that_does_not_turn_is_said(
    broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control_socket, "ANSWER_S", 0.01)
    replace_in(monkeypatch, control_socket, "socket", socket=Patient)
    with pytest.raises(ControlError, match="too busy"):
        ask(tmp_path, {"do": "hello"})


def test_who_waits_when_the_broker_ends_is_told_so_at_once(tmp_path: Path) -> None:
    never: list[Request] = []
    servers: list[ControlServer] = []

    def close(work: object) -> None:
        servers[0].close()  # the loop makes no more calls

    def answer(request: Request) -> Answer:
        never.append(request)
        return {}

    servers.append(ControlServer(tmp_path, answer, close))
    with pytest.raises(ControlError, match="the broker has just ended"):
        ask(tmp_path, {"do": "hello"})
    assert not never


def test_work_that_comes_when_nobody_waits_any_more_is_not_done(tmp_path: Path) -> None:
    never: list[Request] = []
    servers: list[ControlServer] = []

    def late(work: Callable[[], None]) -> None:
        servers[0].close()
        work()

    def answer(request: Request) -> Answer:
        never.append(request)
        return {}

    servers.append(ControlServer(tmp_path, answer, late))
    with pytest.raises(ControlError, match="the broker has just ended"):
        ask(tmp_path, {"do": "hello"})
    assert not never

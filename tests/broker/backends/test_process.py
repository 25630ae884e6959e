"""Does the process of a store answer each batch once, wait, and end with its broker?"""

import base64
import contextlib
import json
import os
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from queue import Empty, Queue
from typing import Any, Final

import pytest

from broker import own_process
from broker.backends.process import make_sink
from broker.backends.rows import (
    CONFIG,
    FETCH,
    QUESTION,
    Row,
    Start,
    decode_wire_rows,
    encode_batch,
    encode_start,
    frame,
    json_frame,
)
from broker.backends.sink import Options, Unusable
from storage.tables.fetch_rows import QUEUE
from tests.broker.backends.redis_server import RedisServer, needs_redis
from tests.broker.backends.told_rows import INSTANCE, NODE, batch, message, rule

PATIENCE_S: Final = 60.0


class Process:
    """The process, with the broker's end of its pipes."""

    def __init__(self) -> None:
        self.process: Final = subprocess.Popen(
            own_process.command("broker.backends.process"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=own_process.environment(),
            start_new_session=True,
        )
        self._answers: Final[Queue[dict[str, Any]]] = Queue()
        self._reader: Final = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._answers.put(json.loads(line))

    def send(self, *frames: bytes) -> None:
        """Hand over frames."""
        assert self.process.stdin is not None
        self.process.stdin.write(b"".join(frames))
        self.process.stdin.flush()

    def configure(self, port: int, *rules: dict[str, Any], **values: Any) -> None:
        """Tell it what it is for."""
        values = {"servers": [f"127.0.0.1:{port}"], "timeout_ms": 500, **values}
        log = rule("message.publish", "#", commands=["RPUSH log ${payload}"])
        told = {"name": "cache", "type": "redis", "node": NODE, "options": values}
        told |= {"rules": list(rules or (log,)), "instance": INSTANCE}
        self.send(json_frame(CONFIG, told))

    def answer(self, key: str) -> dict[str, Any]:
        """Return the next answer with this key; others before it are passed over."""
        while True:
            answer = self._answers.get(timeout=PATIENCE_S)
            if key in answer:
                return answer

    def state(self, state: str) -> None:
        """Wait until it says that it is in this state."""
        while self.answer("state")["state"] != state:
            pass

    def has_answers(self) -> bool:
        """Return whether it has said anything that was not taken."""
        return not self._answers.empty()

    def apply(self, run: int, number: int, *rows: Row) -> None:
        """Send a batch that ends at this offset and begins behind the one before."""
        self.send(encode_batch(batch((number - 1, 0), (number, 0), *rows, run=run)))

    def end(self) -> int:
        """Close its stdin, and return how it ended."""
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        status = self.process.wait(PATIENCE_S)
        self._reader.join(PATIENCE_S)
        assert self.process.stdout is not None
        self.process.stdout.close()
        return status


@pytest.fixture
def process() -> Iterator[Process]:
    """A process that knows nothing yet."""
    made = Process()
    yield made
    made.process.kill()
    made.end()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    """A running Redis."""
    running = RedisServer(tmp_path / "redis").start()
    yield running
    running.kill()


@needs_redis
@pytest.mark.full
def test_each_batch_is_answered_in_its_order(process: Process, server: RedisServer) -> None:
    process.configure(server.port)
    assert process.answer("cursor") == {"cursor": None, "instance": None, "refused": []}
    process.send(encode_start(Start(1, (0, 0))))
    for number in (1, 2, 3):
        process.apply(1, number, message(number, payload=b"%d" % number))
    done = [process.answer("done") for _ in range(3)]
    assert [each["done"] for each in done] == [[1, 0], [2, 0], [3, 0]]
    assert all(each["run"] == 1 and each["rows"] == 1 and not each["dead"] for each in done)
    assert server.list("log") == [b"1", b"2", b"3"]
    assert process.end() == 0


@needs_redis
@pytest.mark.full
def test_batches_of_another_run_are_left_alone(process: Process, server: RedisServer) -> None:
    process.configure(server.port)
    process.answer("cursor")
    process.apply(1, 1, message(1, payload=b"before the start"))
    process.send(encode_start(Start(2, (0, 0))))
    process.apply(1, 1, message(1, payload=b"of an earlier run"))
    process.apply(2, 1, message(1, payload=b"right"))
    assert process.answer("done")["run"] == 2
    assert server.list("log") == [b"right"]


@needs_redis
@pytest.mark.full
def test_a_refused_command_comes_back_with_its_row(process: Process, server: RedisServer) -> None:
    process.configure(server.port, rule("message.publish", "#", 7, commands=["HSET k ${payload}"]))
    process.answer("cursor")
    process.send(encode_start(Start(1, (0, 0))))
    process.apply(1, 1, message(1, "täg", b"poison"))
    (dead,) = process.answer("done")["dead"]
    assert (dead["at"], dead["rule"]) == ([1, 0], 7)
    assert "wrong number of arg" in dead["why"].lower()
    (row,) = decode_wire_rows(base64.b64decode(dead["row"]))
    assert (row.topic, row.payload) == ("täg", b"poison")  # type: ignore[union-attr]


@needs_redis
@pytest.mark.full
def test_a_server_that_comes_back_says_where_it_is(process: Process, server: RedisServer) -> None:
    with server.client() as client:
        client.config_set("appendfsync", "always")
    process.configure(server.port)
    process.answer("cursor")
    process.send(encode_start(Start(1, (0, 0))))
    process.apply(1, 1, message(1))
    process.answer("done")
    server.kill()
    process.apply(1, 2, message(2))
    process.state("disconnected")
    server.start()
    assert process.answer("cursor") == {"cursor": [1, 0], "instance": INSTANCE, "refused": []}
    process.apply(1, 2, message(2))  # of the run before: not applied
    process.send(encode_start(Start(2, (1, 0))))
    process.apply(2, 2, message(2, payload=b"again"))
    assert process.answer("done")["done"] == [2, 0]
    assert server.list("log") == [b"x", b"again"]


@needs_redis
@pytest.mark.full
def test_a_cursor_that_went_back_is_told(process: Process, server: RedisServer) -> None:
    process.configure(server.port)
    process.answer("cursor")
    process.send(encode_start(Start(1, (0, 0))))
    process.apply(1, 1, message(1))
    process.answer("done")
    with server.client() as client:
        client.set("holdfast:cursor:cache", f"{INSTANCE}:0:0")
    process.apply(1, 2, message(2))
    assert process.answer("cursor")["cursor"] == [0, 0]
    assert len(server.list("log")) == 1


@needs_redis
@pytest.mark.full
def test_an_idle_server_is_looked_at(process: Process, server: RedisServer) -> None:
    process.configure(server.port)
    process.answer("cursor")
    process.send(encode_start(Start(1, (0, 0))))
    assert process.answer("alive") == {"alive": True}
    with server.client() as client:
        client.flushall()
    assert process.answer("cursor")["cursor"] is None


@needs_redis
@pytest.mark.full
def test_questions_are_answered_also_while_the_server_is_away(
    process: Process, server: RedisServer
) -> None:
    process.configure(server.port)
    process.send(json_frame(QUESTION, {"id": 1, "what": "health"}))
    assert process.answer("id")["health"]["writable"] is True
    server.kill()
    process.send(json_frame(QUESTION, {"id": 2, "what": "health"}))
    assert str(server.port) in process.answer("id")["error"]


def question(number: int, run: int, **told: Any) -> bytes:
    """Return what a session asks the store for."""
    given = {
        **{"fetch": number, "run": run, "kind": QUEUE, "client_id": "c", "topic": "t"},
        **{"after": "", "count": 10, "since": 0, "began_ms": 0, "not_before_ms": 0},
    }
    return json_frame(FETCH, {**given, **told})


@needs_redis
@pytest.mark.full
def test_sessions_are_answered_in_a_run_and_only_then(
    process: Process, server: RedisServer
) -> None:
    with server.client() as client:
        client.zadd("mqtt:msg:t", {"m": 1})
        client.hset("mqtt:msg:m", mapping={"payload": "x"})
        client.set("mqtt:msg:wrong", "x")
    process.configure(server.port)
    process.answer("cursor")
    process.send(question(1, 0), question(2, 1), encode_start(Start(1, (0, 0))))
    process.send(question(3, 2), question(4, 1), question(5, 1, topic="wrong"))
    answer = process.answer("fetched")
    assert (answer["fetched"], answer["topic"], answer["why"]) == (4, "t", "")
    assert [each["id"] for each in answer["messages"]] == ["m"]
    refused = process.answer("fetched")
    assert refused["fetched"] == 5 and "WRONGTYPE" in refused["why"]


@needs_redis
@pytest.mark.full
def test_a_store_that_went_back_answers_no_session(process: Process, server: RedisServer) -> None:
    process.configure(server.port)
    process.answer("cursor")
    process.send(encode_start(Start(1, (0, 0))), question(1, 1))
    assert process.answer("fetched")["messages"] == []
    with server.client() as client:
        client.flushall()
    process.send(question(2, 1), question(3, 1))
    assert process.answer("cursor")["cursor"] is None


@pytest.mark.full
@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (frame(b"X", b""), "expected the configuration first"),
        (
            json_frame(
                CONFIG,
                {
                    "name": "cache", "type": "redis", "node": NODE, "instance": INSTANCE,
                    "options": {"servers": ["127.0.0.1:1"]},
                    "rules": [rule("message.publish", "#", commands=["EVAL x"])],
                },
            ),
            "another command than EVAL",
        ),
    ],
)  # fmt: skip
def test_what_cannot_work_is_said_before_the_end(process: Process, wrong: bytes, said: str) -> None:
    process.send(wrong)
    try:
        assert said in process.answer("error")["error"]
    except Empty:
        pytest.fail(f"it said nothing; status {process.process.poll()}")
    assert process.end() == 1


@pytest.mark.full
@pytest.mark.parametrize("sent", [b"", b"C\0\0", frame(CONFIG, b"x" * 99)[:50]])
def test_it_ends_with_its_broker(process: Process, sent: bytes) -> None:
    process.send(sent)
    assert process.end() == 0
    assert not process.has_answers()


@pytest.mark.full
def test_it_is_not_ended_by_signals_for_the_broker(process: Process) -> None:
    process.configure(1)  # nobody listens there
    process.state("disconnected")
    for number in (2, 15):
        os.kill(process.process.pid, number)
    process.send(json_frame(QUESTION, {"id": 5}))
    assert "error" in process.answer("id")
    assert process.end() == 0


def test_a_type_that_there_is_not_is_refused() -> None:
    with pytest.raises(Unusable, match="expected redis"):
        make_sink(Options("x", "mongodb", NODE, {}, ()))

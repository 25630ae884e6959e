"""Does the process of a store answer each batch once, wait, and end with its broker?"""

import base64
import contextlib
import json
import os
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from queue import Empty, Queue
from typing import Any, Final

import pytest

from broker import own_process
from broker.backends.message_ids import node_number, unstored_id
from broker.backends.process import make_sink, split
from broker.backends.rows import (
    CONFIG,
    FETCH,
    QUESTION,
    Row,
    Start,
    decode_wire_rows,
    encode_batch,
    encode_start,
    encode_wire_row,
    frame,
    json_frame,
)
from broker.backends.sink import Options, Unusable
from storage.tables.feed_rows import AGAIN, CONNECTED, FeedEvent
from storage.tables.fetch_rows import QUEUE
from tests.broker.backends.redis_server import RedisServer, needs_redis
from tests.broker.backends.told_rows import (
    INSTANCE,
    NODE,
    NOW_MS,
    batch,
    event,
    message,
    rule,
    unlogged,
)
from tests.broker.backends.webhook_server import Received, Receiver, Reply, receivers

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


# A store that keeps no cursor


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    """A running receiver of rows."""
    yield from receivers()


def configure_webhook(process: Process, receiver: Receiver, **values: int) -> None:
    """Tell the process of a receiver."""
    told = {"name": "hook", "type": "webhook", "node": NODE, "instance": INSTANCE}
    options = {"url": receiver.url, "timeout_ms": 5000, **values}
    process.send(
        json_frame(CONFIG, {**told, "options": options, "rules": [rule("message.publish", "#")]})
    )


UNKNOWN_CURSOR: Final = {"cursor": None, "instance": INSTANCE, "refused": []}


@pytest.mark.full
def test_a_store_without_a_cursor_says_that_it_is_ours(
    process: Process, receiver: Receiver
) -> None:
    configure_webhook(process, receiver)
    assert process.answer("cursor") == UNKNOWN_CURSOR
    process.send(encode_start(Start(1, (4, 2))))
    process.send(encode_batch(batch((4, 2), (5, 2), message(5), run=1)))
    assert process.answer("done")["done"] == [5, 2]
    assert process.answer("alive") == {"alive": True}, "an idle one has lost nothing"
    process.send(json_frame(QUESTION, {"id": 1, "what": "health"}))
    assert process.answer("id")["health"]["writable"] is True
    assert len(receiver.requests) == 1


@pytest.mark.full
def test_batches_behind_one_that_failed_wait_for_another_run(
    process: Process, receiver: Receiver
) -> None:
    receiver.decide = lambda request: Reply(500 if len(receiver.requests) == 1 else 200)
    configure_webhook(process, receiver)
    process.answer("cursor")
    process.send(encode_start(Start(1, (0, 0))))
    for number in (1, 2, 3):
        process.apply(1, number, message(number, payload=b"%d" % number))
    process.send(json_frame(QUESTION, {"id": 1, "what": "health"}))
    assert process.answer("cursor") == UNKNOWN_CURSOR
    process.apply(1, 4, message(4))
    process.send(encode_start(Start(2, (0, 0))))
    process.apply(2, 1, message(1, payload=b"again"))
    assert process.answer("done")["run"] == 2
    assert receiver.payloads() == ["again"]


@pytest.mark.full
def test_a_store_that_takes_no_batch_is_tried_less_and_less_often(
    process: Process, receiver: Receiver
) -> None:
    """It can be reached each time: that alone must not begin the waiting anew."""
    times: list[float] = []

    def refuse(request: Received) -> Reply:
        times.append(time.monotonic())
        return Reply(500)

    receiver.decide = refuse
    configure_webhook(process, receiver)
    for run in range(1, 6):
        process.answer("cursor")
        process.send(encode_start(Start(run, (0, 0))))
        process.apply(run, 1, message(1))
        process.state("disconnected")
    assert times[4] - times[3] >= 0.4  # half of 0.1 s, doubled three times


@pytest.mark.full
def test_it_ends_at_once_with_its_broker_also_in_the_middle_of_a_batch(
    process: Process, receiver: Receiver
) -> None:
    """Otherwise it would send rows beside the process of the next start, and after it."""
    came, release = threading.Event(), threading.Event()

    def hang(request: Received) -> Reply:
        came.set()
        release.wait(2 * PATIENCE_S)
        return Reply()

    receiver.decide = hang
    configure_webhook(process, receiver, timeout_ms=600_000)
    process.answer("cursor")
    process.send(encode_start(Start(1, (0, 0))))
    process.apply(1, 1, message(1))
    assert came.wait(PATIENCE_S)
    try:
        assert process.end() == 0
    finally:
        release.set()


@pytest.mark.full
def test_how_soon_a_store_is_tried_again_is_an_option(process: Process, receiver: Receiver) -> None:
    receiver.probed = lambda request: Reply(503)
    configure_webhook(process, receiver, retry_first_ms=10, retry_max_ms=20)
    for _ in range(30):  # with the waits of the default that takes a quarter of an hour
        process.state("disconnected")


@pytest.mark.full
def test_a_store_that_asks_for_it_is_left_alone_for_a_while(
    process: Process, receiver: Receiver
) -> None:
    times: list[float] = []

    def refuse(request: Received) -> Reply:
        times.append(time.monotonic())
        return Reply(429, Retry_After="1")

    receiver.probed = refuse
    configure_webhook(process, receiver)
    process.state("disconnected")
    process.state("disconnected")
    assert times[1] - times[0] >= 1.0


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
    with pytest.raises(Unusable, match="expected one of redis, cassandra"):
        make_sink(Options("x", "mongodb", NODE, {}, ()))


def again(row: Row, seq: int, end: int, number: int = 1) -> FeedEvent:
    """Return the event that carries a dead letter of a rule."""
    body = encode_wire_row(row)
    return event(AGAIN, "", str(number), seq, end=end, username="cache", body=body)


def test_a_dead_letter_that_is_sent_again_is_a_part_of_its_own() -> None:
    rows = [message(1), again(message(9), 1, 1), again(message(9), 2, 3), message(5)]
    parts = list(split(batch((0, 0), (6, 4), *rows)))
    assert [(part.after, part.upto, list(part.rows)) for part in parts] == [
        ((0, 0), (1, 0), rows[:1]),
        ((1, 0), (1, 1), rows[1:2]),
        ((1, 1), (3, 1), []),
        ((3, 1), (3, 2), rows[2:3]),
        ((3, 2), (6, 4), rows[3:]),
    ]
    whole = batch((0, 0), (6, 4), message(1), event(CONNECTED))
    (part,) = split(whole)
    assert (part.after, part.upto, part.rows) == (whole.after, whole.upto, list(whole.rows))


@needs_redis
@pytest.mark.full
def test_a_dead_letter_is_sent_again_for_its_rule_alone(
    process: Process, server: RedisServer
) -> None:
    poison = rule("message.publish", "#", 1, commands=["RPUSH poison ${payload}"])
    log = rule("message.publish", "#", 2, commands=["RPUSH log ${payload}"])
    process.configure(server.port, poison, log)
    process.answer("cursor")
    with server.client() as client:
        client.set("poison", 1)
        process.send(encode_start(Start(1, (0, 0))))
        process.apply(1, 1, message(1, payload=b"a"))
        (dead,) = process.answer("done")["dead"]
        (row,) = decode_wire_rows(base64.b64decode(dead["row"]))
        sent = batch((1, 0), (2, 1), again(row, 1, 1), message(2, payload=b"b"), run=1)
        client.delete("poison")
        process.send(encode_batch(sent))
        assert process.answer("done")["dead"] == []
        assert client.lrange("poison", 0, -1) == [b"a", b"b"]
        assert client.lrange("log", 0, -1) == [b"a", b"b"]
        gone = again(row, 2, 2, number=7)
        process.send(encode_batch(batch((2, 1), (2, 2), gone, run=1)))
        (dead,) = process.answer("done")["dead"]
    assert (dead["at"], dead["rule"]) == ([2, 2], "7")
    assert "does not want this row" in dead["why"]
    assert base64.b64decode(dead["row"]) == encode_wire_row(row)


@needs_redis
@pytest.mark.full
def test_a_message_with_qos_0_that_is_sent_again_has_the_id_that_it_had(
    process: Process, server: RedisServer
) -> None:
    process.configure(
        server.port, rule("message.publish", "#", action="on_message_store", qos0=True)
    )
    process.answer("cursor")
    with server.client() as client:
        client.set("mqtt:msg:t", "a text")
        process.send(encode_start(Start(1, (0, 0))))
        process.send(encode_batch(batch((0, 0), (0, 1), unlogged(1), run=1)))
        (dead,) = process.answer("done")["dead"]
        assert dead["at"] == [0, 1] and "WRONGTYPE" in dead["why"]
        (row,) = decode_wire_rows(base64.b64decode(dead["row"]))
        client.delete("mqtt:msg:t")
        process.send(encode_batch(batch((0, 1), (0, 7), again(row, 7, 0), run=1)))
        assert process.answer("done")["dead"] == []
        name = unstored_id(NOW_MS, node_number(NODE), 1).encode()
        assert client.zrange("mqtt:msg:t", 0, -1) == [name]
        assert client.keys("mqtt:msg:2*") == [b"mqtt:msg:" + name]


def test_the_process_ends_with_each_of_its_threads() -> None:
    text = (
        "import threading\n"
        "from broker.backends import process\n"
        "threading.excepthook = process.end_with_thread\n"
        "threading.Thread(target=lambda: int('a bug')).start()\n"
        "threading.Event().wait()\n"
    )
    command = [own_process.command("x")[0], "-c", text]
    ended = subprocess.run(
        command, env=own_process.environment(), capture_output=True, timeout=PATIENCE_S, check=False
    )
    assert ended.returncode == 1
    assert ended.stderr.decode().rstrip().endswith("'a bug'")

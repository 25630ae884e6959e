"""Are writes of a DynamoDB backend made at once, and those of one item still in their order?"""

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from broker.backends.dynamodb_batch import together
from broker.backends.dynamodb_tables import KEYS, CallRefused
from broker.backends.rows import Row
from broker.backends.sink import FenceRefused, Unavailable
from storage.tables.feed_rows import ACKED, RETAINED
from storage.tables.message_record import encode_message
from tests.broker.backends.dynamodb_server import DynamodbServer, needs_dynamodb
from tests.broker.backends.dynamodb_sinks import STORED, counting, cursor, name_of, opened
from tests.broker.backends.told_rows import INSTANCE, NOW_MS, batch, event, message, rule

CONNECTIONS = 4
PATIENCE_S = 60.0
TOPICS = 9
LEFT = 3 * TOPICS  # messages that nobody has acknowledged


@pytest.fixture
def server(running_dynamodb: DynamodbServer) -> DynamodbServer:
    """The running one, with tables of the test's own."""
    return running_dynamodb.fresh()


# What is made at once


def test_so_many_calls_are_under_way_and_no_more() -> None:
    lock, meeting = threading.Lock(), threading.Barrier(CONNECTIONS)
    under_way: list[int] = [0]
    most: list[int] = [0]

    def call() -> None:
        with lock:
            under_way[0] += 1
            most[0] = max(most[0], under_way[0])
        meeting.wait(PATIENCE_S)  # with fewer at once nobody would get past this
        with lock:
            under_way[0] -= 1

    assert together([call] * (3 * CONNECTIONS), CONNECTIONS) == []
    assert most == [CONNECTIONS]


@pytest.mark.parametrize("at_once", [1, CONNECTIONS])
def test_all_that_is_refused_is_told_and_the_rest_is_made(at_once: int) -> None:
    made: list[int] = []

    def call(number: int) -> Callable[[], None]:
        def act() -> None:
            if number % 3 == 0:
                raise CallRefused("no", {number: "no"})
            made.append(number)

        return act

    found = together([call(number) for number in range(9)], at_once)
    assert [each.at for each in found] == [{0: "no"}, {3: "no"}, {6: "no"}]
    assert sorted(made) == [1, 2, 4, 5, 7, 8]


def test_a_failure_is_raised_once_nothing_is_under_way_any_more() -> None:
    failed, made = threading.Event(), threading.Event()

    def fail() -> None:
        failed.set()
        raise Unavailable("gone")

    def act() -> None:
        assert failed.wait(PATIENCE_S)
        made.set()

    with pytest.raises(Unavailable, match="gone"):
        together([fail, act], 2)
    assert made.is_set()


# A real DynamoDB

pytestmark = [pytest.mark.full]  # starts processes


class Watched:
    """The writes of a sink: which items they are for, and how many there are at once."""

    def __init__(self, sink: Any, meeting: int = 0) -> None:
        """With `meeting`, the first so many writes wait for each other."""
        self._sink = sink
        self._call = sink.call
        self._lock = threading.Lock()
        self._busy: list[Any] = []
        self._began = 0
        self._meeting = threading.Barrier(meeting) if meeting else None
        self._met = meeting
        sink.call = self.call

    def call(self, method: str, **arguments: Any) -> Any:
        """Make a call; no two writes of one item may be under way at once."""
        items = list(self._items(method, arguments))
        with self._lock:
            assert not [each for each in items if each in self._busy], "an item is written twice"
            self._busy += items
            self._began += bool(items)
            waits = bool(items) and self._began <= self._met
        try:
            if waits and self._meeting is not None:
                self._meeting.wait(PATIENCE_S)
            return self._call(method, **arguments)
        finally:
            with self._lock:
                for each in items:
                    self._busy.remove(each)

    def _items(self, method: str, arguments: dict[str, Any]) -> Iterator[Any]:
        if method == "update_item":
            yield self._item(arguments["TableName"], arguments["Key"])
        for table, requests in arguments.get("RequestItems", {}).items():
            for request in requests if method == "batch_write_item" else ():
                ((_, body),) = request.items()
                yield self._item(table, body.get("Item") or body["Key"])

    def _item(self, table: str, item: dict[str, Any]) -> tuple[str, ...]:
        (keys,) = [keys for name, keys in KEYS.items() if table == self._sink.name_of(name)]
        return table, *(item[key]["S"] for key in keys)


def queue_rows(count: int) -> list[Row]:
    """Return messages of some queues, each acknowledged a few rows later, but for the last ones."""
    rows: list[Row] = []
    for number in range(1, count + 1):
        topic = f"q/{number % TOPICS}"
        rows.append(message(number, topic))
        old = number - LEFT
        if old > 0:
            told = {"offset": old, "accepted_ms": NOW_MS, "end": number}
            rows.append(event(ACKED, "c", topic, old, **told))
    return rows


@needs_dynamodb
@pytest.mark.parametrize("layout", ["v1", "v2"])
def test_what_happens_to_one_item_happens_in_its_order(server: DynamodbServer, layout: str) -> None:
    rules = (STORED, rule("message.acked", "#", 2, action="on_message_acked_for_queue"))
    sink = opened(server, *rules, exact=False, connections=CONNECTIONS, layout=layout)
    Watched(sink)
    upto = (200, 200 - LEFT)
    assert sink.apply(batch((0, 0), upto, *queue_rows(200)), INSTANCE) == []
    left = {name_of(number) for number in range(upto[1] + 1, 201)}
    assert {item["msgid"] for item in server.table("msg")} == left
    if layout == "v1":
        lists = [item["MsgId"] for item in server.table("topic_msg_map")]
        assert {each for names in lists for each in names} == left
    else:
        assert {item["msgid"] for item in server.table("topic_msg")} == left
    assert cursor(sink) == upto


@needs_dynamodb
def test_writes_of_different_items_are_made_at_once(server: DynamodbServer) -> None:
    sink = opened(server, exact=False, connections=CONNECTIONS, layout="v2")
    Watched(sink, meeting=CONNECTIONS)  # they would wait for each other for ever
    rows = [message(number, f"t/{number}") for number in range(1, 251)]
    assert sink.apply(batch((0, 0), (250, 0), *rows), INSTANCE) == []
    assert len(server.table("msg")) == len(server.table("topic_msg")) == 250


@needs_dynamodb
def test_the_newest_message_of_a_topic_stays(server: DynamodbServer) -> None:
    retained = rule("message.publish", "#", action="on_message_retain")
    sink = opened(server, retained, exact=False, connections=CONNECTIONS)
    Watched(sink)

    def row(number: int) -> Row:
        topic = f"t/{number % 7}"
        body = encode_message(message(0, topic, b"%d" % number, retain=True))
        return event(RETAINED, "c", topic, number, offset=number, accepted_ms=NOW_MS, body=body)

    for at in range(0, 500, 100):
        rows = [row(number) for number in range(at + 1, at + 101)]
        assert sink.apply(batch((0, at), (0, at + 100), *rows), INSTANCE) == []
    kept = {item["topic"]: item["payload"] for item in server.table("retain")}
    assert kept == {f"t/{number % 7}": str(number) for number in range(494, 501)}


@needs_dynamodb
def test_what_is_refused_is_a_dead_letter_and_the_rest_flows(server: DynamodbServer) -> None:
    sink = opened(server, exact=False, connections=CONNECTIONS)
    large = (7, 90, 91)
    rows = [message(n, f"t/{n}", b"x" * (500_000 if n in large else 9)) for n in range(1, 151)]
    found = sink.apply(batch((0, 0), (150, 0), *rows), INSTANCE)
    assert sorted(poison.row + 1 for poison in found) == list(large)
    assert len(server.table("msg")) == 150 - len(large)
    assert cursor(sink) == (150, 0)


@needs_dynamodb
def test_a_batch_that_was_cut_off_is_written_again(server: DynamodbServer) -> None:
    sink = opened(server, exact=False, connections=CONNECTIONS, layout="v2")
    call = sink.call
    calls: list[str] = []

    def failing(method: str, **arguments: Any) -> Any:
        calls.append(method)
        if calls.count("batch_write_item") == 3:
            raise Unavailable("gone")
        return call(method, **arguments)

    rows = [message(number, f"t/{number}") for number in range(1, 201)]
    whole = batch((0, 0), (200, 0), *rows)
    sink.call = failing
    with pytest.raises(Unavailable):
        sink.apply(whole, INSTANCE)
    sink.call = call
    assert sink.open().cursor == (0, 0)
    assert sink.apply(whole, INSTANCE) == []
    assert len(server.table("msg")) == 200 and cursor(sink) == (200, 0)
    with pytest.raises(FenceRefused):
        sink.apply(batch((0, 0), (300, 0)), INSTANCE)


@needs_dynamodb
def test_own_statements_come_one_after_the_other(server: DynamodbServer) -> None:
    sink = counting(server, "a", "b", exact=False, connections=CONNECTIONS)
    rows = [message(number, "ab"[number % 2]) for number in range(1, 12)]
    assert sink.apply(batch((0, 0), (11, 0), *rows), INSTANCE) == []
    assert server.table("own") == [{"id": "a", "n": 5}, {"id": "b", "n": 6}]

"""Is a batch applied to a real DynamoDB once, and what it refuses told, with the rest applied?"""

from typing import Any

import pytest

from broker.backends.rows import Row
from broker.backends.sink import Fence, FenceRefused, Unavailable
from storage.tables.feed_rows import ACKED, DELIVERED, RETAINED, RETURNED
from tests.broker.backends.dynamodb_server import DynamodbServer, needs_dynamodb
from tests.broker.backends.dynamodb_sinks import (
    MODES,
    STORED,
    counting,
    cursor,
    made,
    name_of,
    opened,
)
from tests.broker.backends.told_rows import INSTANCE, batch, event, message, rule

pytestmark = [pytest.mark.full, needs_dynamodb]  # starts processes


@pytest.fixture
def server(running_dynamodb: DynamodbServer) -> DynamodbServer:
    """The running one, with tables of the test's own."""
    return running_dynamodb.fresh()


@MODES
def test_a_batch_that_is_applied_already_counts_as_applied(
    server: DynamodbServer, exact: bool
) -> None:
    sink = counting(server, "t", exact=exact)
    one = batch((0, 0), (1, 0), message(1))
    assert sink.apply(one, INSTANCE) == []
    assert sink.apply(one, INSTANCE) == []
    assert server.table("own") == [{"id": "t", "n": 1}]


@MODES
@pytest.mark.parametrize("after", [(1, 0), (0, 1)])
def test_a_batch_with_rows_missing_before_it_is_refused(
    server: DynamodbServer, after: tuple[int, int], exact: bool
) -> None:
    sink = opened(server, exact=exact)
    with pytest.raises(FenceRefused):
        sink.apply(batch(after, (5, 5), message(5)), INSTANCE)
    with pytest.raises(FenceRefused):
        sink.apply(batch((0, 0), (5, 5), message(5)), "another database")
    assert server.table("msg") == []


def test_many_rows_are_many_transactions_and_the_cursor_is_right_after_each(
    server: DynamodbServer,
) -> None:
    sink = counting(server, *(f"t/{number}" for number in range(250)))
    seen = []
    call = sink.call

    def watched(method: str, **arguments: Any) -> Any:
        answer = call(method, **arguments)
        if method == "execute_transaction":
            place = cursor(sink)
            assert place is not None
            seen.append(place[0])
            assert sum(item["n"] for item in server.table("own")) == place[0]
        return answer

    sink.call = watched
    rows = [message(number + 1, f"t/{number}") for number in range(250)]
    assert sink.apply(batch((0, 0), (250, 0), *rows), INSTANCE) == []
    assert seen[-1] == 250 and len(seen) == 3
    assert {item["n"] for item in server.table("own")} == {1}


def test_statements_of_the_same_item_are_all_carried_out(server: DynamodbServer) -> None:
    sink = counting(server, "a", "b")
    rows = [message(number, "ab"[number % 2]) for number in range(1, 12)]
    assert sink.apply(batch((0, 0), (11, 0), *rows), INSTANCE) == []
    assert server.table("own") == [{"id": "a", "n": 5}, {"id": "b", "n": 6}]


def test_an_application_that_crashed_in_the_middle_goes_on_there(server: DynamodbServer) -> None:
    sink = counting(server, *(f"t/{number}" for number in range(250)))
    call = sink.call
    calls = []

    def crashing(method: str, **arguments: Any) -> Any:
        calls.append(method)
        if calls.count("execute_transaction") == 2:
            raise Unavailable("gone")
        return call(method, **arguments)

    sink.call = crashing
    rows = [message(number + 1, f"t/{number}") for number in range(250)]
    with pytest.raises(Unavailable):
        sink.apply(batch((0, 0), (250, 0), *rows), INSTANCE)
    sink.call = call
    place = sink.open().cursor
    assert 0 < place[0] < 250
    sink.apply(batch(place, (250, 0), *rows[place[0] :]), INSTANCE)
    assert {item["n"] for item in server.table("own")} == {1}


def test_a_store_that_went_back_gets_the_rows_again(server: DynamodbServer) -> None:
    sink = opened(server)
    for number in (1, 2, 3):
        sink.apply(batch((number - 1, 0), (number, 0), message(number)), INSTANCE)
    sink.start(Fence(INSTANCE, (1, 0)), is_rewind=True)
    for number in (2, 3):
        sink.apply(batch((number - 1, 0), (number, 0), message(number)), INSTANCE)
    assert [len(server.table("msg")), cursor(sink)] == [3, (3, 0)]
    assert len(server.table("topic_msg_map")[0]["MsgId"]) == 3


# What the service refuses


@MODES
def test_an_item_that_is_too_large_is_a_dead_letter_and_the_rest_flows(
    server: DynamodbServer, exact: bool
) -> None:
    sink = opened(server, exact=exact)
    rows = [message(number, payload=b"x" * (500_000 if number == 7 else 9)) for number in range(20)]
    rows = rows[1:]
    found = sink.apply(batch((0, 0), (19, 0), *rows), INSTANCE)
    assert {(poison.row, poison.rule) for poison in found} == {(6, 1)}
    assert "size" in found[0].why
    assert len(server.table("msg")) == 18
    assert cursor(sink) == (19, 0)
    again = made(server, STORED, exact=exact)
    again.open()
    kept = again.refusals(INSTANCE)
    assert [(each.upto, each.at, each.rule) for each in kept] == [((7, 0), (7, 0), 1)]
    assert again.refusals("another database") == []


def test_a_full_list_of_a_topic_is_a_dead_letter_and_the_message_is_stored(
    server: DynamodbServer,
) -> None:
    sink = opened(server)
    client = server.client()
    for start in range(0, 8700, 100):
        client.update_item(
            TableName=server.prefix + "topic_msg_map",
            Key={"topic": {"S": "hot"}},
            UpdateExpression="ADD MsgId :ids",
            ExpressionAttributeValues={
                ":ids": {"SS": [f"{name_of(1)[:-8]}{start + each:08}" for each in range(100)]}
            },
        )
    rows: list[Row] = [message(number, "hot") for number in range(1, 60)]
    rows.append(message(60, "cold"))
    found = sink.apply(batch((0, 0), (60, 0), *rows), INSTANCE)
    assert found, "8,759 ids of 47 bytes are more than 400 KB"
    assert all(poison.rule == 1 for poison in found)
    assert len(server.table("msg")) == 60
    cold, hot = server.table("topic_msg_map")
    assert cold["topic"] == "cold" or hot["topic"] == "cold"
    full = cold if cold["topic"] == "hot" else hot
    assert len(full["MsgId"]) == 8700 + 59 - len(found)
    assert cursor(sink) == (60, 0)


def test_a_statement_that_is_refused_is_a_dead_letter_and_the_others_are_carried_out(
    server: DynamodbServer,
) -> None:
    sink = counting(server, "a", "b")
    rows = [message(1, "a"), message(2, "nobody"), message(3, "b"), message(4, "a")]
    found = sink.apply(batch((0, 0), (4, 0), *rows), INSTANCE)
    assert [(poison.row, poison.rule) for poison in found] == [(1, 2)]
    assert server.table("own") == [{"id": "a", "n": 2}, {"id": "b", "n": 1}]
    assert [each.at for each in sink.refusals(INSTANCE)] == [(2, 0)]


def test_a_row_that_nothing_can_be_made_of_is_told_and_the_rest_is_applied(
    server: DynamodbServer,
) -> None:
    sink = opened(server, STORED, rule("message.publish", "#", 2, action="on_message_retain"))
    broken = event(RETAINED, "", "t", body=b"no record")
    found = sink.apply(batch((0, 0), (1, 1), broken, message(1)), INSTANCE)
    assert [(poison.row, "CorruptRecord" in poison.why) for poison in found] == [(0, True)]
    assert len(server.table("msg")) == 1


# Claims

CLAIMS = (
    rule("session.subscribed", "#", action="on_message_fetch_for_queue"),
    rule("message.acked", "#", 2, action="on_message_acked_for_queue"),
)


def claim_of(server: DynamodbServer, name: str) -> str | None:
    """Return for whom a message is kept."""
    (item,) = [each for each in server.table("msg") if each["msgid"] == name]
    claim: str | None = item.get("holdfast_claim")
    return claim


@MODES
def test_a_claim_that_is_not_the_clients_is_left_and_the_rest_is_applied(
    server: DynamodbServer, exact: bool
) -> None:
    sink = opened(server, *CLAIMS, exact=exact)
    for name in ("m", "n"):
        server.put("msg", {"msgid": {"S": name}, "holdfast_claim": {"S": "other"}})
    rows = [
        event(kind, "c", "t", seq=seq, username="cache", body=name)
        for seq, (kind, name) in enumerate(
            [
                (RETURNED, b"m"),  # it has nothing to give back
                (DELIVERED, b"gone"),  # somebody has acknowledged it
                (DELIVERED, b"n"),
                (RETURNED, b"gone"),
            ],
            1,
        )
    ]
    assert sink.apply(batch((0, 0), (0, 4), *rows), INSTANCE) == []
    assert cursor(sink) == (0, 4) and sink.refusals(INSTANCE) == []
    assert (claim_of(server, "m"), claim_of(server, "n")) == ("other", "c")
    assert len(server.table("msg")) == 2
    back = event(RETURNED, "c", "t", seq=5, username="cache", body=b"n")
    assert sink.apply(batch((0, 4), (0, 5), back), INSTANCE) == []
    assert claim_of(server, "n") is None


@MODES
def test_all_that_happens_to_a_message_of_a_queue_may_be_in_one_batch(
    server: DynamodbServer, exact: bool
) -> None:
    sink = opened(server, *CLAIMS, exact=exact)
    server.put("msg", {"msgid": {"S": "m"}})
    server.put("topic_msg_map", {"topic": {"S": "t"}, "MsgId": {"SS": ["m", "n"]}})
    rows = [
        event(kind, "c", "t", seq=seq, username="cache", body=b"m")
        for seq, kind in enumerate([DELIVERED, RETURNED, DELIVERED, ACKED], 1)
    ]
    assert sink.apply(batch((0, 0), (0, 4), *rows), INSTANCE) == []
    assert server.table("msg") == []
    assert server.table("topic_msg_map") == [{"topic": "t", "MsgId": ["n"]}]

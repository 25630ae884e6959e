"""A census counts what each session and group is owed, and knows who needs which generation."""

import random

import pytest

from broker.operations.owing import census
from broker.operations.owing.census import Census
from broker.operations.owing.pins import Pinned
from broker.operations.sessions.behind import Known
from broker.operations.sessions.inventory import Inventory
from storage.tables.tables import SESSIONS, SUBSCRIPTIONS, subscription_key
from tests.session.backlogs import closed, with_a_gap
from tests.session.harness import Broker
from tests.session.lifetime.test_collection import numbers_of, rotate, sweep


def taken(broker: Broker, known: Known | None = None) -> Census:
    return census.take(broker.store, broker.now, known=known)


def names(pinned: Pinned) -> list[str]:
    return [name for _, name in pinned.sessions.largest]


def test_nothing_is_owed_in_an_empty_store() -> None:
    found = taken(Broker())
    assert (found.messages, found.size_bytes, found.oldest_ms, found.sessions) == (0, 0, 0, 0)
    assert [pinned.is_needed for pinned in found.pinned()] == [False]


def test_sessions_count_by_whether_they_are_connected() -> None:
    broker = Broker(max_inflight=1)
    broker.durable("away", "a/#").drop()
    broker.durable("here", "a/#")
    broker.durable("idle", "elsewhere").drop()
    began = broker.now
    for payload in (b"1", b"22", b"333"):
        broker.publish("a/x", payload)
        broker.advance(s=1)
    found = taken(broker)
    for kind in (found.offline, found.online):
        assert (kind.holders, kind.messages, kind.size_bytes) == (1, 3, 3 * 3 + 6)
    assert (found.messages, found.size_bytes, found.sessions) == (6, 30, 3)
    assert found.oldest_ms == began
    assert [(each.client_id, each.is_connected) for each in found.top] == [
        ("here", True), ("away", False),
    ]  # fmt: skip
    assert {each.oldest_ms for each in found.top} == {began}


def test_a_shared_group_counts_once_and_not_for_its_members() -> None:
    broker = Broker()
    broker.durable("w1", "$share/g/a").drop()
    broker.durable("w2", "$share/g/a").drop()
    for _ in range(3):
        broker.publish("a", b"12")
    found = taken(broker)
    assert (found.offline.messages, found.groups.messages, found.groups.size_bytes) == (0, 3, 9)
    (pinned,) = found.pinned()
    assert pinned.groups.largest == [(3, "$share/g/a")]


def test_what_came_back_to_a_group_counts() -> None:
    broker = Broker()
    broker.durable("stays", "$share/g/a").drop()
    member = broker.durable("goes", "$share/g/a")
    broker.publish("a", b"12")
    rotate(broker)
    assert taken(broker).online.messages == 1
    member.disconnect(session_expiry_interval=0)
    found = taken(broker)
    assert (found.online.messages, found.groups.messages, found.groups.size_bytes) == (0, 1, 3)
    assert found.oldest_ms == broker.now
    assert [pinned.groups.count for pinned in found.pinned()] == [1, 0]


def test_only_those_that_are_owed_most_are_named() -> None:
    broker = Broker()
    for number in range(census.TOP_MAX + 5):
        broker.durable(f"c{number:02}", *[f"t{each}" for each in range(number + 1)]).drop()
    for number in range(census.TOP_MAX + 5):
        broker.publish(f"t{number}", b"x" * 10)
    found = taken(broker)
    assert [each.client_id for each in found.top] == [f"c{n:02}" for n in range(24, 4, -1)]
    (pinned,) = found.pinned()
    assert (pinned.sessions.count, names(pinned)) == (25, ["c24", "c23", "c22"])


def test_a_generation_names_those_that_need_it() -> None:
    broker = Broker(max_inflight=1)
    busy = broker.durable("busy", "all")
    broker.publish("all", b"in flight")
    rotate(broker)
    broker.durable("boat", "all").drop()
    broker.publish("all")
    rotate(broker)
    first = busy.messages()
    found = taken(broker)
    assert [names(pinned) for pinned in found.pinned()] == [["busy"], ["busy", "boat"], []]
    assert [pinned.report.rows for pinned in found.pinned()] == [1, 1, 0]
    busy.acknowledge(*first)
    busy.receive_all()
    busy.drop()
    assert sweep(broker) == [2, 3]
    assert [names(pinned) for pinned in taken(broker).pinned()] == [["boat"], []]


def test_a_session_that_cannot_be_read_needs_every_generation() -> None:
    broker = Broker()
    broker.durable("boat", "a").drop()
    broker.durable("dock", "a").drop()
    broker.publish("a")
    broker.is_audited = False
    broker.store.write([(SESSIONS, b"boat", b"damaged")])
    found = taken(broker)
    assert (found.messages, found.unreadable, found.problems.count) == (1, 1, 1)
    assert all(pinned.is_needed for pinned in found.pinned())
    broker.store.write([(SUBSCRIPTIONS, subscription_key("dock", "a"), b"damaged")])
    found = taken(broker)
    assert (found.messages, found.unreadable) == (0, 2)
    assert next(iter(found.problems.lines())).startswith("session b'boat': ")


def storm(broker: Broker, chance: random.Random) -> None:
    """Let clients come and go, and publish across generations."""
    filters = ["a", "b", "a/#", "+", "#", "$share/g/a", "$share/h/+/b", "a/b"]
    for number in range(8):
        broker.durable(f"c{number}", *chance.sample(filters, 3)).drop()
    publisher = broker.connect("p")
    for _ in range(120):
        publisher.publish(chance.choice(["a", "b", "a/b", "c"]), b"x" * chance.randrange(9), 1)
        broker.advance(ms=chance.randrange(2000))
        move = chance.random()
        if move < 0.08:
            rotate(broker)
        elif move < 0.25:
            client = broker.connect(f"c{chance.randrange(8)}", expiry=3600)
            if chance.random() < 0.3:
                client.subscribe(chance.choice(filters), qos=1)
            if chance.random() < 0.5:
                client.receive_all()
            if chance.random() < 0.2:
                client.disconnect(session_expiry_interval=0)
            else:
                client.drop()


@pytest.mark.parametrize("seed", range(6))
def test_a_census_agrees_with_each_session_alone_and_with_the_sweep(seed: int) -> None:
    broker = Broker(max_inflight=2)
    storm(broker, random.Random(seed))
    kept = sweep(broker)
    known = Known()
    for again in (False, True):
        found = taken(broker, Known(dict(known.used)) if again else known)
        messages = size = 0
        oldest: list[int] = []
        for key, _ in broker.rows(SESSIONS):
            report = Inventory(broker.store).session(key.decode(), with_bytes=True)
            assert report is not None
            messages += len(report.session.in_flight) + report.backlog.waiting
            size += report.backlog.size_bytes or 0
            oldest += [report.backlog.oldest_ms] if report.backlog.oldest_ms else []
        assert messages > 20
        owed = found.offline.messages + found.online.messages
        sizes = found.offline.size_bytes + found.online.size_bytes
        assert (owed, sizes) == (messages, size)
        if not found.groups.messages:
            assert found.oldest_ms == min(oldest)
        assert found.oldest_ms <= min(oldest)
        closed = [pinned for pinned in found.pinned() if pinned.report.generation.is_closed]
        # Nobody needs one that the sweep drops, and somebody needs each that it keeps.
        assert [pinned.report.generation.number for pinned in closed] == kept[:-1]
        assert all(pinned.is_needed for pinned in closed)
    assert known.used


@pytest.mark.parametrize("seed", range(6))
def test_a_generation_that_nobody_needs_goes(seed: int) -> None:
    broker = Broker(max_inflight=2)
    storm(broker, random.Random(seed))
    needed = [
        pinned.report.generation.number
        for pinned in taken(broker).pinned()
        if pinned.is_needed or not pinned.report.generation.is_closed
    ]
    assert sweep(broker) == needed
    assert numbers_of(broker) == needed


def test_what_one_census_knew_is_not_counted_again() -> None:
    broker = Broker()
    broker.durable("boat", "a", "b/#").drop()
    for _ in range(3):
        broker.publish("a", b"12")
        broker.publish("b/c", b"1")
        rotate(broker)
    known = Known()
    first = taken(broker, known)
    assert len(known.used) == 6
    spoiled = {key: (count + 100, size, at) for key, (count, size, at) in known.used.items()}
    again = taken(broker, Known(spoiled))
    assert (first.messages, again.messages) == (6, 6 + 600)  # it believes what it is handed


def test_every_piece_of_work_may_be_interrupted() -> None:
    broker = Broker()
    for number in range(5):
        broker.durable(f"c{number}", f"t{number}").drop()
        broker.publish(f"t{number}")
    breaths = 0

    def breathe() -> None:
        nonlocal breaths
        breaths += 1

    census.take(broker.store, broker.now, breathe=breathe)
    assert breaths >= 10


def test_a_gap_needs_no_generation() -> None:
    broker = with_a_gap()
    broker.durable("crane", "u").drop()
    broker.publish("u", b"12")
    found = taken(broker)
    assert (found.offline.holders, found.offline.messages, found.offline.size_bytes) == (2, 5, 11)
    first, second, third = found.pinned()
    assert [names(each) for each in (first, second, third)] == [
        ["boat"], ["boat"], ["boat", "crane"],
    ]  # fmt: skip
    assert found.oldest_ms < broker.now
    crowded = broker_with_a_gap_that_is_still_there()
    assert [names(each) for each in taken(crowded).pinned()] == [["boat"], ["crane"], []]


def broker_with_a_gap_that_is_still_there() -> Broker:
    """Return one whose second generation is in the gap of `boat`, and `crane` needs it."""
    broker = Broker(on_limit="drop_new", max_offline_messages=1)
    broker.durable("boat", "t").drop()
    broker.durable("crane", "u").drop()
    closed(broker, b"0", b"1")
    broker.publish("u", b"needed")
    closed(broker, b"2")
    return broker

"""Is a store equal if and only if it has what it was told? Real stores: `test_server_verify`."""

from typing import Any

import pytest

from broker.backends.comparing.listing import CLIENT, INDEX, MESSAGE, RETAINED, Entry
from broker.backends.message_ids import UNSTORED, message_number, node_number, split_number
from broker.operations import backend_verify
from broker.operations.backend_verify import CannotCompare, Pass, Tally, Verification
from mqtt.message import Message
from storage.tables.feed_rows import FeedEvent
from tests.broker.backends.shelf import ALL, NODE, Shelf

MINUTE_MS = 60_000
# Retained messages are among the messages, and no rule on messages takes most of them.
WIDE = (
    ("message.publish", "t/#", "on_message_publish"),
    ("message.publish", "#", "on_message_retain"),
    ("message.publish", "#", "on_retain_delete"),
)


def compare(shelf: Shelf, ago_ms: int = 15 * MINUTE_MS, **told: Any) -> Pass:
    configuration = {**shelf.told, **told}
    return Verification(
        shelf.ask, shelf.listing, configuration, ago_ms=ago_ms, wait=shelf.wait
    ).run()


def named(found: Pass) -> list[tuple[str, str, str]]:
    return [(each.kind, each.what, each.place) for each in found.sorted()]


def loaded(count: int = 5, **options: Any) -> Shelf:
    shelf = Shelf(**options)
    client = shelf.broker.connect("c", expiry=1000)
    client.subscribe("s/#", qos=1)
    for number in range(count):
        client.publish(f"t/{number % 2}", b"%d" % number, 1)
    client.publish("r", b"kept", 0, retain=True)
    shelf.feed()
    return shelf


def test_a_store_that_has_everything_is_equal_also_with_pages_that_overlap() -> None:
    shelf = loaded(count=500)
    found = compare(shelf)
    assert not found.differences and found.in_motion == 0
    (minute,) = found.minutes.values()
    assert [(tally.broker, tally.store, tally.is_equal) for tally in minute.values()] == [
        (500, 500, True),
        (500, 500, True),
    ]
    assert {kind: tally.store for kind, tally in found.sets.items()} == {
        "retained": 1, "subscription": 1, "client": 1,
    }  # fmt: skip


def test_minutes_are_those_of_acceptance_and_only_those_asked_for() -> None:
    shelf = loaded(2)
    shelf.broker.advance(3 * MINUTE_MS)
    shelf.broker.publish("t/0")
    shelf.feed()
    assert [minute[MESSAGE].broker for _, minute in sorted(compare(shelf).minutes.items())] == [
        2,
        1,
    ]
    shelf.drop(shelf.of(MESSAGE, 1))
    found = compare(shelf, ago_ms=MINUTE_MS)
    assert not found.differences
    assert [minute[MESSAGE].store for minute in found.minutes.values()] == [1]


def test_halves_doubles_and_strangers_are_told_apart() -> None:
    shelf = loaded()
    shelf.drop(shelf.of(MESSAGE, 1))
    shelf.drop(shelf.of(INDEX, 1))
    shelf.drop(shelf.of(MESSAGE, 2))
    shelf.drop(shelf.of(INDEX, 3))
    doubled = shelf.of(INDEX, 4)
    shelf.put(Entry(INDEX, "list:other", number=doubled.number, digest=7))
    changed = shelf.of(MESSAGE, 5)
    shelf.put(Entry(MESSAGE, changed.place, number=changed.number, digest=7))
    stranger = message_number(shelf.broker.now, node_number(NODE), 1 << 40)
    shelf.put(Entry(MESSAGE, "msg:stranger", number=stranger))
    found = compare(shelf)
    assert named(found) == [
        ("message", "missing", ""),
        ("message", "in the list of its topic only", ""),
        ("message", "not in the list of its topic", ""),
        ("message", "doubled", "list:other"),
        ("message", "changed", "msg:5"),
        ("message", "foreign", "msg:stranger"),
    ]
    (minute,) = found.minutes.values()
    assert not minute[MESSAGE].is_equal and not minute[INDEX].is_equal


def test_an_id_of_ours_with_another_time_is_foreign_and_the_message_is_missing() -> None:
    shelf = loaded()
    entry = shelf.of(MESSAGE, 3)
    shelf.drop(entry)
    number = message_number(shelf.broker.now + 5, node_number(NODE), 3)
    shelf.put(Entry(MESSAGE, entry.place, number=number, digest=entry.digest))
    assert [what for _, what, _ in named(compare(shelf))] == [
        "in the list of its topic only",
        "foreign",
    ]


def test_what_comes_while_it_is_read_is_left_out() -> None:
    shelf = loaded()
    sent: list[int] = []

    def more() -> None:
        shelf.broker.publish("t/0", b"new")
        shelf.broker.connect(f"new{len(sent)}")
        sent.append(1)
        shelf.feed()

    shelf.meanwhile = more
    assert not compare(shelf).differences
    assert len(sent) >= 1
    shelf.broker.publish("t/0", b"waits")  # and the store has it before it has confirmed it
    shelf.feed()
    shelf.meanwhile = lambda: None
    assert not compare(shelf).differences


def test_rows_that_wait_are_not_missing_and_sets_are_not_judged() -> None:
    shelf = loaded()
    client = shelf.broker.connect("late")
    client.publish("t/0", b"waits", 1)
    shelf.broker.advance(1000)
    found = compare(shelf)
    assert not found.differences and found.sets == {}
    assert found.behind.startswith("rows wait: ")
    shelf.drop(shelf.of(MESSAGE, 1))
    assert [what for _, what, _ in named(compare(shelf))] == ["in the list of its topic only"]


def test_acknowledged_messages_of_a_queue_are_gone_or_named() -> None:
    shelf = loaded(0)
    client = shelf.broker.connect("w", expiry=100)
    client.subscribe("q/1", qos=1)
    sender = shelf.broker.connect("sender")
    for payload in (b"1", b"2", b"3"):
        sender.publish("q/1", payload, 1)
    shelf.feed()
    kept = shelf.of(MESSAGE, 2)
    client.receive_all()
    shelf.feed()
    found = compare(shelf)
    assert not found.differences and found.acknowledged == 3
    shelf.put(kept)
    assert named(compare(shelf)) == [("message", "acknowledged", "msg:2")]


def test_an_acknowledgement_on_its_way_is_neither() -> None:
    shelf = loaded(0)
    client = shelf.broker.connect("w", expiry=100)
    client.subscribe("q/1", qos=1)
    shelf.broker.publish("q/1", b"1")
    shelf.feed()
    client.receive_all()
    shelf.broker.advance(1000)
    assert not compare(shelf).differences
    shelf.drop(shelf.of(MESSAGE, 1))
    assert not compare(shelf).differences


def test_a_message_that_has_expired_may_be_gone_or_there() -> None:
    shelf = loaded(2, expires_s=60)
    shelf.drop(shelf.of(MESSAGE, 1))
    assert [what for _, what, _ in named(compare(shelf))] == ["in the list of its topic only"]
    shelf.broker.advance(2 * MINUTE_MS)
    shelf.remove(RETAINED, b"r")
    found = compare(shelf)
    assert not found.differences
    (minute,) = found.minutes.values()
    assert [(tally.broker, tally.store) for tally in minute.values()] == [(1, 1), (2, 2)]


def test_what_is_in_a_dead_letter_is_left_out() -> None:
    shelf = Shelf()
    shelf.refuses = lambda row: isinstance(row, Message) and row.payload == b"poison"
    client = shelf.broker.connect("c")
    for payload in (b"1", b"poison", b"3"):
        client.publish("t", payload, 1)
    shelf.feed()
    found = compare(shelf)
    assert not found.differences and found.dead_letters == 1
    (minute,) = found.minutes.values()
    assert minute[MESSAGE].store == minute[MESSAGE].broker == 2


def test_older_messages_than_the_broker_keeps_are_not_judged() -> None:
    shelf = loaded(5, keep_ms=1000)
    for _ in range(4):
        shelf.broker.advance(MINUTE_MS)
        shelf.broker.publish("t/0", b"x")
        shelf.feed()
    oldest = shelf.of(MESSAGE, 1)
    shelf.drop(oldest)
    found = compare(shelf)
    assert not found.differences
    assert found.since_ms > (oldest.number >> 64) // 1000
    stranger = message_number(shelf.broker.now, node_number(NODE), 1)
    shelf.put(Entry(MESSAGE, "msg:stranger", number=stranger))
    assert named(compare(shelf)) == [("message", "foreign", "msg:stranger")]


def test_what_was_given_up_is_not_judged() -> None:
    """Too much waited for the store: what it never gets is a gap, and not missing."""
    shelf = loaded(3, backlog_bytes_max=8000)
    client = shelf.broker.connect("d")
    for _ in range(40):
        client.publish("t/0", b"x" * 500, 1)
    shelf.broker.advance(1000)
    given_up = shelf.broker.engine.feeds.backends["fleet"].record.given_up[0]
    assert given_up > 3
    shelf.feed()
    found = compare(shelf)
    assert not [each for each in found.differences.values() if each.kind == MESSAGE]
    (minute,) = found.minutes.values()
    assert minute[MESSAGE].broker == minute[MESSAGE].store == 43 - given_up


def test_sets_are_compared_by_name_and_content() -> None:
    shelf = loaded()
    shelf.remove("subscription", b"c", b"s/#")
    shelf.name(CLIENT, 7, b"ghost")
    shelf.name(RETAINED, 7, b"r")
    assert named(compare(shelf)) == [
        ("client", "foreign", "at ghost"),
        ("retained", "changed", "at r"),
        ("subscription", "missing", ""),
    ]


def test_what_no_rule_removes_is_counted_only() -> None:
    shelf = loaded(rules=(("client.connected", None, "on_client_connected"),))
    shelf.name(CLIENT, 7, b"ghost")
    found = compare(shelf)
    assert not found.differences and found.extra == 1 and not found.minutes


def test_a_difference_that_one_pass_only_sees_is_not_named() -> None:
    shelf = loaded()
    entry = shelf.of(MESSAGE, 3)
    shelf.drop(entry)
    passes: list[int] = []

    def back() -> None:
        passes.append(1)
        if len(passes) == 1:
            shelf.put(entry)

    shelf.meanwhile = back
    found = compare(shelf)
    assert not found.differences and len(passes) == 2


def test_one_that_changes_all_the_time_is_counted() -> None:
    shelf = loaded()
    entries = [shelf.of(MESSAGE, number) for number in (1, 2, 3)]
    shelf.drop(entries[0])
    passes: list[int] = []

    def another() -> None:
        shelf.put(entries[len(passes)])
        passes.append(1)
        if len(passes) < 3:
            shelf.drop(entries[len(passes)])

    shelf.meanwhile = another
    found = compare(shelf)
    assert not found.differences and found.in_motion == 1 and len(passes) == 3


def test_another_configuration_is_not_compared() -> None:
    shelf = loaded()
    for key, value in (("node", "other"), ("rules", shelf.told["rules"][:6])):
        with pytest.raises(CannotCompare, match=f"another {key} than the running broker"):
            compare(shelf, **{key: value})
    with pytest.raises(CannotCompare, match="no rule with an action"):
        compare(shelf, rules=[{"number": 1, "on": "message.publish", "commands": ["INCR x"]}])


def test_too_many_entries_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend_verify, "ENTRIES_MAX", 4)
    with pytest.raises(CannotCompare, match="a smaller --since"):
        compare(loaded(5))


def test_what_a_message_is_about_is_told() -> None:
    shelf = loaded(2)
    shelf.drop(shelf.of(MESSAGE, 2))
    shelf.name(CLIENT, 7, b"ghost")
    verification = Verification(
        shelf.ask, shelf.listing, shelf.told, ago_ms=MINUTE_MS, wait=shelf.wait
    )
    found = verification.run()
    assert [verification.describe(each) for each in found.sorted()] == ["t/1 from c", ""]


def test_a_checksum_does_not_depend_on_an_order() -> None:
    tally = Tally()
    for digest in (1, 2, (1 << 64) - 1):
        tally.told(digest)
    for digest in ((1 << 64) - 1, 2, 1):
        tally.found(digest)
    assert tally.is_equal and tally.broker_sum == 2
    tally.found(0)
    assert not tally.is_equal


def wide(rules: tuple[tuple[str, str, str], ...] = WIDE, **options: Any) -> Shelf:
    """Return a store of such a kind with 3 messages, and 4 that were retained, 2 of them still."""
    shelf = Shelf(rules, type="cassandra", **options)
    client = shelf.broker.connect("c", expiry=1000)
    client.subscribe("logged/#", qos=1)
    for number in range(3):
        client.publish("t/0", b"%d" % number, 1)
    for topic, qos in (("r", 0), ("logged/1", 1), ("logged/1", 1), ("gone", 0)):
        client.publish(topic, b"kept", qos, retain=True)
    client.publish("gone", b"", 0, retain=True)
    shelf.feed()
    return shelf


STORES = (*ALL, ("message.publish", "z/#", "on_message_store"))


def with_qos_0(count: int = 5, **options: Any) -> Shelf:
    """Return a shelf with messages with QoS 0 and 1, in turn."""
    shelf = Shelf(STORES, **options)
    client = shelf.broker.connect("c", expiry=1000)
    for number in range(count):
        client.publish("z/1", b"%d" % number, 0)
        client.publish("z/1", b"%d" % number, 1)
        client.publish("other", b"%d" % number, 0)
    shelf.feed()
    return shelf


def unstored(shelf: Shelf) -> list[Entry]:
    """Return the messages that are not in the log."""
    found = [each for each in shelf.entries.values() if each.number]
    return [each for each in found if split_number(each.number)[2] & UNSTORED]


def test_a_retained_message_among_the_messages_is_expected_there() -> None:
    shelf = wide()
    found = compare(shelf)
    assert not found.differences
    (minute,) = found.minutes.values()
    assert {kind: (tally.broker, tally.store) for kind, tally in minute.items()} == {
        MESSAGE: (7, 7)
    }
    assert found.sets[RETAINED].store == 2
    first, second = unstored(shelf)
    shelf.drop(first)
    shelf.put(Entry(MESSAGE, second.place, number=second.number, digest=7))
    shelf.drop(shelf.of(MESSAGE, 4))
    assert sorted(what for _, what, _ in named(compare(shelf))) == ["changed", "missing", "missing"]


def test_a_rule_for_retained_messages_alone_is_enough_to_compare_messages() -> None:
    shelf = wide(rules=WIDE[1:])
    found = compare(shelf)
    assert not found.differences
    (minute,) = found.minutes.values()
    assert [(tally.broker, tally.store) for tally in minute.values()] == [(4, 4)]
    end = shelf.broker.engine.feeds.end()[1]
    for seq in (end - 1, end + 1):  # which is no retained message, and which is not there
        number = message_number(shelf.broker.now, node_number(NODE), UNSTORED | seq)
        shelf.put(Entry(MESSAGE, f"msg:{seq - end}", number=number))
    assert named(compare(shelf)) == [
        ("message", "foreign", "msg:-1"),
        ("message", "foreign", "msg:1"),
    ]


def test_a_retained_message_whose_event_is_gone_is_not_judged() -> None:
    shelf = wide(keep_ms=1000)
    for _ in range(4):
        shelf.broker.advance(MINUTE_MS)
        shelf.broker.publish("t/0", b"x")
        shelf.feed()
    shelf.drop(unstored(shelf)[0])
    found = compare(shelf)
    assert not found.differences
    assert shelf.broker.engine.kept.first("fleet", 0)[1] > 0


def test_retained_messages_that_come_while_it_is_read_are_left_out() -> None:
    shelf = wide()
    sent: list[int] = []

    def more() -> None:
        sent.append(1)
        client = shelf.broker.connect(f"new{len(sent)}")
        for qos in (0, 1):
            client.publish(f"logged/{qos}", b"new", qos, retain=True)
        shelf.feed()

    shelf.meanwhile = more
    assert not compare(shelf).differences and sent


def test_a_retained_message_in_a_dead_letter_is_not_missing_among_the_messages() -> None:
    shelf = wide()
    shelf.refuses = lambda row: not isinstance(row, Message) and row.text == "poison"
    shelf.broker.connect("d").publish("poison", b"x", 0, retain=True)
    shelf.feed()
    found = compare(shelf)
    assert not found.differences and found.dead_letters == 2


def test_a_retained_message_that_has_expired_may_be_gone_or_there() -> None:
    shelf = wide(expires_s=60)
    shelf.broker.advance(2 * MINUTE_MS)
    shelf.drop(unstored(shelf)[0])
    shelf.remove(RETAINED, b"r")
    found = compare(shelf)
    assert not found.differences and found.sets[RETAINED].store == 0


def unlogged(shelf: Shelf, kind: str = MESSAGE) -> list[Entry]:
    """Return the entries of messages that are not in the log."""
    found = [each for each in shelf.entries.values() if each.kind == kind]
    return [each for each in found if split_number(each.number)[2] & UNSTORED]


def test_messages_with_qos_0_are_compared_also_when_they_are_many() -> None:
    shelf = with_qos_0(600)
    found = compare(shelf)
    assert not found.differences
    assert sum(minute[MESSAGE].broker for minute in found.minutes.values()) == 1200
    assert sum(minute[MESSAGE].store for minute in found.minutes.values()) == 1200
    first, second, third, *_ = unlogged(shelf)
    shelf.drop(first)
    shelf.put(Entry(MESSAGE, second.place, number=second.number, digest=7))
    index = next(each for each in unlogged(shelf, INDEX) if each.number == third.number)
    shelf.drop(index)
    us = split_number(first.number)[0]
    wrong = message_number(us // 1000, node_number(NODE), UNSTORED | 1)  # of another event
    later = message_number(us // 1000, node_number(NODE), UNSTORED | 1 << 40)
    shelf.put(Entry(MESSAGE, "msg:wrong", number=wrong))
    shelf.put(Entry(MESSAGE, "msg:later", number=later))
    assert {(what, place) for _, what, place in named(compare(shelf))} == {
        ("in the list of its topic only", ""),
        ("changed", second.place),
        ("not in the list of its topic", ""),
        ("foreign", "msg:wrong"),
        ("foreign", "msg:later"),
    }


def test_a_message_with_qos_0_that_waits_or_is_in_a_dead_letter_is_not_missing() -> None:
    shelf = Shelf(STORES)
    shelf.refuses = lambda row: isinstance(row, FeedEvent) and b"poison" in row.body
    client = shelf.broker.connect("c")
    for payload in (b"1", b"poison", b"3"):
        client.publish("z/1", payload, 0)
    client.publish("z/1", b"logged", 1)
    shelf.feed()
    assert len(unlogged(shelf)) == 2
    client.publish("z/1", b"waits", 0)
    shelf.broker.advance(1000)
    found = compare(shelf)
    assert not found.differences and found.dead_letters == 1


def test_older_messages_with_qos_0_than_the_broker_keeps_are_not_judged() -> None:
    shelf = with_qos_0(5, keep_ms=1000)
    for _ in range(4):
        shelf.broker.advance(MINUTE_MS)
        shelf.broker.publish("z/1", b"x", 0)
        shelf.feed()
    shelf.drop(unlogged(shelf)[0])
    assert not compare(shelf).differences

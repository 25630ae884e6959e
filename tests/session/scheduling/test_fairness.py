"""A tick does no more than its budget and one message, whatever clients choose to send."""

from collections.abc import Callable
from itertools import product

import pytest

from mqtt.encoder import encode
from mqtt.packets import (
    Auth,
    Connect,
    Disconnect,
    Packet,
    Pingreq,
    Pingresp,
    Puback,
    Publish,
    Pubrel,
    Subscribe,
    Subscription,
    Unsubscribe,
    Will,
)
from session.delivery import retained_replay
from session.delivery.backlog import READ_WORK_MAX, SEARCH_WORK
from session.engine import ACKS_SHIFT
from session.live.tick import FILTER_WORK, STEPS_SHIFT, UNIT_SHIFT
from session.packets.publish import RUN_WORK
from session.packets.subscribe import FILTERS_SLICE
from session.scheduling.work_budget import CEILING, SLICE_BYTES, SPARED_MAX
from tests.session.harness import Broker, Client

LEVELS = 6
WIDE = "/".join("abcdef")
# All filters of six levels that match the topic: 64 index rows for each message.
FILTERS = ["/".join(levels) for levels in product(*(("+", level) for level in WIDE.split("/")))]
ROWS = len(FILTERS)
BUDGET = 1000
# By what a tick may exceed its budget: one message, or a run of cheap ones.
MORE = max(ROWS + 1, RUN_WORK)
SEARCHES_TICK = READ_WORK_MAX // SEARCH_WORK  # in the index, of all readers
SLICE = SLICE_BYTES >> UNIT_SHIFT  # work of the bytes that are decoded at once


def receive(client: Client, *packets: Packet) -> None:
    """Hand packets to the engine in one read, without a tick."""
    receive_bytes(client, b"".join(encode(packet, client.version) for packet in packets))


def receive_bytes(client: Client, data: bytes) -> None:
    client.broker.engine.receive(client.connection, data, client.broker.now)


def work(broker: Broker) -> int:
    """Return the work of this tick so far."""
    return broker.engine._tick.work


def work_of_each_tick(broker: Broker) -> list[int]:
    """Let the broker do all that waits; return the work of each tick."""
    found: list[int] = []
    while broker.engine.end_tick(broker.now):
        found.append(work(broker))
        broker.store.sync()
        broker.engine.committed(broker.engine.written, broker.now)
        assert len(found) < 10_000
    broker.settle()
    return found


def wide_broker(sessions: int = 2, **settings: object) -> Broker:
    """Return a broker with offline sessions that share out the filters of the wide topic."""
    broker = Broker(tick_work_max=BUDGET, **settings)
    for number in range(sessions):
        client = broker.durable(f"r{number}", *FILTERS[number::sessions])
        client.drop()
    return broker


def wide(count: int, qos: int = 1, topics: tuple[str, ...] = (WIDE,)) -> list[Packet]:
    """Return messages for the topics in turn."""
    return [
        Publish(topics[number % len(topics)], b"%d" % number, qos, packet_id=number + 1)
        for number in range(count)
    ]


@pytest.mark.parametrize("other", [WIDE, "a/b/c/d/e/x"], ids=["one run", "one by one"])
def test_index_rows_are_work_and_end_the_tick(other: str) -> None:
    broker = wide_broker()
    publisher = broker.connect("p")
    broker.engine.end_tick(broker.now)
    receive(publisher, *wide(400, topics=(WIDE, other)))
    assert work(broker) <= BUDGET + MORE * (1 + SPARED_MAX)
    ticks = work_of_each_tick(broker)
    assert len(ticks) > 400 * ROWS // 2 // (BUDGET + MORE)
    assert max(ticks) <= BUDGET + MORE
    assert len(publisher.take()) == 400


def test_a_message_is_as_much_work_as_it_has_rows_and_receivers() -> None:
    broker = wide_broker()
    publisher = broker.connect("p")
    broker.clean("online", "t")
    costs = []
    for topic in ("nobody", "t", WIDE):
        broker.publish(topic)  # so that its route is known
        before = work(broker)
        receive(publisher, Publish(topic, b"x", 0))
        costs.append(work(broker) - before)
        broker.settle()
    assert costs == [1, 2, 1 + ROWS]


def test_it_is_work_to_check_a_route_again_whether_it_has_changed_or_not() -> None:
    broker = wide_broker()
    publisher, other = broker.connect("p"), broker.connect("o")
    broker.publish(WIDE)
    for topic_filter in ("else/where", WIDE):
        other.subscribe(topic_filter)
        before = work(broker)
        receive(publisher, Publish(WIDE, b"x", 0))
        assert work(broker) - before >= 1 + ROWS + (ROWS >> STEPS_SHIFT)
        broker.settle()


def test_a_tick_holds_the_rows_of_one_budget() -> None:
    """1,000 messages with 8,192 rows each took 1.6 GB."""
    broker = wide_broker()
    publisher = broker.connect("p")
    broker.engine.end_tick(broker.now)
    receive(publisher, *wide(100))
    log = broker.engine._log
    while True:
        slab = log._generations.newest.slab
        runs = zip(slab._ids, slab._lists, strict=True)  # type: ignore[attr-defined]
        rows = sum(len(ids) * len(payloads or [b""]) for ids, payloads in runs)
        assert rows <= BUDGET + MORE * (1 + SPARED_MAX)
        if not broker.engine.end_tick(broker.now):
            break
    broker.settle()


def test_a_divided_run_is_stored_once_in_order_and_before_its_answers() -> None:
    broker = wide_broker()
    publisher = broker.connect("p")
    broker.engine.end_tick(broker.now)
    receive(publisher, *wide(64))
    assert broker.engine._turns.waiting
    answered = 0
    while broker.engine.end_tick(broker.now):
        broker.store.sync()
        durable = broker.engine._log.end if not broker.engine._log.is_pending else 0
        broker.engine.committed(broker.engine.written, broker.now)
        broker.engine._gate.flush()
        answered = len(publisher.collect())
        assert not durable or answered <= durable
    broker.settle()
    assert publisher.take() == [Puback(number + 1) for number in range(64)] and answered
    for number in range(2):
        reader = broker.connect(f"r{number}", clean_start=False, expiry=100)
        assert reader.receive_all() == [b"%d" % sent for sent in range(64)]


def test_messages_that_were_answered_survive_a_crash_in_the_middle_of_a_wide_run() -> None:
    broker = wide_broker()
    publisher = broker.connect("p")
    broker.engine.end_tick(broker.now)
    receive(publisher, *wide(64))
    for _ in range(2):
        broker.engine.end_tick(broker.now)
        broker.store.sync()
        broker.engine.committed(broker.engine.written, broker.now)
    broker.engine._gate.flush()
    answered = [packet.packet_id for packet in publisher.take() if isinstance(packet, Puback)]
    assert 0 < len(answered) < 64
    broker.crash()
    broker.start()
    for number in range(2):
        reader = broker.connect(f"r{number}", clean_start=False, expiry=100)
        assert [b"%d" % (sent - 1) for sent in answered] == reader.receive_all()[: len(answered)]


def test_who_sends_little_is_served_before_the_next_wide_message() -> None:
    broker = wide_broker()
    attackers = [broker.connect(f"p{number}") for number in range(10)]
    bystander = broker.clean("b", "b")
    broker.engine.end_tick(broker.now)
    for attacker in attackers:
        receive(attacker, *wide(200))
    for _ in range(10):
        broker.engine.end_tick(broker.now)
    receive(bystander, Publish("b", b"hello"), Pingreq())
    broker.engine.end_tick(broker.now)
    broker.engine.end_tick(broker.now)
    assert [type(packet) for packet in bystander.take()] == [Publish, Pingresp]
    assert len(broker.engine._turns.waiting) == 10
    broker.settle()


def test_a_ping_is_answered_in_the_same_tick_whatever_the_others_do() -> None:
    broker = wide_broker()
    attacker, bystander = broker.connect("p"), broker.connect("b")
    broker.engine.end_tick(broker.now)
    broker.engine._tick.work = CEILING * BUDGET + 1
    receive(attacker, *wide(20))
    assert not broker.engine._log.is_pending
    receive(bystander, Pingreq())
    broker.engine.end_tick(broker.now)
    bystander.expect(Pingresp())
    broker.settle()


SMALL: list[tuple[str, Callable[[int], Packet], int]] = [
    ("pings", lambda _: Pingreq(), 1),
    ("unknown acks", lambda number: Puback(number % 60_000 + 1, 0x10), 1),
    ("unknown releases", lambda number: Pubrel(number % 60_000 + 1), 1),
    ("unsubscriptions", lambda number: Unsubscribe(1, [f"{number}"]), FILTER_WORK),
    ("unsubscriptions", lambda number: Unsubscribe(1, ["a"] * 9), 9 * FILTER_WORK),
    ("refused filters", lambda _: Subscribe(1, [Subscription("a/#/b", 0)]), FILTER_WORK),
]


@pytest.mark.parametrize(("packet", "weight"), [row[1:] for row in SMALL], ids=range(len(SMALL)))
def test_small_packets_are_counted_and_not_only_their_bytes(
    packet: Callable[[int], Packet], weight: int
) -> None:
    """500,000 PINGREQs were handled in one tick: two bytes are a sixty-fourth of a unit."""
    broker = Broker(tick_work_max=BUDGET)
    flooders = [broker.connect(f"f{number}") for number in range(20)]
    bystander = broker.connect("b")
    broker.engine.end_tick(broker.now)
    count = 4000
    for flooder in flooders:
        receive(flooder, *(packet(number) for number in range(count)))
    sizes = 20 * count * 64 >> 7
    assert work(broker) <= BUDGET + sizes + (weight + 1) * (1 + 20 * SPARED_MAX)
    receive(bystander, Pingreq())
    broker.engine.end_tick(broker.now)
    bystander.expect(Pingresp())
    assert work(broker) <= BUDGET + SLICE + weight + 1
    ticks = work_of_each_tick(broker)
    assert max(ticks) <= BUDGET + SLICE + weight + 1
    assert all(not flooder.is_closed for flooder in flooders)


def test_a_run_of_acknowledgements_counts() -> None:
    broker = Broker(tick_work_max=BUDGET)
    flooder = broker.connect("f")
    broker.engine.end_tick(broker.now)
    receive(flooder, *(Puback(number + 1) for number in range(10_000)))
    ticks = work_of_each_tick(broker)
    assert len(ticks) > (10_000 >> ACKS_SHIFT) // (BUDGET + 64) // 2
    assert max(ticks) <= BUDGET + 1 + (64 >> ACKS_SHIFT)


def test_what_is_not_handled_yet_stays_as_bytes() -> None:
    """A PINGREQ has two bytes, and takes dozens once it is decoded."""
    broker = Broker(tick_work_max=BUDGET)
    flooder, second = broker.connect("f"), broker.connect("s")
    broker.engine.end_tick(broker.now)
    for client in (flooder, second):
        receive_bytes(client, b"\xc0\x00" * 125_000)
    waiting = broker.engine._turns.waiting
    assert len(waiting[flooder.connection]) <= SLICE_BYTES // 2
    assert len(waiting[second.connection]) < 200
    assert flooder.connection.decoder.pending_size > 200_000
    broker.settle()
    assert flooder.take() == second.take() == [Pingresp()] * 125_000
    assert flooder.connection.decoder.pending_size == 0


def test_a_connection_lost_with_much_unhandled_is_worked_off_in_slices() -> None:
    broker = wide_broker()
    publisher = broker.connect("p", will=Will("w", b"gone", 0, False))
    reader = broker.clean("w", "w")
    broker.engine.end_tick(broker.now)
    receive(publisher, *wide(60), Disconnect())
    publisher.lose()
    assert work(broker) <= BUDGET + MORE * (1 + SPARED_MAX)
    assert max(work_of_each_tick(broker)) <= BUDGET + MORE + 64
    assert broker.engine._log.end == 60
    assert not broker.engine._lost and not broker.engine._turns.waiting
    assert reader.messages() == []  # its DISCONNECT was the last packet


@pytest.mark.parametrize("delay", [0, 5])
def test_wills_that_match_very_much_fire_in_slices(delay: int) -> None:
    broker = wide_broker()
    for number in range(50):
        will = Will(WIDE, b"%d" % number, 1, False, delay_interval=delay)
        client = broker.connect(f"w{number}", keep_alive=10, expiry=100, will=will)
        if delay:
            client.drop()
    broker.settle()
    broker.now += 6_000 if delay else 20_000
    slices = 0
    while broker.engine._log.end < 50:
        broker.engine.end_tick(broker.now)
        broker.engine._tick.work = 0
        broker.engine.handle_timeout(broker.now)
        assert work(broker) <= BUDGET + ROWS + 64
        slices += 1
    assert slices > 50 * ROWS // (BUDGET + ROWS + 64)
    broker.settle()
    assert broker.counters.wills["fired"] == 50


def test_connections_sent_away_fire_their_wills_in_slices() -> None:
    broker = wide_broker()
    for number in range(50):
        broker.connect(f"w{number}", will=Will(WIDE, b"%d" % number, 1, False))
    broker.engine.end_tick(broker.now)
    broker.engine.drain(broker.now)
    assert work(broker) <= BUDGET + ROWS + 64
    assert max(work_of_each_tick(broker)) <= 2 * (BUDGET + ROWS + 64)
    assert broker.engine._log.end == 50


def test_a_session_with_many_subscriptions_counts_when_it_comes_and_goes() -> None:
    broker = Broker(tick_work_max=BUDGET)
    for number in range(10):
        broker.durable(f"r{number}", *FILTERS).drop()
    clients = [broker.open() for _ in range(10)]
    broker.engine.end_tick(broker.now)
    for number, client in enumerate(clients):
        receive(client, Connect(f"r{number}", clean_start=True))
    assert len(broker.engine._sessions.live) <= BUDGET // (4 * ROWS) + 1
    broker.settle()
    assert len(broker.engine._sessions.live) == 10


def test_a_subscription_of_many_filters_is_added_in_slices() -> None:
    broker = Broker()
    client = broker.connect("c")
    broker.engine.end_tick(broker.now)
    receive(client, Subscribe(1, [Subscription(f"f/{number}", 0) for number in range(1000)]))
    for _ in range(3):
        assert work(broker) <= FILTER_WORK * FILTERS_SLICE + 200
        client.expect_nothing()
        broker.engine.end_tick(broker.now)
    broker.settle()
    assert len(client.take()) == 1


def test_nodes_of_the_filters_that_are_looked_at_for_a_topic_count() -> None:
    """Filters that agree with a topic in all levels but the last cost it, and match nothing."""
    broker = Broker(tick_work_max=10_000)
    topic = "/".join("a" * 10)
    filters = ["/".join(levels) for levels in product("+a", repeat=9)]
    broker.durable("r", *(f"{each}/{end}" for each in filters for end in "xy")).drop()
    publisher = broker.connect("p")
    broker.engine.end_tick(broker.now)
    receive(publisher, Publish(topic, b"", 0))
    assert work(broker) > 2**9 >> 3
    broker.settle()


def test_identifiers_of_many_subscriptions_are_put_together_in_one_pass() -> None:
    broker = Broker()
    reader = broker.connect("r")
    for number, topic_filter in enumerate(FILTERS):
        reader.subscribe(topic_filter, identifier=number + 1)
    broker.publish(WIDE, qos=0)
    (message,) = reader.messages()
    assert sorted(message.subscription_identifiers) == list(range(1, ROWS + 1))


def test_topics_that_were_replaced_are_remembered_within_one_limit_per_session(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(retained_replay, "OVERTAKEN_MAX", 100)
    broker = Broker()
    broker.publish("a/0", b"x", retain=True)
    reader = broker.connect("r", receive_maximum=1)
    broker.publish("a/1", b"x", retain=True)
    filters = ["a/+", "+/+", "#", "a/#", "+/#"]
    reader.subscribe(*filters, qos=1)
    session = reader.connection.session
    assert session is not None and len(session.replays) > 1
    for number in range(300):
        broker.publish(f"a/{number}", b"y", qos=0, retain=True)
    kept = [len(replay.overtaken) for replay in session.replays.values()]
    assert 0 < sum(kept) <= 100


def test_steps_of_an_authentication_count() -> None:
    broker = Broker(tick_work_max=BUDGET)
    client = broker.connect("c")
    broker.engine.end_tick(broker.now)
    receive(client, Auth(0x19, authentication_method="x"))
    assert work(broker) >= 16
    broker.settle()


def test_bytes_count_when_they_are_decoded() -> None:
    """A read of 250 KB waits as bytes; its packets with many user properties are work later."""
    broker = Broker(tick_work_max=BUDGET)
    client = broker.connect("c")
    broker.engine.end_tick(broker.now)
    packet = encode(Publish("t", b"", properties=b"\x26\0\0\0\0" * 1000), 5)
    weight = 1 + (5000 >> 4) + (len(packet) >> 7)
    receive_bytes(client, packet * 50)
    assert work(broker) <= BUDGET + SLICE + weight * (1 + SPARED_MAX)
    ticks = work_of_each_tick(broker)
    assert max(ticks) <= BUDGET + SLICE + 2 * weight
    assert sum(ticks) > 40 * weight


@pytest.mark.parametrize("kind", [Puback, Pubrel, Subscribe, Unsubscribe])
def test_user_properties_count_in_every_packet(kind: type) -> None:
    broker = Broker(tick_work_max=100_000)
    client = broker.connect("c")
    pairs = (("", ""),) * 1000
    packet: Packet = {
        Puback: Puback(1, 0x10, user_properties=pairs),
        Pubrel: Pubrel(1, user_properties=pairs),
        Subscribe: Subscribe(1, [Subscription("a", 0)], user_properties=pairs),
        Unsubscribe: Unsubscribe(1, ["a"], pairs),
    }[kind]
    broker.engine.end_tick(broker.now)
    receive(client, packet)
    assert work(broker) >= 1000 >> 2
    broker.settle()


@pytest.mark.parametrize(
    "limits",
    [
        {},
        {"on_limit": "drop_oldest", "max_offline_messages": 15},
        {"on_limit": "drop_new", "max_offline_bytes": 15 * (len(WIDE) + 4)},
    ],
    ids=["no limit", "messages", "bytes"],
)
def test_a_backlog_in_many_streams_is_searched_in_slices(limits: dict[str, object]) -> None:
    """8,192 filters that all match stopped the loop for 13 s."""
    topics = [f"{WIDE}/{number}" for number in range(10, 30)]
    filters = [f"{one}/+" for one in FILTERS] + [f"idle/{n}" for n in range(900)]
    broker = Broker(**limits)
    broker.durable("r", *filters).drop()
    publisher = broker.connect("p")
    for number, topic in enumerate(topics):
        publisher.send(Publish(topic, b"%d" % (number % 10), 1, packet_id=number + 1))
    broker.is_audited = False
    most = ticks = 0
    with broker.one_tick():
        reader = broker.request("r", expiry=100)
        is_over = False
        while not is_over:
            calls = broker.store.io_calls
            is_over = not broker.engine.end_tick(broker.now)
            most = max(most, broker.store.io_calls - calls)
            broker.store.sync()
            broker.engine.committed(broker.engine.written, broker.now)
            ticks += 1
    assert most < 500 and ticks >= len(filters) // SEARCHES_TICK
    kept = range(5, 20) if limits.get("on_limit") == "drop_oldest" else range(15 if limits else 20)
    assert reader.receive_all() == [b"%d" % (number % 10) for number in kept]

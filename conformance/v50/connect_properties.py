"""MQTT 5.0, sections 3.1.2.10 and 3.1.2.11: keep alive, and what the properties of CONNECT ask."""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from conformance import tables, wire
from conformance.check import Bench, statement
from conformance.client import Client
from conformance.deliveries import (
    announced,
    answers,
    expect_only,
    own_broker,
    require,
    subscribed,
)
from conformance.failure import Failure, NotRun
from conformance.packets import (
    Auth,
    Connack,
    Packet,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Suback,
    Unsuback,
)
from conformance.scenes import answer_or_end, answer_within, connect_with_small_packets
from conformance.scram import METHOD, ScramClient

KEEP_ALIVE_TIMEOUT = 0x8D
# A client that is silent is closed after 1.5 times the keep alive. The text gives no precision:
# mosquitto looks every five seconds, and that is accepted; what is later than `SHARP_S` is noted.
EARLY_S: Final = 0.2
LATE_S: Final = 6.0
SHARP_S: Final = 1.5
LIMIT = 100  # Maximum Packet Size of small clients, bytes


def expect_silence_to_end(bench: Bench, client: Client, since: float, keep_alive: float) -> None:
    """The broker closes 1.5 times `keep_alive` seconds after `since`, the client's last packet."""
    due = 1.5 * keep_alive
    client.expect_close(
        KEEP_ALIVE_TIMEOUT, timeout=max(0.1, since + due + LATE_S - time.monotonic())
    )
    after = time.monotonic() - since
    if after < due - EARLY_S:
        client.fail(f"closed after {after:.1f} s", expected=f"not before {due:.1f} s")
    if after > due + SHARP_S:
        bench.note(f"silence was noticed {after - due:.0f} s late")


@contextlib.contextmanager
def _kept_awake(bench: Bench, acts: Sequence[Callable[[], object]], every: float) -> Iterator[None]:
    """Do `acts` every so many seconds in the background; a failure of theirs comes at the end."""
    over = threading.Event()
    failures: list[Failure] = []

    def run() -> None:
        try:
            while not over.wait(every):
                for act in acts:
                    act()
        except Failure as failure:
            failures.append(failure)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
    for failure in failures:
        raise failure


@statement("MQTT-3.1.2-22", seconds=6)
def mqtt_3_1_2_22(bench: Bench) -> None:
    """[MQTT-3.1.2-22] Silence for more than 1.5 times the keep alive ends the connection."""
    will_topic, topic = bench.topic("will"), bench.topic("t")
    watcher = subscribed(bench, "watcher", will_topic)
    sender = bench.client("sender")
    pings = bench.client("pings", keep_alive=2)
    publishes = bench.client("publishes", keep_alive=2)
    without = bench.client("without", keep_alive=0)
    listens = bench.client("listens", keep_alive=2)
    if announced(pings).properties.number(tables.SERVER_KEEP_ALIVE) is not None:
        bench.not_run("the broker sets a keep alive of its own")
    listens.subscribe(topic)
    heard = time.monotonic()
    silent = bench.client("silent", keep_alive=2, will=wire.Will(will_topic, b"silent"))
    began = time.monotonic()
    # Two clients that send something every two seconds, and one that only receives.
    acts = (
        pings.ping,
        lambda: publishes.publish(bench.topic("else"), b"x", qos=1),
        lambda: sender.publish(topic, b"x"),
    )
    with _kept_awake(bench, acts, every=1.9):
        with bench.case("keep alive 2 and silence"):
            expect_silence_to_end(bench, silent, began, 2)
            watcher.expect_publish(topic=will_topic, payload=b"silent")
        with bench.case("keep alive 2, a subscriber that only receives"):
            listens.expect_publish(topic=topic)
            _expect_end_after_deliveries(bench, listens, heard)
        time.sleep(max(0.0, began + 6.0 - time.monotonic()))
    for kept in (pings, publishes):
        with bench.case(f"keep alive 2, a client that {kept.name} every 2 seconds"):
            kept.ping()
    with bench.case("keep alive 0"):
        without.ping()


def _expect_end_after_deliveries(bench: Bench, client: Client, since: float) -> None:
    """The broker ends the connection in time, whatever it delivers until then."""
    end = since + 3.0 + LATE_S
    while (left := end - time.monotonic()) > 0:
        packet = client.peek(left)
        if not isinstance(packet, Publish):
            break
        client.receive()
    expect_silence_to_end(bench, client, since, 2)


def _filled(limit: int, topic: str, *, qos: int) -> bytes:
    """Return the payload with which a delivery on `topic` takes `limit` bytes, all told."""
    for size in range(limit, -1, -1):
        packet_id = None if qos == 0 else 1
        data = wire.publish(topic, bytes(size), version=5, qos=qos, packet_id=packet_id)
        if len(data) <= limit:
            return b"x" * size
    raise ValueError(f"no PUBLISH on {topic!r} has {limit} bytes")


@statement("MQTT-3.1.2-24")
def mqtt_3_1_2_24(bench: Bench) -> None:
    """[MQTT-3.1.2-24] No packet to a client is larger than its Maximum Packet Size."""
    # That no larger one comes is seen by the rules every connection is held to.
    topic = bench.topic("t")
    small, limit = connect_with_small_packets(bench, "small", LIMIT)
    large = subscribed(bench, "large", topic, qos=2)
    require(bench, large, qos=2)
    small.subscribe(topic, qos=2)
    sender = bench.client("sender")
    for qos in (0, 1, 2):
        exact = _filled(limit, topic, qos=qos)
        for what, payload, fits in (
            ("half the limit", exact[: len(exact) // 2], True),
            ("the limit", exact, True),
            ("the limit and a byte", exact + b"x", False),
            ("five times the limit", b"x" * (5 * limit), False),
        ):
            with bench.case(f"QoS {qos}, a packet of {what}"):
                sender.publish(topic, payload, qos=qos)
                large.expect_publish(topic=topic, payload=payload, qos=qos)
                expect_only(bench, sender, small, [payload] if fits else [])
    with bench.case("user properties count as well"):
        user: list[wire.Property] = [(tables.USER_PROPERTY, ("k", "v" * limit))]
        sender.publish(topic, b"x", qos=1, properties=user)
        expect_only(bench, sender, small, [])
    tiny: list[wire.Property] = [(tables.MAXIMUM_PACKET_SIZE, 4)]
    for what, block in (("nothing wrong", tiny), ("a fault", [*tiny, (tables.RECEIVE_MAXIMUM, 0)])):
        with bench.case(f"Maximum Packet Size 4, too small for a CONNACK, and {what}"):
            client = bench.client("tiny", connect=False)
            client.send(wire.connect(client.client_id, version=5, properties=block))
            answer = answer_within(client, 0.5)
            if answer is not None:
                bench.fail("a packet", answer, expected="nothing, as every packet is too large")


@statement("MQTT-3.1.2-25")
def mqtt_3_1_2_25(bench: Bench) -> None:
    """[MQTT-3.1.2-25] A message too large for a client is dropped as if it had been delivered."""
    topic = bench.topic("t")
    probe, limit = connect_with_small_packets(bench, "small", LIMIT)
    probe.disconnect()
    block = [(tables.MAXIMUM_PACKET_SIZE, limit), (tables.RECEIVE_MAXIMUM, 1)]
    sender = bench.client("sender")
    require(bench, sender, qos=2)
    for qos in (1, 2):
        with bench.case(f"QoS {qos}"):
            small = bench.client("small", clean=True, session_expiry=60, properties=block)
            small.subscribe(topic, qos=qos)
            for number in range(3):
                sender.publish(topic, b"big" * limit, qos=qos)
                sender.publish(topic, f"small {number}", qos=qos)
                # With a Receive Maximum of 1 a dropped message that counts would be in the way.
                small.expect_publish(topic=topic, payload=f"small {number}", qos=qos)
            expect_only(bench, sender, small, [])
            small.disconnect()
            sender.publish(topic, b"big" * limit, qos=qos)
            sender.publish(topic, b"offline", qos=qos)
            small.connect(clean=False, session_expiry=60, properties=block)
            small.expect_publish(topic=topic, payload=b"offline", qos=qos)
            expect_only(bench, sender, small, [])
            small.disconnect()
            small.connect(clean=False, session_expiry=60)
            with bench.case("a later connection without the limit"):
                expect_only(bench, sender, small, [])
            small.disconnect()


@statement("MQTT-3.1.2-26")
def mqtt_3_1_2_26(bench: Bench) -> None:
    """[MQTT-3.1.2-26] Topic aliases to a client stay within its Topic Alias Maximum."""
    # That they do, and that each means a topic, is seen by the rules of the connection.
    client = bench.client("a", properties=[(tables.TOPIC_ALIAS_MAXIMUM, 3)])
    client.subscribe(bench.topic("#"), qos=1)
    sender = bench.client("sender")
    used = set()
    for turn in range(3):
        for number in range(20):
            for qos in (0, 1):
                topic = bench.topic(f"topic/{number}")
                text = f"{turn} {number} {qos}"
                sender.publish(topic, text, qos=qos)
                got = client.expect_publish(topic=topic, payload=text, qos=qos)
                used.add(got.properties.number(tables.TOPIC_ALIAS))
    used.discard(None)
    bench.note(f"{len(used)} of 3 aliases were used")


@statement("MQTT-3.1.2-27")
def mqtt_3_1_2_27(bench: Bench) -> None:
    """[MQTT-3.1.2-27] A client with no Topic Alias Maximum, or 0, gets no topic aliases."""
    sender = bench.client("sender")
    topics = [bench.topic("a"), bench.topic("b")]
    for name, block in (("absent", []), ("zero", [(tables.TOPIC_ALIAS_MAXIMUM, 0)])):
        with bench.case(f"Topic Alias Maximum {name}"):
            client = bench.client(name, properties=block)
            client.subscribe(bench.topic("#"), qos=1)
            for number in range(10):
                topic = topics[number % 2]
                sender.publish(topic, str(number), qos=number % 3 % 2)
                got = client.expect_publish(topic=topic, payload=str(number))
                if tables.TOPIC_ALIAS in got.properties or not got.wire_topic:
                    bench.fail("a topic alias", got, expected="the topic and no alias")


@statement("MQTT-3.1.2-28")
def mqtt_3_1_2_28(bench: Bench) -> None:
    """[MQTT-3.1.2-28] Response Information comes only if it was asked for."""
    for name, value in (("absent", None), ("zero", 0), ("one", 1)):
        with bench.case(f"Request Response Information {name}"):
            block = [] if value is None else [(tables.REQUEST_RESPONSE_INFO, value)]
            connack = announced(bench.client(name, properties=block))
            has_it = tables.RESPONSE_INFO in connack.properties
            if has_it and not value:
                bench.fail("Response Information", connack, expected="none")
            if value:
                bench.note("it is given on request" if has_it else "it is never given")


@statement("MQTT-3.1.2-29", wants=("configure",))
def mqtt_3_1_2_29(bench: Bench) -> None:
    """[MQTT-3.1.2-29] Without Request Problem Information only three packets explain themselves."""
    # The rules of the connection see Reason Strings and User Properties where they may not be.
    denied = bench.topic("denied")
    try:
        own_broker(bench, "configure", deny_publish=[denied])
    except NotRun as reason:
        bench.note(f"without a topic that is denied: {reason}")
    topic = bench.topic("t")
    other = subscribed(bench, "other", topic)
    require(bench, other, qos=2)
    client = bench.client("a", properties=[(tables.REQUEST_PROBLEM_INFO, 0)])
    user = [(tables.USER_PROPERTY, ("k", "v"))]
    for kind, data in (
        (Puback, wire.publish(denied, version=5, qos=1, packet_id=1, properties=user)),
        (Pubrec, wire.publish(denied, version=5, qos=2, packet_id=2, properties=user)),
        (Pubcomp, wire.pubrel(9999, 0, user)),
        (Suback, wire.subscribe(4, [(topic, 0), ("$share/x", 0)], version=5, properties=user)),
        (Suback, wire.subscribe(5, [(topic, 0)], version=5, properties=user)),
        (Unsuback, wire.unsubscribe(6, [bench.topic("none")], version=5, properties=user)),
    ):
        with bench.case(f"{kind.__name__.upper()} for {data.hex(' ')}"):
            if not client.is_open or client.eof:
                client.drop()
                client.connect(properties=[(tables.REQUEST_PROBLEM_INFO, 0)])
            client.send(data)
            _expect_terse(bench, client, kind)
    with bench.case("User Properties of PUBLISH"):
        client.drop()
        client.connect(properties=[(tables.REQUEST_PROBLEM_INFO, 0)])
        client.subscribe(topic)
        client.publish(topic, b"x", properties=user)
        for subscriber in (client, other):
            got = subscriber.expect_publish(topic=topic, payload=b"x")
            if got.properties.user() != [("k", "v")]:
                bench.fail("other user properties", got, expected="k=v")


def _expect_terse(bench: Bench, client: Client, kind: type[Packet]) -> None:
    """The answer is of this kind without explanations; the broker may end the connection too."""
    found, is_open = answers(client, kind)
    for packet in found:
        properties = getattr(packet, "properties", ())
        if isinstance(packet, kind) and (
            tables.REASON_STRING in properties or tables.USER_PROPERTY in properties
        ):
            bench.fail("an explanation nobody wants", packet, expected="a reason code only")
    if not is_open:
        client.drop()


@statement("MQTT-3.1.2-30", needs=("configure",))
def mqtt_3_1_2_30(bench: Bench) -> None:
    """[MQTT-3.1.2-30] During the exchange of AUTH packets nothing else has an effect."""
    bench.start(scram_users={"alice": "right"}, allow_anonymous=True)
    topic = bench.topic("t")
    watcher = subscribed(bench, "watcher", bench.topic("#"))
    for what, data in (
        ("PUBLISH at QoS 0", wire.publish(topic, b"no", version=5, retain=True)),
        ("PUBLISH at QoS 1", wire.publish(topic, b"no", version=5, qos=1, packet_id=1)),
        ("SUBSCRIBE", wire.subscribe(2, [(topic, 0)], version=5)),
        ("PINGREQ", wire.pingreq()),
    ):
        with bench.case(f"{what} during the exchange"):
            scram = ScramClient("alice", "right")
            block: list[wire.Property] = [(tables.AUTH_METHOD, METHOD)]
            block.append((tables.AUTH_DATA, scram.first()))
            client = bench.client("a", connect=False)
            client.send(wire.connect(client.client_id, version=5, properties=block))
            challenge = client.expect(Auth)
            client.send(data)
            # Closed at once, or passed over until the client is let in: nothing is answered here.
            server_first = challenge.properties.data(tables.AUTH_DATA) or b""
            block[-1] = (tables.AUTH_DATA, scram.final(server_first))
            client.send(wire.auth(0x18, block))
            answer = answer_or_end(client)
            if answer is not None and not isinstance(answer, Connack):
                bench.fail("an answer during the exchange", answer, expected="a close or CONNACK")
            client.drop()
    expect_only(bench, bench.client("sender"), watcher, [])

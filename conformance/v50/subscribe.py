"""MQTT 5.0, sections 3.8 and 3.9: SUBSCRIBE and SUBACK."""

from collections.abc import Sequence
from typing import Final

from conformance import scenes, tables, wire
from conformance.check import Bench, statement
from conformance.client import Client
from conformance.packets import Disconnect, Publish, Suback
from conformance.scenes import NO_LOCAL, RETAIN_AS_PUBLISHED

MALFORMED: Final = 0x81
PROTOCOL_ERROR: Final = 0x82
DENIED: Final = 0x87
RESUMABLE_S: Final = 300
# A filter that is well formed as a string but no valid filter.
INVALID_FILTERS: Final = ("a#", "a/#/b", "a+", "+a/b", "#/a")


def ids_of(delivery: Publish) -> list[int]:
    """Return the subscription identifiers of a delivery, in order."""
    return delivery.properties.subscription_ids()


def expect_codes(bench: Bench, suback: Suback, codes: Sequence[int]) -> None:
    """The codes of SUBACK have to be these; where 0x87 is wanted others may stand for it.

    A broker that does not say why it refuses may use 0x80 or 0x83; the strict profile
    wants 0x87.
    """
    refusals = (DENIED,) if bench.strict else (0x80, 0x83, DENIED)
    fits = len(suback.codes) == len(codes) and all(
        found == wanted or (wanted == DENIED and found in refusals)
        for found, wanted in zip(suback.codes, codes, strict=True)
    )
    if not fits:
        expected = "codes " + " ".join(f"{code:02X}" for code in codes)
        bench.fail("SUBACK has other codes", suback, expected=expected)


@statement("MQTT-3.8.1-1")
def mqtt_3_8_1_1(bench: Bench) -> None:
    """[MQTT-3.8.1-1] SUBSCRIBE with header flags other than 0010 ends the connection unanswered."""
    filters = [(bench.topic("t"), 0)]
    wrong = [
        (f"first byte 0x{first:02X}", wire.subscribe(7, filters, version=5, first_byte=first))
        for first in range(0x80, 0x90)
        if first != 0x82
    ]
    scenes.expect_each_closes(bench, wrong, MALFORMED)


@statement("MQTT-3.8.3-1")
def mqtt_3_8_3_1(bench: Bench) -> None:
    """[MQTT-3.8.3-1] A SUBSCRIBE with a filter that is not UTF-8 ends the connection."""
    good = (bench.topic("t"), 0)
    for raw in (b"\xc3\x28", b"\xed\xa0\x80", b"\xc0\x80", b"a/\xff", b"\xe2\x82"):
        for filters in ([(raw, 0)], [good, (raw, 0)], [(raw, 0), good]):
            what = f"bytes {raw.hex(' ')}, {len(filters)} filters"
            data = wire.subscribe(7, filters, version=5)
            scenes.expect_each_closes(bench, [(what, data)], MALFORMED)


@statement("MQTT-3.8.3-2")
def mqtt_3_8_3_2(bench: Bench) -> None:
    """[MQTT-3.8.3-2] A SUBSCRIBE without any filter ends the connection."""
    user: list[wire.Property] = [(tables.USER_PROPERTY, ("a", "b"))]
    packets = [
        ("no payload", wire.subscribe(7, [], version=5)),
        ("properties and no payload", wire.subscribe(7, [], version=5, properties=user)),
    ]
    scenes.expect_each_closes(bench, packets, PROTOCOL_ERROR)


@statement("MQTT-3.8.3-3")
def mqtt_3_8_3_3(bench: Bench) -> None:
    """[MQTT-3.8.3-3] With No Local a client never gets its own messages, but those of others."""
    topic = bench.topic("t")
    other = bench.client("other")
    own = bench.client("own", session_expiry=RESUMABLE_S)
    own.subscribe(topic, 2 | NO_LOCAL)

    def everybody_publishes() -> None:
        for qos in range(3):
            own.publish(topic, f"own {qos}", qos)
        for qos in range(3):
            other.publish(topic, f"other {qos}", qos)
        own.ping()
        bench.barrier(other, own)
        found = scenes.payloads(own.expect_publishes(3))
        if sorted(found) != ["other 0", "other 1", "other 2"]:
            bench.fail(f"delivered {found}", own.last, expected="only what the other published")
        own.expect_nothing()

    everybody_publishes()
    with bench.case("after a resume"):
        scenes.resume(own, session_expiry=RESUMABLE_S)
        everybody_publishes()
    with bench.case("queued in the session"):
        # The first message stays unacknowledged and fills the quota: what follows has to wait.
        scenes.resume(own, properties=[(tables.RECEIVE_MAXIMUM, 1)], session_expiry=RESUMABLE_S)
        other.publish(topic, "held", 1)
        own.expect_publish(topic, "held", acknowledge=False)
        own.publish(topic, "own, queued", 1)
        own.publish(topic, "own, queued", 2)
        other.publish(topic, "other, queued", 1)
        scenes.resume(own, session_expiry=RESUMABLE_S)
        own.expect_publish(topic, "held")
        own.expect_publish(topic, "other, queued")
        bench.barrier(other, own)
        own.expect_nothing()


@statement("MQTT-3.8.3-4")
def mqtt_3_8_3_4(bench: Bench) -> None:
    """[MQTT-3.8.3-4] No Local on a shared subscription is a Protocol Error, and not subscribed."""
    topic = bench.topic("t")
    publisher = bench.client("publisher")
    if not scenes.has_shared_subscriptions(publisher):
        bench.not_run("the broker has no shared subscriptions")
    for qos in range(3):
        with bench.case(f"options 0x{qos | NO_LOCAL:02X}"):
            client = bench.client("member", session_expiry=RESUMABLE_S)
            filters = [(f"$share/g/{topic}", qos | NO_LOCAL)]
            client.send(wire.subscribe(7, filters, version=5))
            client.expect_close(PROTOCOL_ERROR)
            client.drop()
            client.connect(clean=False, session_expiry=RESUMABLE_S)
            publisher.publish(topic, "for nobody", 2)
            bench.barrier(publisher, client)
            client.expect_nothing()


@statement("MQTT-3.8.3-5")
def mqtt_3_8_3_5(bench: Bench) -> None:
    """[MQTT-3.8.3-5] Reserved bits in the subscription options make SUBSCRIBE malformed."""
    topic = bench.topic("t")

    def with_options(options: int) -> tuple[str, bytes]:
        data = wire.subscribe(7, [(topic, options)], version=5)
        return f"options 0x{options:02X}", data

    reserved = [with_options(options) for options in (0x40, 0x80, 0xC0, 0x41, 0x82, 0x68)]
    later = wire.subscribe(7, [(topic, 0), (topic + "/u", 0x80)], version=5)
    scenes.expect_each_closes(bench, [*reserved, ("in the second filter", later)], MALFORMED)


@statement("MQTT-3.8.4-1", wants=("configure",))
def mqtt_3_8_4_1(bench: Bench) -> None:
    """[MQTT-3.8.4-1] Every SUBSCRIBE is answered by one SUBACK, granted or refused."""
    denied = scenes.with_denied_filter(bench)
    topic = bench.topic("t")
    client = bench.client()
    for filters in (
        [(topic, 0)],
        [(topic, 0)],
        [(topic, 2)],
        [(topic + "/+/#", 1)],
        [(topic, 1), (topic, 1)],
        [(topic + "/x" * 100, 1)],
        *([[(denied, 0)], [(denied, 1), (topic, 1)]] if denied else []),
    ):
        with bench.case(f"SUBSCRIBE {filters}"):
            client.subscribe(filters)
            client.expect_nothing(Suback)
    for topic_filter in INVALID_FILTERS:
        with bench.case(f"SUBSCRIBE {topic_filter!r}"):
            # A filter that is not valid may also be taken as a reason to close.
            if scenes.expect_filter_refused(client, topic_filter):
                client.expect_nothing(Suback)
            else:
                client.drop()
                client.connect()


@statement("MQTT-3.8.4-2")
def mqtt_3_8_4_2(bench: Bench) -> None:
    """[MQTT-3.8.4-2] SUBACK has the packet identifier of its SUBSCRIBE."""
    client = bench.client()
    for ids in ((7, 65_535, 1), (256, 255, 1)):
        packets = [
            wire.subscribe(number, [(bench.topic(f"{number}"), 0)], version=5) for number in ids
        ]
        client.send(b"".join(packets))
        found = sorted(client.expect(Suback).packet_id for _ in ids)
        if found != sorted(ids):
            bench.fail(f"SUBACK for {found}", client.last, expected=f"one for each of {ids}")
        client.expect_nothing(Suback)


@statement("MQTT-3.8.4-3")
def mqtt_3_8_4_3(bench: Bench) -> None:
    """[MQTT-3.8.4-3] Subscribing to a filter again replaces the subscription and its options."""
    topic = bench.topic("a/b")
    publisher = bench.client("publisher")
    client = bench.client("subscriber")
    keep = RETAIN_AS_PUBLISHED
    client.subscribe(topic, 0, scenes.subscription_id(client, 1))
    for qos, options, number in ((2, keep, 2), (0, 0, 3), (1, keep, None)):
        with bench.case(f"replaced by options 0x{qos | options:02X}, identifier {number}"):
            properties = [] if number is None else scenes.subscription_id(client, number)
            client.subscribe(topic, qos | options | scenes.RETAIN_NEVER, properties)
            publisher.publish(topic, f"at {qos}", 2, retain=True)
            delivery = client.expect_publish(topic, f"at {qos}", qos, retain=bool(options))
            wanted = [value for _, value in properties]
            if ids_of(delivery) != wanted:
                expected = f"subscription identifiers {wanted}"
                bench.fail("identifiers of another subscription", delivery, expected=expected)
            bench.barrier(publisher, client)
            client.expect_nothing()
    with bench.case("there is only one subscription to end"):
        client.unsubscribe(topic)
        publisher.publish(topic, "after its end", 2)
        bench.barrier(publisher, client)
        client.expect_nothing()


@statement("MQTT-3.8.4-4")
def mqtt_3_8_4_4(bench: Bench) -> None:
    """[MQTT-3.8.4-4] Subscribing again sends retained messages again and loses no message."""
    kept, live, both = (bench.topic(f"f/{level}") for level in ("kept", "live", "+"))
    publisher = bench.client("publisher")
    publisher.publish(kept, "kept", 1, retain=True)
    subscriber = bench.client("subscriber")
    subscriber.subscribe(both, 1)
    subscriber.expect_publish(kept, "kept", retain=True)
    rounds, burst = 8, 10
    numbers = [str(number) for number in range(rounds * burst)]
    for turn in range(rounds):
        subscriber.send(wire.subscribe(1000 + turn, [(both, 1)], version=5))
        scenes.publish_all(publisher, live, numbers[turn * burst : (turn + 1) * burst])
    for turn in range(rounds):
        subscriber.expect(Suback, packet_id=1000 + turn)
    deliveries = subscriber.expect_publishes(rounds + len(numbers))
    bench.barrier(publisher, subscriber)
    subscriber.expect_nothing()
    found = scenes.payloads(delivery for delivery in deliveries if delivery.topic == live)
    if found != numbers:
        bench.fail(f"delivered {found}", expected="every message once and in order")
    again = [delivery for delivery in deliveries if delivery.topic == kept]
    if len(again) != rounds or not all(delivery.retain for delivery in again):
        expected = f"{rounds} with RETAIN 1, one per SUBSCRIBE"
        bench.fail(f"{len(again)} times the retained message", expected=expected)


@statement("MQTT-3.8.4-5")
def mqtt_3_8_4_5(bench: Bench) -> None:
    """[MQTT-3.8.4-5] Filters of one SUBSCRIBE are taken in turn, with one SUBACK for all."""
    one, two = bench.topic("one"), bench.topic("two")
    publisher = bench.client("publisher")
    client = bench.client("subscriber")
    filters = [(one, 0), (two, 1), (one, 2)]
    expect_codes(bench, client.subscribe(filters), (0, 1, 2))
    client.expect_nothing(Suback)
    for topic, qos in ((one, 2), (two, 1)):
        publisher.publish(topic, "m", 2)
        client.expect_publish(topic, "m", qos)
        bench.barrier(publisher, client)
        client.expect_nothing()


@statement("MQTT-3.8.4-6")
def mqtt_3_8_4_6(bench: Bench) -> None:
    """[MQTT-3.8.4-6] SUBACK has as many reason codes as SUBSCRIBE had filters."""
    client = bench.client()
    for count in (1, 5, 200):
        filters = [(bench.topic(f"{count}/{number}"), number % 3) for number in range(count)]
        suback = client.subscribe(filters)
        if len(suback.codes) != count:
            bench.fail(f"{len(suback.codes)} reason codes", suback, expected=f"{count} of them")


@statement("MQTT-3.8.4-7", wants=("configure",))
def mqtt_3_8_4_7(bench: Bench) -> None:
    """[MQTT-3.8.4-7] Each reason code says the QoS that was granted or why it was not."""
    denied = scenes.with_denied_filter(bench)
    client = bench.client()
    for qos in range(3):
        expect_codes(bench, client.subscribe(bench.topic(f"{qos}"), qos), (qos,))
    if denied:
        expect_codes(bench, client.subscribe(denied, 1), (DENIED,))
        publisher = bench.client("publisher")
        publisher.publish(denied, "no", 1)
        bench.barrier(publisher, client)
        client.expect_nothing()


@statement("MQTT-3.8.4-8")
def mqtt_3_8_4_8(bench: Bench) -> None:
    """[MQTT-3.8.4-8] A message comes with the lower of its own QoS and the granted one."""
    publisher = bench.client("publisher")
    for granted in range(3):
        live = bench.topic(f"live{granted}")
        client = bench.client(f"subscriber{granted}", session_expiry=RESUMABLE_S)
        expect_codes(bench, client.subscribe(live, granted), (granted,))
        for qos in range(3):
            with bench.case(f"published at {qos}, granted {granted}"):
                publisher.publish(live, f"live {qos}", qos)
                client.expect_publish(live, f"live {qos}", min(qos, granted))
            with bench.case(f"retained at {qos}, granted {granted}"):
                kept = bench.topic(f"kept{granted}{qos}")
                publisher.publish(kept, "kept", qos, retain=True)
                client.subscribe(kept, granted)
                client.expect_publish(kept, "kept", min(qos, granted), retain=True)
        with bench.case(f"queued, granted {granted}"):
            queued_are_limited(bench, publisher, client, live, granted)


def queued_are_limited(
    bench: Bench, publisher: Client, client: Client, topic: str, granted: int
) -> None:
    """What was published while the client was away comes at the lower QoS as well.

    What has become QoS 0 need not be kept for it.
    """
    client.drop()
    for qos in range(3):
        publisher.publish(topic, str(qos), qos)
    scenes.resume(client, session_expiry=RESUMABLE_S)
    bench.barrier(publisher, client)
    count = sum(isinstance(packet, Publish) for packet in client.inbox)
    seen = set()
    for delivery in client.expect_publishes(count):
        published = int(delivery.payload)
        seen.add(published)
        if delivery.qos != min(published, granted):
            expected = f"QoS {min(published, granted)}"
            bench.fail(
                f"a message of QoS {published} comes at another", delivery, expected=expected
            )
    if granted and not {1, 2} <= seen:
        bench.fail(f"queued messages that came: {sorted(seen)}", expected="those of QoS 1 and 2")


def refusals_within(bench: Bench, property_id: int) -> None:
    """Every SUBACK (and DISCONNECT) to a client that takes little is small enough for it."""
    denied = scenes.with_denied_filter(bench)
    topic = bench.topic("t")
    requests = [[(topic, 1)], [(f"{topic}{number}", 1) for number in range(13)]]
    requests += [[(topic_filter, 1)] for topic_filter in INVALID_FILTERS]
    if denied:
        requests += [[(denied, 1)], [(denied, 1)] * 13]
    for filters in requests:
        client, limit = scenes.connect_with_small_packets(bench, "small", 20)
        client.send(wire.subscribe(7, filters, version=5))
        answer = scenes.answer_or_end(client)
        if answer is not None and not isinstance(answer, Suback | Disconnect):
            bench.fail("SUBSCRIBE is not answered", answer, expected="SUBACK")
        if answer is not None and len(answer.raw) > limit:
            what = tables.PROPERTY_NAMES[property_id] if property_id in answer.properties else ""
            bench.fail(f"{len(answer.raw)} bytes {what}", answer, expected=f"at most {limit}")
        client.drop()


@statement("MQTT-3.9.2-1", wants=("configure",))
def mqtt_3_9_2_1(bench: Bench) -> None:
    """[MQTT-3.9.2-1] No Reason String makes a SUBACK larger than the client takes."""
    refusals_within(bench, tables.REASON_STRING)


@statement("MQTT-3.9.2-2", wants=("configure",))
def mqtt_3_9_2_2(bench: Bench) -> None:
    """[MQTT-3.9.2-2] No User Property makes a SUBACK larger than the client takes."""
    refusals_within(bench, tables.USER_PROPERTY)


@statement("MQTT-3.9.3-1", wants=("configure",))
def mqtt_3_9_3_1(bench: Bench) -> None:
    """[MQTT-3.9.3-1] The reason codes of SUBACK are in the order of the filters."""
    denied = scenes.with_denied_filter(bench)
    a, b, c, d = (bench.topic(level) for level in "abcd")
    client = bench.client()
    expect_codes(bench, client.subscribe([(a, 2), (b, 0), (c, 1), (d, 1)]), (2, 0, 1, 1))
    expect_codes(bench, client.subscribe([(d, 0), (c, 1), (b, 2), (a, 0)]), (0, 1, 2, 0))
    if denied:
        filters = [(a, 2), (b, 0), (denied, 2), (c, 1)]
        expect_codes(bench, client.subscribe(filters), (2, 0, DENIED, 1))
        expect_codes(bench, client.subscribe([(denied, 1), (c, 2)]), (DENIED, 2))


@statement("MQTT-3.9.3-2", wants=("configure",))
def mqtt_3_9_3_2(bench: Bench) -> None:
    """[MQTT-3.9.3-2] SUBACK has only reason codes of its table."""
    denied = scenes.with_denied_filter(bench)
    topic = bench.topic("t")
    share = f"$share/g/{topic}"
    client = bench.client()
    everything = [topic, topic + "/#", share, "$SYS/#", "#/a", "a#", "$share//t", "$share/g"]
    for topic_filter in [*everything, *([denied] if denied else [])]:
        for qos in range(3):
            packet_id = client.next_id()
            client.send(wire.subscribe(packet_id, [(topic_filter, qos)], version=5))
            answer = scenes.answer_or_end(client)
            while isinstance(answer, Publish):  # what was retained on a topic of the broker's own
                answer = scenes.answer_or_end(client)
            if isinstance(answer, Suback):
                strange = set(answer.codes) - tables.REASONS_OF[tables.SUBACK]
                high = any(qos < code < 0x80 for code in answer.codes)
                if strange or high:
                    expected = f"a granted QoS up to {qos}, or a reason of the table"
                    bench.fail("reason code of SUBACK", answer, expected=expected)
                if answer.codes[0] < 0x80:
                    client.unsubscribe(topic_filter)
            elif client.eof or isinstance(answer, Disconnect):
                client.drop()
                client.connect()
            else:
                bench.fail("SUBSCRIBE is not answered", answer, expected="SUBACK")


# Rules of the text without a number.


@statement("X-16")
def x_16(bench: Bench) -> None:
    """[X-16] A Subscription Identifier of 0, or more than one, is a Protocol Error."""
    topic = bench.topic("t")

    def with_ids(*numbers: int) -> tuple[str, bytes]:
        properties = [(tables.SUBSCRIPTION_ID, number) for number in numbers]
        data = wire.subscribe(7, [(topic, 0)], version=5, properties=properties)
        return f"identifiers {numbers}", data

    probe = bench.client("probe")
    has_ids = bool(scenes.subscription_id(probe, 1))
    reasons = (PROTOCOL_ERROR,) if has_ids else (PROTOCOL_ERROR, 0xA1)
    wrong = [with_ids(0), with_ids(1, 1), with_ids(1, 2), with_ids(2, 0)]
    scenes.expect_each_closes(bench, wrong, *reasons)
    if not has_ids:
        bench.not_run("the broker has no subscription identifiers")
    for number in (1, 127, 128, 16_383, 16_384, 2_097_151, 2_097_152, wire.VARINT_MAX):
        probe.subscribe(topic, 0, [(tables.SUBSCRIPTION_ID, number)])
        probe.publish(topic, "m")
        delivery = probe.expect_publish(topic, "m")
        if ids_of(delivery) != [number]:
            bench.fail("subscription identifier", delivery, expected=f"identifier {number}")


@statement("X-17")
def x_17(bench: Bench) -> None:
    """[X-17] Subscribing again without an identifier removes the one there was."""
    topic = bench.topic("t")
    client = bench.client(session_expiry=RESUMABLE_S)
    properties = scenes.subscription_id(client, 17)
    if not properties:
        bench.not_run("the broker has no subscription identifiers")
    for wanted in (properties, [], properties, []):
        client.subscribe(topic, 1, wanted)
        for when in ("at once", "after a resume"):
            with bench.case(f"{'with' if wanted else 'without'} an identifier, {when}"):
                client.publish(topic, "m", 1)
                delivery = client.expect_publish(topic, "m")
                if ids_of(delivery) != [value for _, value in wanted]:
                    bench.fail("subscription identifier", delivery, expected=f"{wanted}")
            scenes.resume(client, session_expiry=RESUMABLE_S)


@statement("X-18")
def x_18(bench: Bench) -> None:
    """[X-18] Two matching filters with equal identifiers show that identifier twice."""
    client = bench.client()
    same = scenes.subscription_id(client, 18)
    if not same:
        bench.not_run("the broker has no subscription identifiers")
    for topic_filter in ("a/b", "a/+"):
        client.subscribe(bench.topic(topic_filter), 1, same)
    client.subscribe(bench.topic("#"), 1, scenes.subscription_id(client, 19))
    publisher = bench.client("publisher")
    publisher.publish(bench.topic("a/b"), "m", 1)
    bench.barrier(publisher, client)
    deliveries = client.expect_publishes(sum(isinstance(p, Publish) for p in client.inbox))
    found = sorted(number for delivery in deliveries for number in ids_of(delivery))
    if found != [18, 18, 19]:
        expected = "18 twice and 19, in one copy or spread over several"
        bench.fail(f"identifiers {found}", client.last, expected=expected)


@statement("X-19")
def x_19(bench: Bench) -> None:
    """[X-19] A requested QoS of 3 or a Retain Handling of 3 is a Protocol Error."""
    topic = bench.topic("t")
    wrong = [
        (f"options 0x{options:02X}", wire.subscribe(7, [(topic, options)], version=5))
        for options in (0x03, 0x0F, 0x23, 0x30, 0x32, 0x3D)
    ]
    scenes.expect_each_closes(bench, wrong, PROTOCOL_ERROR)

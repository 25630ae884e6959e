"""MQTT 5.0, section 4.8.2: shared subscriptions.

Which member gets a message is the broker's choice, also a member that is away. So every check looks
at what all members got together, and at what one of them must not have got.
"""

import time
from collections.abc import Sequence
from typing import Any, Final

from conformance import scenes
from conformance.check import Bench, statement
from conformance.client import Client
from conformance.packets import Publish

RESUMABLE_S: Final = 300
SHORT_S: Final = 1  # the shortest session expiry interval there is
PAST_SHORT_S: Final = 2.5
# Messages published before anybody acknowledges: a broker may limit what is under way to a client.
BURST: Final = 8
REMOVED: Final = 0x00
NONE_EXISTED: Final = 0x11


def share(topic_filter: str, name: str = "g") -> str:
    """Return the shared filter."""
    return f"$share/{name}/{topic_filter}"


def publisher_of(bench: Bench) -> Client:
    """Return a client that publishes; the check is not run where nothing is shared."""
    publisher = bench.client("publisher")
    if not scenes.has_shared_subscriptions(publisher):
        bench.not_run("the broker has no shared subscriptions")
    return publisher


def taken(client: Client) -> list[Publish]:
    """Return the deliveries that have come and nobody has looked at, all acknowledged."""
    deliveries: list[Publish] = []
    while count := sum(isinstance(packet, Publish) for packet in client.inbox):
        deliveries += client.expect_publishes(count)
    return deliveries


def gather(
    bench: Bench, publisher: Client, members: Sequence[Client], count: int
) -> list[list[Publish]]:
    """Return what each member has got of what was published, `count` messages in all.

    Returns with what there is if fewer come in time, and with more if more have come. A barrier
    says nothing about the order of different topics in a group, so it waits for the number.
    """
    for member in members:
        bench.barrier(publisher, member)
    got = [taken(member) for member in members]
    deadline = time.monotonic() + bench.patience
    while sum(map(len, got)) < count and time.monotonic() < deadline:
        for deliveries, member in zip(got, members, strict=True):
            member.wait_for_end(0.02)
            deliveries += taken(member)
    return got


def expect_members_to_get(
    bench: Bench, publisher: Client, members: Sequence[Client], texts: Sequence[str]
) -> list[list[str]]:
    """All members together get each of `texts` once and nothing else; return who got what."""
    got = gather(bench, publisher, members, len(texts))
    found = [scenes.payloads(deliveries) for deliveries in got]
    everything = sorted(text for part in found for text in part)
    if everything != sorted(texts):
        last = next((part[-1] for part in got if part), None)
        bench.fail(f"the members got {everything}", last, expected=f"{sorted(texts)}")
    return found


def refuse_all(bench: Bench, filters: Sequence[str], topics: Sequence[str]) -> None:
    """None of these filters is granted, and none leaves a subscription behind."""
    publisher = publisher_of(bench)
    for topic_filter in filters:
        with bench.case(f"filter {topic_filter!r}"):
            client = bench.client("member", session_expiry=RESUMABLE_S)
            if not scenes.expect_filter_refused(client, topic_filter, 1):
                client.drop()
                client.connect(clean=False, session_expiry=RESUMABLE_S)
            for topic in topics:
                publisher.publish(topic, "for nobody", 1)
            bench.barrier(publisher, client)
            client.expect_nothing()
            client.disconnect(properties=[(0x11, 0)])


@statement("MQTT-4.8.2-1")
def mqtt_4_8_2_1(bench: Bench) -> None:
    """[MQTT-4.8.2-1] A shared filter has a share name of one or more characters."""
    topic = bench.topic("t")
    refuse_all(bench, [f"$share//{topic}", "$share/", "$share//"], [topic, "/" + topic])
    publisher = bench.client("publisher")
    for name in ("g", "ä", "a b", "$", "x" * 300, "share-name.of_47~characters!"):
        with bench.case(f"share name {name!r}"):
            member = bench.client("member")
            code = member.subscribe(share(topic, name), 1).codes[0]
            if code >= 0x80:
                bench.fail("a proper shared filter is refused", member.last, expected="granted")
            publisher.publish(topic, name, 1)
            member.expect_publish(topic, name)
            member.disconnect()


@statement("MQTT-4.8.2-2")
def mqtt_4_8_2_2(bench: Bench) -> None:
    """[MQTT-4.8.2-2] A share name has no '/', '+' or '#' and is followed by '/' and a filter."""
    topic = bench.topic("t")
    wrong = [f"$share/{name}/{topic}" for name in ("a+", "+", "#", "a#", "+a", "a#b", "a+b")]
    refuse_all(bench, [*wrong, "$share/g", "$share/g/"], [topic, "/" + topic])
    with bench.case("a filter that begins with '/'"):
        publisher = bench.client("publisher")
        member = bench.client("member")
        member.subscribe(share("/" + topic), 1)
        publisher.publish(topic, "another topic", 1)
        publisher.publish("/" + topic, "this one", 1)
        member.expect_publish("/" + topic, "this one")
        bench.barrier(publisher, member)
        member.expect_nothing()
    with bench.case("a filter with wildcards"):
        member.subscribe(share(bench.topic("+/#"), "h"), 1)
        publisher.publish(bench.topic("a/b"), "found", 1)
        member.expect_publish(bench.topic("a/b"), "found")


@statement("MQTT-4.8.2-3")
def mqtt_4_8_2_3(bench: Bench) -> None:
    """[MQTT-4.8.2-3] A shared message has at most the QoS granted to the member that gets it."""
    publisher = publisher_of(bench)
    topic = bench.topic("t")
    members = [bench.client(f"member{qos}") for qos in range(3)]
    granted: dict[str, int] = {}
    for qos, member in enumerate(members):
        granted[member.name] = member.subscribe(share(topic), qos).codes[0]
        if granted[member.name] > qos:
            bench.fail("SUBACK grants more than was asked for", member.last, expected=f"{qos}")
    while members:
        for published in range(3):
            with bench.case(f"{len(members)} members, published at {published}"):
                texts = [f"{len(members)}/{published}/{number}" for number in range(BURST)]
                for text in texts:
                    publisher.publish(topic, text, published)
                got = gather(bench, publisher, members, len(texts))
                for member, deliveries in zip(members, got, strict=True):
                    wanted = min(published, granted[member.name])
                    for delivery in deliveries:
                        if delivery.qos != wanted:
                            bench.fail("QoS of the delivery", delivery, expected=f"QoS {wanted}")
                found = sorted(text for part in got for text in scenes.payloads(part))
                if found != sorted(texts):
                    bench.fail(f"delivered {found}", expected="each to one member")
        # Whoever was never chosen is, once the others have left.
        members.pop().disconnect()


def begin_two(bench: Bench, publisher: Client, **session: Any) -> tuple[Client, dict[str, int]]:
    """Return a lone member that owes PUBREC for "one" and PUBCOMP for "two", and their ids."""
    topic = bench.topic("t")
    member = bench.client("first", **session)
    member.subscribe(share(topic), 2)
    ids = {}
    for text in ("one", "two"):
        publisher.publish(topic, text, 2)
        delivery = member.expect_publish(topic, text, 2, acknowledge=False)
        assert delivery.packet_id is not None
        ids[text] = delivery.packet_id
    member.pubrec(ids["two"])
    member.expect_pubrel(ids["two"])
    return member, ids


def expect_not_moved(bench: Bench, publisher: Client, member: Client, *texts: str) -> None:
    """This member has got none of `texts`, and gets none."""
    bench.settle()
    bench.barrier(publisher, member)
    for delivery in taken(member):
        if delivery.payload.decode() in texts:
            bench.fail("a message another member has got", delivery, expected="none of them")


@statement("MQTT-4.8.2-4")
def mqtt_4_8_2_4(bench: Bench) -> None:
    """[MQTT-4.8.2-4] A QoS 2 delivery begun to a member is completed to it when it returns."""
    publisher = publisher_of(bench)
    topic = bench.topic("t")
    first, ids = begin_two(bench, publisher, session_expiry=RESUMABLE_S)
    second = bench.client("second")
    second.subscribe(share(topic), 2)
    first.drop()
    publisher.publish(topic, "three", 2)
    expect_not_moved(bench, publisher, second, "one", "two")
    scenes.resume(first, session_expiry=RESUMABLE_S)
    again = first.expect_publish(topic, "one", 2, acknowledge=False)
    if again.packet_id != ids["one"]:
        bench.fail("re-sent with another id", again, expected=f"id {ids['one']}")
    first.expect_pubrel(ids["two"])
    first.pubcomp(ids["two"])
    first.acknowledge(again)
    expect_not_moved(bench, publisher, second, "one", "two")


@statement("MQTT-4.8.2-5", seconds=4)
def mqtt_4_8_2_5(bench: Bench) -> None:
    """[MQTT-4.8.2-5] If that member's session ends instead, no other client gets the message."""
    publisher = publisher_of(bench)
    topic = bench.topic("t")
    for how in ("ended by Clean Start", "expired", "ended with the connection"):
        with bench.case(f"the session {how}"):
            expiry = {"expired": SHORT_S, "ended with the connection": 0}.get(how, RESUMABLE_S)
            first, _ = begin_two(bench, publisher, session_expiry=expiry)
            second = bench.client("second")
            second.subscribe(share(topic), 2)
            first.drop()
            if how == "expired":
                bench.settle(PAST_SHORT_S)
            elif how == "ended by Clean Start":
                first.connect(clean=True)
            expect_not_moved(bench, publisher, second, "one", "two")
            first.drop()
            connack = first.connect(clean=False)
            if connack.session_present:
                bench.fail("the session has not ended", connack, expected="session present 0")
            bench.barrier(publisher, first)
            first.expect_nothing()
            expect_not_moved(bench, publisher, second, "one", "two")
            second.disconnect()


@statement("MQTT-4.8.2-6")
def mqtt_4_8_2_6(bench: Bench) -> None:
    """[MQTT-4.8.2-6] A message a member refuses by its acknowledgement goes to nobody else."""
    publisher = publisher_of(bench)
    topic = bench.topic("t")
    refusals = [(qos, reason) for qos in (1, 2) for reason in (0x80, 0x97)]
    texts = [f"QoS {qos}, 0x{reason:02X}" for qos, reason in refusals]
    first = bench.client("first", session_expiry=RESUMABLE_S)
    first.subscribe(share(topic), 2)
    deliveries = []
    for text, (qos, _) in zip(texts, refusals, strict=True):
        publisher.publish(topic, text, qos)
        deliveries.append(first.expect_publish(topic, text, qos, acknowledge=False))
    second = bench.client("second")
    second.subscribe(share(topic), 2)
    for delivery, (qos, reason) in zip(deliveries, refusals, strict=True):
        assert delivery.packet_id is not None
        if qos == 1:
            first.puback(delivery.packet_id, reason)
        else:
            first.pubrec(delivery.packet_id, reason)
    first.ping()
    expect_not_moved(bench, publisher, second, *texts)
    expect_not_moved(bench, publisher, first, *texts)
    with bench.case("after a resume"):
        scenes.resume(first, session_expiry=RESUMABLE_S)
        expect_not_moved(bench, publisher, first, *texts)
        expect_not_moved(bench, publisher, second, *texts)
    publisher.publish(topic, "afterwards", 2)
    expect_members_to_get(bench, publisher, [first, second], ["afterwards"])


# Rules of the text without a number.


@statement("X-20")
def x_20(bench: Bench) -> None:
    """[X-20] A shared subscription never brings retained messages when it is made."""
    publisher = publisher_of(bench)
    topic = bench.topic("t")
    publisher.publish(topic, "retained", 1, retain=True)
    member = bench.client("member")
    for options in (0, 1, 2, 1 | scenes.RETAIN_IF_NEW, 1 | scenes.RETAIN_NEVER):
        for topic_filter in (topic, bench.topic("#")):
            with bench.case(f"options 0x{options:02X}"):
                for _ in range(2):
                    member.subscribe([(share(topic_filter, f"g{options}"), options)])
                bench.barrier(publisher, member)
                member.expect_nothing()
                publisher.publish(topic, "live", 1)
                member.expect_publish(topic, "live", retain=False)
                member.unsubscribe(share(topic_filter, f"g{options}"))


@statement("X-21")
def x_21(bench: Bench) -> None:
    """[X-21] Subscribing to a shared filter twice makes one member, which one UNSUBSCRIBE ends."""
    publisher = publisher_of(bench)
    topic = bench.topic("t")
    first, second = bench.client("first"), bench.client("second")
    first.subscribe(share(topic), 1)
    first.subscribe(share(topic), 0)
    publisher.publish(topic, "alone", 1)
    first.expect_publish(topic, "alone", 0)
    bench.barrier(publisher, first)
    first.expect_nothing()
    second.subscribe(share(topic), 1)
    texts = [str(number) for number in range(BURST)]
    scenes.publish_all(publisher, topic, texts)
    expect_members_to_get(bench, publisher, [first, second], texts)
    for code in (REMOVED, NONE_EXISTED):
        unsuback = first.unsubscribe(share(topic))
        if unsuback.codes != (code,):
            bench.fail("the subscription is there twice", unsuback, expected=f"code {code:02X}")
    scenes.publish_all(publisher, topic, texts)
    if expect_members_to_get(bench, publisher, [first, second], texts)[0]:
        bench.fail("a member that has left still gets messages", first.last, expected="none")


@statement("X-22", strict_only=True, seconds=2)
def x_22(bench: Bench) -> None:
    """[X-22] An unacknowledged QoS 1 message of a member whose session ended goes to another."""
    publisher = publisher_of(bench)
    topic = bench.topic("t")
    for how, expiry in (("expires", SHORT_S), ("ends with the connection", 0)):
        with bench.case(f"the session {how}"):
            first = bench.client("first", session_expiry=expiry)
            first.subscribe(share(topic), 1)
            publisher.publish(topic, f"held, {how}", 1)
            first.expect_publish(topic, f"held, {how}", 1, acknowledge=False)
            second = bench.client("second")
            second.subscribe(share(topic), 1)
            first.drop()
            second.expect_publish(topic, f"held, {how}", 1, timeout=expiry + bench.patience)
            bench.barrier(publisher, second)
            second.expect_nothing()
            second.disconnect()


@statement("X-23")
def x_23(bench: Bench) -> None:
    """[X-23] A group ends with its last session, and its undelivered messages with it."""
    publisher = publisher_of(bench)
    topic = bench.topic("t")
    first, second = bench.client("first", connect=False), bench.client("second", connect=False)
    for how in ("by Clean Start", "by leaving"):
        with bench.case(f"the last session ends {how}"):
            for member in (first, second):
                member.drop()
                member.connect(session_expiry=RESUMABLE_S)
                member.subscribe(share(topic), 1)
            for member in (first, second):
                member.drop()
            scenes.publish_all(publisher, topic, [f"old {number}" for number in range(BURST)])
            for member in (first, second):
                if how == "by leaving":
                    member.connect(clean=False, session_expiry=RESUMABLE_S)
                    member.unsubscribe(share(topic))
                    member.disconnect(properties=[(0x11, 0)])
                member.connect(clean=True, session_expiry=RESUMABLE_S)
            for member in (first, second):
                bench.barrier(publisher, member)
                member.expect_nothing()
                member.subscribe(share(topic), 1)
            expect_members_to_get(bench, publisher, [first, second], [])
            publisher.publish(topic, "new", 1)
            expect_members_to_get(bench, publisher, [first, second], ["new"])


@statement("X-24")
def x_24(bench: Bench) -> None:
    """[X-24] Each group, and each plain subscription of a member, gets its own copy."""
    publisher = publisher_of(bench)
    topic = bench.topic("t")
    first, second = bench.client("first"), bench.client("second")
    texts = [str(number) for number in range(BURST)]
    with bench.case("one client is all of the group and has a plain subscription"):
        first.subscribe([(topic, 1), (share(topic), 1)])
        scenes.publish_all(publisher, topic, texts)
        expect_members_to_get(bench, publisher, [first], texts * 2)
    with bench.case("another client has joined the group"):
        second.subscribe(share(topic), 1)
        scenes.publish_all(publisher, topic, texts)
        got, _ = expect_members_to_get(bench, publisher, [first, second], texts * 2)
        if not set(texts) <= set(got):
            bench.fail(f"the plain subscription got {sorted(set(got))}", expected=f"{texts}")
    with bench.case("a second group"):
        first.unsubscribe([topic, share(topic)])
        first.subscribe(share(topic, "other"), 1)
        scenes.publish_all(publisher, topic, texts)
        got, others = expect_members_to_get(bench, publisher, [first, second], texts * 2)
        if sorted(got) != sorted(others):
            bench.fail(f"one group got {got}, the other {others}", expected="each everything")

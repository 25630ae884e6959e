"""Brokers that get PUBLISH wrong, on its way in or on its way out."""

from collections.abc import Callable

from conformance import tables, wire
from tests.conformance.wrong.frames import (
    DISCONNECT,
    PUBACK,
    PUBCOMP,
    PUBLISH,
    PUBREC,
    PUBREL,
    SUBSCRIBE,
    UNSUBSCRIBE,
    Frame,
)
from tests.conformance.wrong.mutant import (
    DROP,
    MUTANTS,
    Answer,
    Link,
    mutant,
    on_broker,
    on_client,
)

BOM = b"\xef\xbb\xbf"


def comes_in(name: str, sentence: str, change: Callable[[Frame], None]) -> None:
    """Register a broker that reads another PUBLISH than was sent."""

    @on_client(name, sentence, PUBLISH)
    def _(link: Link, frame: Frame) -> Answer:
        change(frame)
        return None


def goes_out(name: str, sentence: str, change: Callable[[Frame], None]) -> None:
    """Register a broker that sends another PUBLISH than it should."""

    @on_broker(name, sentence, PUBLISH)
    def _(link: Link, frame: Frame) -> Answer:
        change(frame)
        return None


def _flags(bits: int, *, on: bool) -> Callable[[Frame], None]:
    def change(frame: Frame) -> None:
        frame.flags = frame.flags | bits if on else frame.flags & ~bits

    return change


comes_in("forgets_retain", "takes every PUBLISH for one with RETAIN 0", _flags(1, on=False))
goes_out("never_says_retain", "delivers everything with RETAIN 0", _flags(1, on=False))
goes_out("always_says_retain", "delivers everything with RETAIN 1", _flags(1, on=True))
goes_out("never_says_dup", "sends again without DUP", _flags(8, on=False))


@on_broker("always_says_dup", "delivers everything above QoS 0 with DUP 1", PUBLISH)
def _(link: Link, frame: Frame) -> Answer:
    if frame.qos:
        frame.flags |= 8
    return None


@on_broker("says_dup_at_qos_0", "delivers QoS 0 with DUP 1", PUBLISH)
def _(link: Link, frame: Frame) -> Answer:
    if not frame.qos:
        frame.flags |= 8
    return None


echo = mutant("passes_dup_on", "delivers with the DUP flag of the publisher")


@echo.on_client(PUBLISH)
def _(link: Link, frame: Frame) -> Answer:
    if frame.dup:
        link.world.setdefault("dup", set()).add((frame.topic, frame.payload))
    return None


@echo.on_broker(PUBLISH)
def _(link: Link, frame: Frame) -> Answer:
    if (frame.topic, frame.payload) in link.world.get("dup", ()) and frame.qos:
        frame.flags |= 8
    return None


@on_client("cannot_remove_retained", "stores an empty retained message", PUBLISH)
def _(link: Link, frame: Frame) -> Answer:
    if frame.retain and not frame.payload:
        frame.payload = b"\0"
    return None


@on_client("ignores_empty_retained", "does not remove a retained message", PUBLISH)
def _(link: Link, frame: Frame) -> Answer:
    if frame.retain and not frame.payload:
        frame.flags &= ~1
    return None


@on_client("swallows_empty_retained", "removes a retained message without delivering that", PUBLISH)
def _(link: Link, frame: Frame) -> Answer:
    if frame.retain and not frame.payload and frame.qos == 0:
        link.world.setdefault("empty", set()).add(frame.topic)
    return None


@MUTANTS["swallows_empty_retained"].on_broker(PUBLISH)
def _(link: Link, frame: Frame) -> Answer:
    if not frame.payload and frame.topic in link.world.get("empty", ()):
        return DROP
    return None


@on_client("retain_0_removes", "removes the retained message at a PUBLISH without RETAIN", PUBLISH)
def _(link: Link, frame: Frame) -> Answer:
    if not frame.retain:
        link.to_broker(wire.publish(frame.topic, b"", version=frame.version, retain=True))
    return None


@on_client("keeps_first_retained", "never replaces a retained message", PUBLISH)
def _(link: Link, frame: Frame) -> Answer:
    if frame.retain and frame.payload:
        known = link.world.setdefault("retained", set())
        if frame.topic in known:
            frame.flags &= ~1
        known.add(frame.topic)
    return None


@on_client("retains_at_qos_0", "forgets the QoS of retained messages", PUBLISH)
def _(link: Link, frame: Frame) -> Answer:
    if frame.retain and frame.payload and frame.qos:
        link.to_broker(
            frame, wire.publish(frame.topic, frame.payload, version=frame.version, retain=True)
        )
        return DROP
    return None


# Properties.


def loses(name: str, sentence: str, identifier: int) -> None:
    """Register a broker that does not pass a property on."""

    def change(frame: Frame) -> None:
        frame.remove(identifier)

    comes_in(name, sentence, change)


loses("loses_expiry", "does not read Message Expiry Interval", tables.MESSAGE_EXPIRY)
loses("loses_response_topic", "does not pass Response Topic on", tables.RESPONSE_TOPIC)
loses("loses_correlation", "does not pass Correlation Data on", tables.CORRELATION_DATA)
loses("loses_content_type", "does not pass Content Type on", tables.CONTENT_TYPE)
loses("loses_format", "does not pass Payload Format Indicator on", tables.PAYLOAD_FORMAT)
loses("loses_user_properties", "does not pass User Properties on", tables.USER_PROPERTY)


def _turn(frame: Frame) -> None:
    mine = [p for p in frame.properties or () if p[0] == tables.USER_PROPERTY]
    if len(mine) > 1:
        rest = [p for p in frame.properties or () if p[0] != tables.USER_PROPERTY]
        frame.properties = rest + mine[::-1]


def _merge(frame: Frame) -> None:
    if frame.properties is not None:
        frame.properties = list(dict.fromkeys(frame.properties))


goes_out("turns_user_properties_round", "delivers User Properties in reverse", _turn)
goes_out("merges_user_properties", "delivers equal User Properties once", _merge)


whole = mutant("expiry_stands_still", "delivers the expiry interval as it came")


@whole.on_client(PUBLISH)
def _(link: Link, frame: Frame) -> Answer:
    link.world[frame.topic, frame.payload] = frame.get(tables.MESSAGE_EXPIRY)
    return None


@whole.on_broker(PUBLISH)
def _(link: Link, frame: Frame) -> Answer:
    value = link.world.get((frame.topic, frame.payload))
    if value is not None and frame.remove(tables.MESSAGE_EXPIRY):
        frame.properties = [*(frame.properties or ()), (tables.MESSAGE_EXPIRY, value)]
    return None


@on_broker("passes_alias_on", "delivers with a topic alias nobody allowed", PUBLISH)
def _(link: Link, frame: Frame) -> Answer:
    if frame.version == 5:
        frame.set(tables.TOPIC_ALIAS, 1)
    return None


@on_broker("too_many_aliases", "delivers with alias 65535", PUBLISH)
def _(link: Link, frame: Frame) -> Answer:
    if frame.version == 5 and frame.get(tables.TOPIC_ALIAS) is not None:
        frame.set(tables.TOPIC_ALIAS, 65_535)
    return None


@on_broker("alias_0", "delivers with alias 0", PUBLISH)
def _(link: Link, frame: Frame) -> Answer:
    if frame.version == 5 and frame.get(tables.TOPIC_ALIAS) is not None:
        frame.set(tables.TOPIC_ALIAS, 0)
    return None


@on_broker("hides_subscription_ids", "delivers the first Subscription Identifier only", PUBLISH)
def _(link: Link, frame: Frame) -> Answer:
    found = [p for p in frame.properties or () if p[0] == tables.SUBSCRIPTION_ID]
    if found:
        frame.remove(tables.SUBSCRIPTION_ID)
        frame.properties = [*(frame.properties or ()), found[0]]
    return None


# Text and payload.

goes_out("cuts_topics", "delivers with the first 200 bytes of a topic",
         lambda f: setattr(f, "topic", f.topic[:200]))  # fmt: skip
comes_in("skips_marks", "takes U+FEFF out of topics",
         lambda f: setattr(f, "topic", f.topic.replace(BOM, b"")))  # fmt: skip
goes_out("packet_id_1", "delivers everything with packet identifier 1",
         lambda f: setattr(f, "packet_id", 1) if f.packet_id else None)  # fmt: skip
goes_out("another_topic", "delivers under another topic",
         lambda f: setattr(f, "topic", f.topic + b"x"))  # fmt: skip


@on_broker("delivers_at_qos_0", "delivers everything at QoS 0", PUBLISH)
def _(link: Link, frame: Frame) -> Answer:
    number = frame.packet_id
    if frame.qos and number:
        first = PUBACK if frame.qos == 1 else PUBREC
        link.to_broker(bytes([first << 4, 2]) + number.to_bytes(2, "big"))
        frame.qos = 0
        frame.flags &= ~8
    return None


@MUTANTS["delivers_at_qos_0"].on_broker(PUBREL)
def _(link: Link, frame: Frame) -> Answer:
    assert frame.packet_id is not None
    link.to_broker(bytes([PUBCOMP << 4, 2]) + frame.packet_id.to_bytes(2, "big"))
    return DROP


@on_broker("qos_0_with_an_id", "writes a packet identifier into QoS 0", PUBLISH)
def _(link: Link, frame: Frame) -> Answer:
    if not frame.qos:
        frame.packet_id = 7
    return None


# How many, and in which order.


@on_broker(
    "repeats_unasked", "sends a QoS 1 or 2 message again while the connection is up", PUBLISH
)
def _(link: Link, frame: Frame) -> Answer:
    return [frame, frame.copy(flags=frame.flags | 8)] if frame.qos else None


@on_broker("delivers_nothing", "delivers nothing", PUBLISH)
def _(link: Link, frame: Frame) -> Answer:
    return DROP


@on_broker("never_sends_again", "does not send again what was not acknowledged", PUBLISH)
def _(link: Link, frame: Frame) -> Answer:
    return DROP if frame.dup else None


@on_broker("never_sends_pubrel_again", "does not send PUBREL again", PUBREL)
def _(link: Link, frame: Frame) -> Answer:
    key = (link.client_id, frame.packet_id)
    known = link.world.setdefault("released", set())
    if key in known:
        return DROP
    known.add(key)
    return None


@on_broker("swaps_messages", "delivers each message of a topic behind the next one", PUBLISH)
def _(link: Link, frame: Frame) -> Answer:
    key = ("held", frame.topic, frame.qos)
    held = link.notes.pop(key, None)
    if held is not None:
        return [frame, held]
    link.notes[key] = frame

    def give_up() -> None:
        if link.notes.get(key) is frame:
            link.to_client(link.notes.pop(key))

    link.later(0.1, give_up)
    return DROP


@on_broker("swaps_what_comes_again", "sends again in another order than at first", PUBLISH)
def _(link: Link, frame: Frame) -> Answer:
    if not frame.dup:
        return None
    held = link.notes.pop("held", None)
    if held is not None:
        return [frame, held]
    link.notes["held"] = frame

    def give_up() -> None:
        if link.notes.get("held") is frame:
            link.to_client(link.notes.pop("held"))

    link.later(0.1, give_up)
    return DROP


@on_client("aliases_are_for_ever", "does not give an alias a new meaning", PUBLISH)
def _(link: Link, frame: Frame) -> Answer:
    alias = frame.get(tables.TOPIC_ALIAS)
    if alias is not None and frame.topic:
        frame.topic = link.notes.setdefault(("alias", alias), frame.topic)
    return None


@on_client("aliases_outlive_connections", "keeps topic aliases for the next connection", PUBLISH)
def _(link: Link, frame: Frame) -> Answer:
    alias = frame.get(tables.TOPIC_ALIAS)
    key = ("alias", link.client_id, alias)
    if alias is not None and frame.topic:
        link.world[key] = frame.topic
    elif alias is not None:
        frame.topic = link.world.get(key, b"")
    return None


dollar = mutant("dollar_is_a_letter", "takes topics that begin with $ for topics like any others")


@dollar.on_client(PUBLISH, SUBSCRIBE, UNSUBSCRIBE)
def _(link: Link, frame: Frame) -> Answer:
    def plain(topic: bytes) -> bytes:
        special = topic.startswith(b"$") and not topic.startswith((b"$share/", b"$SYS/"))
        return b"dollar" + topic[1:] if special else topic

    frame.topic = plain(frame.topic)
    frame.filters = [(plain(f), o) for f, o in frame.filters]
    return None


@dollar.on_broker(PUBLISH)
def _(link: Link, frame: Frame) -> Answer:
    if frame.topic.startswith(b"dollar"):
        frame.topic = b"$" + frame.topic[6:]
    return None


@on_client("loses_strange_text", "acknowledges text that is not UTF-8 and forgets it", PUBLISH)
def _(link: Link, frame: Frame) -> Answer:
    if frame.number(tables.PAYLOAD_FORMAT) == 1:
        try:
            frame.payload.decode()
        except UnicodeDecodeError:
            if frame.qos and frame.packet_id:
                first = PUBACK if frame.qos == 1 else PUBREC
                link.to_client(bytes([first << 4, 2]) + frame.packet_id.to_bytes(2, "big"))
            return DROP
    return None


@on_broker("adds_user_properties", "adds a User Property to a delivery without properties", PUBLISH)
def _(link: Link, frame: Frame) -> Answer:
    if frame.version == 5 and not frame.properties:
        frame.add(tables.USER_PROPERTY, ("via", "broker"))
    return None


tidy = mutant(
    "retained_messages_end_with_sessions", "removes retained messages with their publisher"
)


@tidy.on_client(PUBLISH)
def _(link: Link, frame: Frame) -> Answer:
    if frame.retain:
        link.notes.setdefault("mine", []).append(frame.topic)
    return None


@tidy.on_client(DISCONNECT)
def _(link: Link, frame: Frame) -> Answer:
    for topic in link.notes.get("mine", ()):
        link.to_broker(wire.publish(topic, b"", version=frame.version, retain=True))
    return None


expired = mutant("what_has_expired_is_gone", "forgets the flow of a message with its expiry")


@expired.on_client(PUBLISH)
def _(link: Link, frame: Frame) -> Answer:
    seconds = frame.number(tables.MESSAGE_EXPIRY)
    if seconds and frame.qos == 2:
        number = frame.packet_id
        link.later(seconds, lambda: link.notes.setdefault("gone", set()).add(number))
        link.world["expires", frame.topic, frame.payload] = seconds
    return None


@expired.on_client(PUBREL)
def _(link: Link, frame: Frame) -> Answer:
    return DROP if frame.packet_id in link.notes.get("gone", ()) else None


@expired.on_broker(PUBLISH)
def _(link: Link, frame: Frame) -> Answer:
    return DROP if frame.dup and ("expires", frame.topic, frame.payload) in link.world else None


begun = mutant("sends_publish_with_pubrel", "sends PUBLISH again although it has sent PUBREL")


@begun.on_broker(PUBLISH)
def _(link: Link, frame: Frame) -> Answer:
    if frame.qos == 2:
        link.world[link.client_id, frame.packet_id] = frame
    return None


@begun.on_broker(PUBREL)
def _(link: Link, frame: Frame) -> Answer:
    key = link.client_id, frame.packet_id
    first = link.world.get(key)
    if ("released", key) in link.world and first is not None:
        return [first.copy(flags=first.flags | 8), frame]
    link.world["released", key] = True
    return None


impatient = mutant("keeps_nothing_for_the_absent", "delivers only to who is there already")


@impatient.on_client(PUBLISH)
def _(link: Link, frame: Frame) -> Answer:
    number = link.world["published"] = link.world.get("published", 0) + 1
    link.world["number", frame.topic, frame.payload] = number
    return None


def _came_in(link: Link) -> None:
    link.notes["since"] = link.world.get("published", 0)


impatient.opened = _came_in


@impatient.on_broker(PUBLISH)
def _(link: Link, frame: Frame) -> Answer:
    number = link.world.get(("number", frame.topic, frame.payload))
    late = number is not None and number <= link.notes["since"]
    return DROP if late and not frame.retain else None

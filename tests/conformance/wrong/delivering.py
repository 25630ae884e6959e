"""Brokers that get PUBLISH wrong, on its way in or on its way out."""

from collections.abc import Callable

from conformance import tables, wire
from tests.conformance.wrong.frames import PUBACK, PUBCOMP, PUBLISH, PUBREC, PUBREL, Frame
from tests.conformance.wrong.mutant import DROP, MUTANTS, Answer, Link, mutant, on_broker, on_client

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
comes_in("retains_everything", "takes every PUBLISH for one with RETAIN 1", _flags(1, on=True))
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


@on_broker("wrong_subscription_id", "delivers another Subscription Identifier", PUBLISH)
def _(link: Link, frame: Frame) -> Answer:
    if frame.remove(tables.SUBSCRIPTION_ID):
        frame.add(tables.SUBSCRIPTION_ID, 77)
    return None


# Text and payload.

comes_in("spoils_payloads", "loses the last byte of every payload",
         lambda f: setattr(f, "payload", f.payload[:-1] or f.payload))  # fmt: skip
comes_in("cuts_topics", "keeps the first 200 bytes of a topic",
         lambda f: setattr(f, "topic", f.topic[:200]))  # fmt: skip
comes_in("skips_marks", "takes U+FEFF out of topics",
         lambda f: setattr(f, "topic", f.topic.replace(BOM, b"")))  # fmt: skip
goes_out("trims_slashes", "delivers topics without a slash at an end",
         lambda f: setattr(f, "topic", f.topic.strip(b"/")))  # fmt: skip
goes_out("packet_id_0", "delivers with packet identifier 0",
         lambda f: setattr(f, "packet_id", 0) if f.packet_id else None)  # fmt: skip
goes_out("packet_id_1", "delivers everything with packet identifier 1",
         lambda f: setattr(f, "packet_id", 1) if f.packet_id else None)  # fmt: skip
goes_out("topic_with_wildcard", "delivers to a topic with '#'",
         lambda f: setattr(f, "topic", f.topic + b"#"))  # fmt: skip
goes_out("another_topic", "delivers under another topic",
         lambda f: setattr(f, "topic", f.topic + b"x"))  # fmt: skip


@on_broker("delivers_at_qos_3", "delivers with both QoS bits set", PUBLISH)
def _(link: Link, frame: Frame) -> Answer:
    if frame.qos == 2:
        frame.flags |= 6
    return None


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


@on_broker("delivers_twice", "delivers every message at QoS 0 twice", PUBLISH)
def _(link: Link, frame: Frame) -> Answer:
    return [frame, frame] if not frame.qos else None


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


@on_broker("swaps_messages", "delivers each message behind the next one", PUBLISH)
def _(link: Link, frame: Frame) -> Answer:
    held = link.notes.pop("held", None)
    if held is not None:
        return [frame, held]
    link.notes["held"] = frame

    def give_up() -> None:
        if link.notes.get("held") is frame:
            link.to_client(link.notes.pop("held"))

    link.later(0.1, give_up)
    return DROP


@on_client("keeps_nothing_for_qos_0", "does not deliver QoS 0", PUBLISH)
def _(link: Link, frame: Frame) -> Answer:
    return DROP if not frame.qos else None


again = mutant("another_id_again", "sends again under another packet identifier")


@again.on_broker(PUBLISH)
def _(link: Link, frame: Frame) -> Answer:
    if frame.dup and frame.packet_id:
        frame.packet_id ^= 0x2000
    return None


@again.on_client(PUBACK, PUBREC, PUBCOMP)
def _(link: Link, frame: Frame) -> Answer:
    if frame.packet_id and frame.packet_id & 0x2000:
        frame.packet_id ^= 0x2000
    return None

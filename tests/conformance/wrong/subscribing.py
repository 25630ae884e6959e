"""Brokers that get SUBSCRIBE and UNSUBSCRIBE wrong."""

from collections.abc import Callable

from conformance import tables
from tests.conformance.wrong.frames import (
    PUBACK,
    PUBLISH,
    PUBREC,
    SUBACK,
    SUBSCRIBE,
    UNSUBACK,
    UNSUBSCRIBE,
    Frame,
)
from tests.conformance.wrong.mutant import (
    DROP,
    MUTANTS,
    Answer,
    Link,
    Mutant,
    mutant,
    on_broker,
    on_client,
)

NO_LOCAL, RETAIN_AS_PUBLISHED, RETAIN_HANDLING = 4, 8, 0x30


def options(name: str, sentence: str, change: Callable[[int], int]) -> None:
    """Register a broker that takes other subscription options than were sent."""

    @on_client(name, sentence, SUBSCRIBE)
    def _(link: Link, frame: Frame) -> Answer:
        # In 3.1.1 there is nothing but the QoS.
        mask = 0xFF if frame.version == 5 else 0x03
        frame.filters = [(f, change(o) & mask | o & ~mask) for f, o in frame.filters]
        return None


def filters(name: str, sentence: str, change: Callable[[bytes], bytes]) -> None:
    """Register a broker that takes other filters than were sent in SUBSCRIBE."""

    @on_client(name, sentence, SUBSCRIBE)
    def _(link: Link, frame: Frame) -> Answer:
        frame.filters = [(change(f), o) for f, o in frame.filters]
        return None


options("grants_qos_2", "grants QoS 2 to everybody", lambda o: (o & ~3) | 2 if o & 3 < 3 else o)
options("ignores_no_local", "does not know No Local", lambda o: o & ~NO_LOCAL)
options("ignores_rap", "does not know Retain As Published", lambda o: o & ~RETAIN_AS_PUBLISHED)
options("handling_2_is_0", "takes Retain Handling 2 for 0", lambda o: o & ~0x20)
options(
    "handling_1_is_0",
    "takes Retain Handling 1 for 0",
    lambda o: o & ~0x10 if o & 0x30 == 0x10 else o,
)
options(
    "handling_0_is_1",
    "sends retained messages for new subscriptions only",
    lambda o: o | 0x10 if o < 16 else o,
)
options("tolerates_qos_3", "takes a requested QoS of 3 for 2", lambda o: (o & ~3) | min(o & 3, 2))
options("tolerates_reserved_options", "does not mind reserved bits in options", lambda o: o & 0x3F)
options(
    "tolerates_handling_3",
    "takes Retain Handling 3 for 2",
    lambda o: o & ~0x10 if o & 0x30 == 0x30 else o,
)


def _in_group(topic_filter: bytes, group: bytes) -> bytes:
    """Return a shared filter with something else in place of `$share/NAME/`."""
    parts = topic_filter.split(b"/", 2)
    return group + parts[2] if parts[0] == b"$share" and len(parts) > 2 else topic_filter


filters("shares_with_everybody", "gives shared messages to every member",
        lambda f: _in_group(f, b""))  # fmt: skip
filters("plus_is_number_sign", "takes '+' for '#'",
        lambda f: f[: f.index(b"+")] + b"#" if b"+" in f else f)  # fmt: skip
filters("number_sign_is_plus", "takes '#' for '+'", lambda f: f.replace(b"#", b"+"))
filters("plus_is_a_character", "takes '+' for a character like any other",
        lambda f: f.replace(b"+", b"%"))  # fmt: skip
filters("wildcards_at_the_end_only", "knows '#' but not the level above it",
        lambda f: f[:-1] + b"+/#" if f.endswith(b"/#") else f)  # fmt: skip
filters("one_group", "knows one group per filter, whatever its share name",
        lambda f: _in_group(f, b"$share/all/"))  # fmt: skip


@on_client("any_share_name", "takes every share name, and none, for one", SUBSCRIBE)
def _(link: Link, frame: Frame) -> Answer:
    frame.filters = [
        (b"$share/any/x" if f.startswith(b"$share") and not _is_shared(f) else f, o)
        for f, o in frame.filters
    ]
    return None


def _is_shared(topic_filter: bytes) -> bool:
    parts = topic_filter.split(b"/", 2)
    return len(parts) == 3 and bool(parts[1]) and bool(parts[2]) and not set(b"+#") & set(parts[1])


@on_client("filters_know_no_case", "takes small letters for large ones", SUBSCRIBE, PUBLISH)
def _(link: Link, frame: Frame) -> Answer:
    frame.topic = frame.topic.upper()
    frame.filters = [(f.upper() if b"$" not in f else f, o) for f, o in frame.filters]
    return None


@on_client("forgets_subscription_ids", "does not keep Subscription Identifiers", SUBSCRIBE)
def _(link: Link, frame: Frame) -> Answer:
    frame.remove(tables.SUBSCRIPTION_ID)
    return None


@on_client(
    "keeps_old_subscription_ids",
    "keeps the identifier where a filter comes again without",
    SUBSCRIBE,
)
def _(link: Link, frame: Frame) -> Answer:
    given = frame.get(tables.SUBSCRIPTION_ID)
    for text, _ in frame.filters:
        if given is not None:
            link.world[link.client_id, text] = given
        elif (link.client_id, text) in link.world:
            frame.properties = [(tables.SUBSCRIPTION_ID, link.world[link.client_id, text])]
    return None


first_only = mutant(
    "subscribes_to_first_filter_only", "takes the first filter of SUBSCRIBE, says yes to all"
)


@first_only.on_client(SUBSCRIBE)
def _(link: Link, frame: Frame) -> Answer:
    link.notes[frame.packet_id] = [o & 3 for _, o in frame.filters[1:]]
    frame.filters = frame.filters[:1]
    return None


@first_only.on_broker(SUBACK)
def _(link: Link, frame: Frame) -> Answer:
    frame.codes += link.notes.pop(frame.packet_id, [])
    return None


def acknowledge(frame: Frame, codes: list[int]) -> Frame:
    """Return the SUBACK or UNSUBACK of a request."""
    first = (frame.kind + 1) << 4
    empty = Frame(
        bytes([first, 3, 0, 1, 0]) if frame.version == 5 else bytes([first, 2, 0, 1]), frame.version
    )
    return empty.copy(packet_id=frame.packet_id, codes=codes)


@on_client("subscribes_once", "does not read a SUBSCRIBE for a filter it has", SUBSCRIBE)
def _(link: Link, frame: Frame) -> Answer:
    known = link.notes.setdefault("known", set())
    if all(text in known for text, _ in frame.filters) and frame.filters:
        link.to_client(acknowledge(frame, [o & 3 for _, o in frame.filters]))
        return DROP
    known.update(text for text, _ in frame.filters)
    return None


@on_client(
    "resubscribes_with_a_gap", "ends a subscription for a while before it replaces it", SUBSCRIBE
)
def _(link: Link, frame: Frame) -> Answer:
    known = link.notes.setdefault("known", set())
    again = [(text, 0) for text, _ in frame.filters if text in known]
    known.update(text for text, _ in frame.filters)
    if not again:
        return None
    number = 65_000
    link.notes["mine"] = number
    link.to_broker(
        frame.copy(
            kind=UNSUBSCRIBE,
            packet_id=number,
            filters=again,
            properties=[] if frame.version == 5 else None,
        )
    )
    link.later(0.4, lambda: link.to_broker(frame))
    return DROP


def _not_mine(link: Link, frame: Frame) -> Answer:
    return DROP if frame.packet_id == link.notes.get("mine") else None


MUTANTS["resubscribes_with_a_gap"].on_broker(UNSUBACK)(_not_mine)


@on_client("never_unsubscribes", "answers UNSUBSCRIBE and goes on", UNSUBSCRIBE)
def _(link: Link, frame: Frame) -> Answer:
    link.to_client(acknowledge(frame, [0] * len(frame.filters) if frame.version == 5 else []))
    return DROP


@on_client(
    "unsubscribes_first_only", "ends the first of several filters, says yes to all", UNSUBSCRIBE
)
def _(link: Link, frame: Frame) -> Answer:
    link.notes[frame.packet_id] = len(frame.filters) - 1
    frame.filters = frame.filters[:1]
    return None


@MUTANTS["unsubscribes_first_only"].on_broker(UNSUBACK)
def _(link: Link, frame: Frame) -> Answer:
    if frame.version == 5:
        frame.codes += [0] * int(link.notes.pop(frame.packet_id, 0))
    return None


@on_client(
    "unsubscribes_by_match", "ends every subscription the filter of UNSUBSCRIBE covers", UNSUBSCRIBE
)
def _(link: Link, frame: Frame) -> Answer:
    from conformance.rules import matches

    asked = [text.decode() for text, _ in frame.filters]
    more = [k for k in link.notes.get("all", ()) if any(matches(a, k) for a in asked)]
    frame.filters += [(text.encode(), 0) for text in more if text not in asked]
    return None


@MUTANTS["unsubscribes_by_match"].on_client(SUBSCRIBE)
def _(link: Link, frame: Frame) -> Answer:
    link.notes.setdefault("all", []).extend(
        text.decode("utf-8", "replace") for text, _ in frame.filters
    )
    return None


@on_client("subscriptions_fade", "ends a subscription after 2 seconds", SUBSCRIBE)
def _(link: Link, frame: Frame) -> Answer:
    end = frame.copy(
        kind=UNSUBSCRIBE, packet_id=65_000, properties=[] if frame.version == 5 else None
    )
    link.notes["mine"] = 65_000
    link.later(2.0, lambda: link.to_broker(end))
    return None


MUTANTS["subscriptions_fade"].on_broker(UNSUBACK)(_not_mine)


# Answers.


@on_broker("refuses_in_silence", "does not answer a SUBSCRIBE it refuses", SUBACK)
def _(link: Link, frame: Frame) -> Answer:
    return DROP if frame.codes and min(frame.codes) >= 0x80 else None


strict = mutant("all_or_nothing", "refuses a subscription it cannot grant at the QoS asked for")


@strict.on_client(SUBSCRIBE)
def _(link: Link, frame: Frame) -> Answer:
    link.notes["asked", frame.packet_id] = [o & 3 for _, o in frame.filters]
    return None


@strict.on_broker(SUBACK)
def _(link: Link, frame: Frame) -> Answer:
    asked = link.notes.pop(("asked", frame.packet_id), [])
    frame.codes = [0x80 if g < a else g for g, a in zip(frame.codes, asked, strict=False)]
    return None


@on_broker("never_suback", "does not answer SUBSCRIBE", SUBACK)
def _(link: Link, frame: Frame) -> Answer:
    return DROP


@on_broker("never_unsuback", "does not answer UNSUBSCRIBE", UNSUBACK)
def _(link: Link, frame: Frame) -> Answer:
    return DROP


@on_broker("suback_with_another_id", "answers SUBSCRIBE with another packet identifier", SUBACK)
def _(link: Link, frame: Frame) -> Answer:
    frame.packet_id = (frame.packet_id or 0) ^ 0x4000
    return None


@on_broker(
    "unsuback_with_another_id", "answers UNSUBSCRIBE with another packet identifier", UNSUBACK
)
def _(link: Link, frame: Frame) -> Answer:
    frame.packet_id = (frame.packet_id or 0) ^ 0x4000
    return None


@on_broker("one_suback_code", "says one code for all filters", SUBACK)
def _(link: Link, frame: Frame) -> Answer:
    frame.codes = frame.codes[:1]
    return None


@on_broker("suback_backwards", "says the codes of SUBACK in reverse", SUBACK)
def _(link: Link, frame: Frame) -> Answer:
    frame.codes.reverse()
    return None


@on_broker("unsuback_backwards", "says the codes of UNSUBACK in reverse", UNSUBACK)
def _(link: Link, frame: Frame) -> Answer:
    frame.codes.reverse()
    return None


@on_broker("strange_suback_code", "says 0x03 in SUBACK", SUBACK)
def _(link: Link, frame: Frame) -> Answer:
    frame.codes = [3 for _ in frame.codes]
    return None


@on_broker("strange_unsuback_code", "says 0x01 in UNSUBACK", UNSUBACK)
def _(link: Link, frame: Frame) -> Answer:
    frame.codes = [1 for _ in frame.codes]
    return None


@on_broker("suback_says_yes", "grants in words what it refuses", SUBACK)
def _(link: Link, frame: Frame) -> Answer:
    frame.codes = [0 if code > 2 else code for code in frame.codes]
    return None


@on_broker("two_unsubacks", "sends UNSUBACK twice", UNSUBACK)
def _(link: Link, frame: Frame) -> Answer:
    return [frame, frame]


@on_broker("explains_suback", "adds a long Reason String to every SUBACK", SUBACK)
def _(link: Link, frame: Frame) -> Answer:
    if frame.version == 5:
        frame.add(tables.REASON_STRING, "r" * 300)
    return None


@on_broker("adorns_suback", "adds large User Properties to every SUBACK", SUBACK)
def _(link: Link, frame: Frame) -> Answer:
    if frame.version == 5:
        frame.add(tables.USER_PROPERTY, ("u" * 150, "v" * 150))
    return None


@on_broker("explains_unsuback", "adds a long Reason String to every UNSUBACK", UNSUBACK)
def _(link: Link, frame: Frame) -> Answer:
    if frame.version == 5:
        frame.add(tables.REASON_STRING, "r" * 300)
    return None


@on_broker("adorns_unsuback", "adds large User Properties to every UNSUBACK", UNSUBACK)
def _(link: Link, frame: Frame) -> Answer:
    if frame.version == 5:
        frame.add(tables.USER_PROPERTY, ("u" * 150, "v" * 150))
    return None


@on_broker("suback_with_4_zeros", "pads the Remaining Length of SUBACK", SUBACK)
def _(link: Link, frame: Frame) -> Answer:
    raw = frame.encode()
    return [bytes([raw[0], raw[1] | 0x80, 0]) + raw[2:]]


@on_broker("suback_flags", "sets a reserved header bit in SUBACK", SUBACK)
def _(link: Link, frame: Frame) -> Answer:
    frame.flags = 2
    return None


@on_broker("suback_without_properties", "leaves out the property length of SUBACK", SUBACK)
def _(link: Link, frame: Frame) -> Answer:
    frame.properties = None
    return None


def _knows_what_is_open(wrong: Mutant) -> None:
    """Note per member of a group what it was sent, in `link.notes["open"]`."""

    @wrong.on_client(SUBSCRIBE)
    def _(link: Link, frame: Frame) -> Answer:
        if any(f.startswith(b"$share/") for f, _ in frame.filters):
            link.notes.setdefault("open", {})
        return None

    @wrong.on_broker(PUBLISH)
    def _(link: Link, frame: Frame) -> Answer:
        if "open" in link.notes and frame.packet_id:
            link.notes["open"][frame.packet_id] = frame
        return None


def _give_to_others(link: Link, frame: Frame) -> None:
    for other in link.links:
        if (
            other is not link
            and "open" in other.notes
            and other.client_id[:8] == link.client_id[:8]
        ):
            other.to_client(frame.copy(flags=0, packet_id=None))


moving = mutant("moves_begun_messages", "gives what a member has not finished to other members")
_knows_what_is_open(moving)


@moving.on_client(PUBACK, PUBREC)
def _(link: Link, frame: Frame) -> Answer:
    link.notes.get("open", {}).pop(frame.packet_id, None)
    return None


def _move(link: Link) -> None:
    for frame in link.notes.get("open", {}).values():
        _give_to_others(link, frame)


moving.client_gone = _move

offering = mutant("moves_refused_messages", "gives what a member refuses to other members")
_knows_what_is_open(offering)


@offering.on_client(PUBACK, PUBREC)
def _(link: Link, frame: Frame) -> Answer:
    refused = link.notes.get("open", {}).pop(frame.packet_id, None)
    if refused is not None and (frame.reason or 0) >= 0x80:
        _give_to_others(link, refused)
    return None


@on_broker("never_moves_messages", "gives a message to one member and then to no other", PUBLISH)
def _(link: Link, frame: Frame) -> Answer:
    key = link.client_id[:8], frame.topic, frame.payload
    return None if link.world.setdefault(key, link.client_id) == link.client_id else DROP


@on_broker(
    "copies_with_all_ids", "sends a copy per subscription, with the identifiers of all", PUBLISH
)
def _(link: Link, frame: Frame) -> Answer:
    found = [p for p in frame.properties or () if p[0] == tables.SUBSCRIPTION_ID]
    more = frame.copy(flags=frame.flags & 1, packet_id=None)
    return [frame, *[more] * (len(found) - 1)] if len(found) > 1 else None

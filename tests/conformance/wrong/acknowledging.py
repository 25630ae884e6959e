"""Brokers that get acknowledgements wrong."""

from conformance import tables
from tests.conformance.wrong.frames import (
    ACKS,
    PINGREQ,
    PINGRESP,
    PUBACK,
    PUBCOMP,
    PUBLISH,
    PUBREC,
    PUBREL,
    SUBACK,
    UNSUBACK,
    Frame,
)
from tests.conformance.wrong.mutant import DROP, Answer, Link, counter, mutant, on_broker, on_client

NAMES = {PUBACK: "puback", PUBREC: "pubrec", PUBREL: "pubrel", PUBCOMP: "pubcomp"}

AGAIN = 64_000  # packet identifier of what a mutant publishes on its own


def wrong_packets(kind: int, word: str) -> None:
    """Register brokers that send this kind of acknowledgement wrong."""

    @on_broker(f"strange_{word}_code", f"sends {word.upper()} with a reason code of no table", kind)
    def _(link: Link, frame: Frame) -> Answer:
        if frame.version == 5:
            frame.reason = 0x42
        return None

    @on_broker(f"explains_{word}", f"adds a long Reason String to every {word.upper()}", kind)
    def _(link: Link, frame: Frame) -> Answer:
        if frame.version == 5:
            frame.add(tables.REASON_STRING, "r" * 300)
        return None

    @on_broker(f"adorns_{word}", f"adds large User Properties to every {word.upper()}", kind)
    def _(link: Link, frame: Frame) -> Answer:
        if frame.version == 5:
            frame.add(tables.USER_PROPERTY, ("u" * 150, "v" * 150))
        return None


def swaps(kind: int, word: str) -> None:
    """Register a broker that sends this kind of acknowledgement out of order."""

    @on_broker(f"swaps_{word}s", f"sends each {word.upper()} behind the next one", kind)
    def _(link: Link, frame: Frame) -> Answer:
        held = link.notes.pop("held", None)
        if held is not None:
            return [frame, held]
        link.notes["held"] = frame

        def give_up() -> None:
            if link.notes.get("held") is frame:
                link.to_client(link.notes.pop("held"))

        link.later(0.3, give_up)
        return DROP


def reads_none(kind: int, word: str) -> None:
    """Register a broker that does not read this kind of acknowledgement."""

    @on_client(f"reads_no_{word}", f"does not read {word.upper()}", kind)
    def _(link: Link, frame: Frame) -> Answer:
        return DROP


def sends_none(kind: int, word: str) -> None:
    """Register a broker that does not send this kind of acknowledgement."""

    @on_broker(f"never_{word}", f"never sends {word.upper()}", kind)
    def _(link: Link, frame: Frame) -> Answer:
        return DROP


for _kind, _word in NAMES.items():
    wrong_packets(_kind, _word)
    if _kind != PUBCOMP:
        swaps(_kind, _word)
    if _kind in (PUBACK, PUBREC):
        reads_none(_kind, _word)
    if _kind != PUBACK:
        sends_none(_kind, _word)


@on_broker("puback_with_another_id", "sends PUBACK with another identifier", PUBACK)
def _(link: Link, frame: Frame) -> Answer:
    frame.packet_id = (frame.packet_id or 0) ^ 0x4000
    return None


@on_client("pubrec_is_success", "does not read the reason code of PUBREC", PUBREC)
def _(link: Link, frame: Frame) -> Answer:
    frame.reason = frame.properties = None
    return None


@on_broker("hides_unknown_ids", "acknowledges an unknown identifier with success", PUBREL, PUBCOMP)
def _(link: Link, frame: Frame) -> Answer:
    if frame.reason == 0x92:
        frame.reason = 0
    return None


@on_broker(
    "explains_everything", "adds a Reason String to every acknowledgement", *ACKS, SUBACK, UNSUBACK
)
def _(link: Link, frame: Frame) -> Answer:
    if frame.version == 5:
        frame.add(tables.REASON_STRING, "because")
    return None


@on_broker(
    "closes_after_an_error", "ends the connection after it has refused a PUBLISH", PUBACK, PUBREC
)
def _(link: Link, frame: Frame) -> Answer:
    if frame.reason is not None and frame.reason >= 0x80:
        link.later(0, link.cut)
    return None


refused = mutant(
    "an_error_frees_nothing", "takes an identifier for open after a PUBREC with an error"
)


@refused.on_broker(PUBREC)
def _(link: Link, frame: Frame) -> Answer:
    if frame.reason is not None and frame.reason >= 0x80:
        link.notes.setdefault("refused", set()).add(frame.packet_id)
    return None


@refused.on_client(PUBLISH)
def _(link: Link, frame: Frame) -> Answer:
    if frame.qos and frame.packet_id in link.notes.get("refused", ()):
        assert frame.packet_id is not None
        link.to_client(b"\x50\x02" + frame.packet_id.to_bytes(2, "big"))
        return DROP
    return None


# PINGREQ.


@on_client("reads_no_pingreq", "does not answer PINGREQ", PINGREQ)
def _(link: Link, frame: Frame) -> Answer:
    return DROP


@on_broker("two_pingresps", "answers PINGREQ twice", PINGRESP)
def _(link: Link, frame: Frame) -> Answer:
    return [frame, frame]


@on_client("tires_of_pings", "does not answer a PINGREQ that comes soon after another", PINGREQ)
def _(link: Link, frame: Frame) -> Answer:
    if link.last is not None and link.last.kind == PINGREQ:
        return DROP
    return None


# QoS 2, the receiver's side.


twice = mutant(
    "qos_2_is_qos_1", "delivers a QoS 2 message again when it comes again with the same id"
)


@twice.on_client(PUBLISH)
def _(link: Link, frame: Frame) -> Answer:
    if frame.qos == 2:
        again = counter(link.world, (link.client_id, frame.packet_id))
        if again:
            link.to_broker(frame.copy(flags=2 | frame.flags & 1, packet_id=AGAIN))
    return None


@twice.on_broker(PUBACK)
def _(link: Link, frame: Frame) -> Answer:
    return DROP if frame.packet_id == AGAIN else None


@twice.on_client(PUBREL)
def _(link: Link, frame: Frame) -> Answer:
    link.world.get("counts", {}).pop((link.client_id, frame.packet_id), None)
    return None


deaf = mutant("pubrel_frees_nothing", "takes an identifier for open although PUBREL has come")


@deaf.on_client(PUBREL)
def _(link: Link, frame: Frame) -> Answer:
    link.notes.setdefault("done", set()).add(frame.packet_id)
    return None


@deaf.on_client(PUBLISH)
def _(link: Link, frame: Frame) -> Answer:
    if frame.qos == 2 and frame.packet_id in link.notes.get("done", ()):
        assert frame.packet_id is not None
        link.to_client(b"\x50\x02" + frame.packet_id.to_bytes(2, "big"))
        link.notes.setdefault("mine", set()).add(frame.packet_id)
        return DROP
    return None


@on_client(
    "puback_frees_nothing", "takes a QoS 1 PUBLISH with an identifier it knows for a copy", PUBLISH
)
def _(link: Link, frame: Frame) -> Answer:
    if frame.qos != 1:
        return None
    done = link.notes.setdefault("done", set())
    if frame.packet_id in done:
        assert frame.packet_id is not None
        link.to_client(b"\x40\x02" + frame.packet_id.to_bytes(2, "big"))
        return DROP
    done.add(frame.packet_id)
    return None


@on_client("dup_is_known", "takes a QoS 1 PUBLISH with DUP for a copy it has had", PUBLISH)
def _(link: Link, frame: Frame) -> Answer:
    if frame.qos == 1 and frame.dup:
        assert frame.packet_id is not None
        link.to_client(b"\x40\x02" + frame.packet_id.to_bytes(2, "big"))
        return DROP
    return None


@on_client("acknowledges_and_forgets", "answers QoS 1 and delivers nothing of it", PUBLISH)
def _(link: Link, frame: Frame) -> Answer:
    if frame.qos == 1:
        assert frame.packet_id is not None
        link.to_client(b"\x40\x02" + frame.packet_id.to_bytes(2, "big"))
        return DROP
    return None


@on_client("qos_1_is_answered_with_pubrec", "answers QoS 1 with PUBREC", PUBLISH)
def _(link: Link, frame: Frame) -> Answer:
    if frame.qos == 1:
        frame.flags ^= 6
    return None


@on_client("reads_long_forms_only", "does not read an acknowledgement without a reason", *ACKS)
def _(link: Link, frame: Frame) -> Answer:
    return DROP if link.version == 5 and frame.reason is None else None

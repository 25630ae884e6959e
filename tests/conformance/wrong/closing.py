"""Brokers that end connections when they should not, or do not when they should."""

from tests.conformance.wrong.frames import (
    AUTH,
    CONNACK,
    CONNECT,
    DISCONNECT,
    PUBACK,
    PUBCOMP,
    PUBLISH,
    PUBREL,
    SUBSCRIBE,
    UNSUBSCRIBE,
    Frame,
    is_sound,
)
from tests.conformance.wrong.mutant import (
    DROP,
    Answer,
    Link,
    mutant,
    on_broker,
    on_client,
)
from tests.conformance.wrong.toys import answer

STAYS = {
    PUBLISH: "publish",
    PUBACK: "puback",
    PUBCOMP: "pubcomp",
    SUBSCRIBE: "subscribe",
    UNSUBSCRIBE: "unsubscribe",
    DISCONNECT: "disconnect",
    AUTH: "auth",
}
FLAGS = {
    PUBREL: "pubrel",
    SUBSCRIBE: "subscribe",
    UNSUBSCRIBE: "unsubscribe",
    DISCONNECT: "disconnect",
    AUTH: "auth",
}


def stays(kind: int, word: str) -> None:
    """Register a broker that goes on after a packet that should have been the last."""
    patient = mutant(
        f"stays_after_{word}",
        f"keeps the connection open after a {word.upper()} it must not take",
    )
    patient.keeps_open = lambda link: link.last is not None and link.last.kind == kind

    @patient.on_broker(DISCONNECT)
    def _(link: Link, frame: Frame) -> Answer:
        return DROP if link.last is not None and link.last.kind == kind else None


def takes_any_flags(kind: int, word: str) -> None:
    """Register a broker that does not look at reserved header flags."""

    @on_client(
        f"{word}_flags_do_not_matter", f"takes {word.upper()} with any header flags", kind, bad=True
    )
    def _(link: Link, frame: Frame) -> Answer:
        flags = 2 if kind in (PUBREL, SUBSCRIBE, UNSUBSCRIBE) else 0
        return [bytes([kind << 4 | flags]) + frame.raw[1:]]


for _kind, _word in STAYS.items():
    stays(_kind, _word)
for _kind, _word in FLAGS.items():
    takes_any_flags(_kind, _word)


@on_client("takes_bad_connect", "answers a malformed CONNECT like a good one", CONNECT, bad=True)
def _(link: Link, frame: Frame) -> Answer:
    if is_sound(frame.raw, link.version):
        return None
    link.to_client(answer(frame.raw, link.version))
    return DROP


after = mutant("stays_after_its_disconnect", "keeps the connection open after its own DISCONNECT")
after.keeps_open = lambda link: bool(link.notes.get("gone"))


@after.on_broker(DISCONNECT)
def _(link: Link, frame: Frame) -> Answer:
    link.notes["gone"] = True
    return None


refusal = mutant("stays_after_refusal", "keeps the connection open after a CONNACK that refuses")
refusal.keeps_open = lambda link: bool(link.notes.get("refused"))


@refusal.on_broker(CONNACK)
def _(link: Link, frame: Frame) -> Answer:
    link.notes["refused"] = bool(frame.reason)
    return None


two = mutant("two_at_once", "keeps both connections of one client id")
two.keeps_open = lambda link: link.last is not None and link.last.kind in (CONNECT, SUBSCRIBE)


@two.on_broker(DISCONNECT)
def _(link: Link, frame: Frame) -> Answer:
    return DROP if frame.reason == 0x8E else None


@on_broker("says_goodbye_with_0", "says 0x00 in its DISCONNECT", DISCONNECT)
def _(link: Link, frame: Frame) -> Answer:
    frame.reason = 0
    return None


@on_broker("says_goodbye_with_4", "sends DISCONNECT with a reason code of clients", DISCONNECT)
def _(link: Link, frame: Frame) -> Answer:
    frame.reason = 4
    return None


@on_broker("says_goodbye_with_80", "says 0x80 in every DISCONNECT", DISCONNECT)
def _(link: Link, frame: Frame) -> Answer:
    frame.reason = 0x80
    return None


@on_broker("talks_after_goodbye", "sends PINGRESP after its DISCONNECT", DISCONNECT)
def _(link: Link, frame: Frame) -> Answer:
    return [frame, b"\xd0\x00"]


hello = mutant("disconnect_before_connack", "sends DISCONNECT to who was not accepted")


@hello.on_broker(CONNACK)
def _(link: Link, frame: Frame) -> Answer:
    return [b"\xe0\x01\x87"] if frame.reason and frame.version == 5 else None


@on_client("reads_no_disconnect", "does not read DISCONNECT", DISCONNECT)
def _(link: Link, frame: Frame) -> Answer:
    return DROP


polite = mutant("stays_after_goodbye", "keeps the connection open after a client's DISCONNECT")
polite.keeps_open = lambda link: link.last is not None and link.last.kind == DISCONNECT

one_for_all = mutant("one_for_all", "ends every connection when one has to end")


@one_for_all.on_broker(DISCONNECT)
def _(link: Link, frame: Frame) -> Answer:
    for other in list(link.links):
        if other.client_id[:8] == link.client_id[:8] and other is not link:
            other.cut()
    return None


def _cut_all(link: Link) -> bool:
    if link.last is not None and link.last.kind != DISCONNECT:
        for other in list(link.links):
            if other.client_id[:8] == link.client_id[:8] and other is not link:
                other.cut()
    return False


one_for_all.keeps_open = _cut_all


mutant("wants_whole_packets", "wants each packet whole in one segment").wants_whole_packets = True

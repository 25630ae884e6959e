"""Brokers that get AUTH wrong."""

from conformance import tables
from tests.conformance.wrong.frames import AUTH, CONNACK, CONNECT, Frame
from tests.conformance.wrong.mutant import (
    DROP,
    MUTANTS,
    Answer,
    Link,
    mutant,
    on_broker,
    on_client,
)
from tests.conformance.wrong.toys import answer


@on_broker("lets_in_without_proof", "accepts where it should ask for more", AUTH)
def _(link: Link, frame: Frame) -> Answer:
    if frame.reason == 0x18 and not link.notes.get("in"):
        link.notes["in"] = True
        method = frame.get(tables.AUTH_METHOD) or b""
        properties = [(tables.AUTH_METHOD, method)]
        return [Frame(b"\x20\x03\0\0\0", 5).copy(properties=properties)]
    return None


@on_client("every_auth_is_continue", "does not read the reason code of AUTH", AUTH)
def _(link: Link, frame: Frame) -> Answer:
    if not link.notes.get("in"):
        frame.reason = 0x18
    return None


@MUTANTS["every_auth_is_continue"].on_broker(CONNACK)
def _(link: Link, frame: Frame) -> Answer:
    link.notes["in"] = True
    return None


@on_broker("auth_without_method", "leaves the method out of AUTH", AUTH)
def _(link: Link, frame: Frame) -> Answer:
    frame.remove(tables.AUTH_METHOD)
    return None


@on_client("method_may_change", "does not compare the methods of AUTH and CONNECT", CONNECT, AUTH)
def _(link: Link, frame: Frame) -> Answer:
    mine = frame.get(tables.AUTH_METHOD)
    if frame.kind == CONNECT:
        link.notes["method"] = mine
    elif link.notes.get("method") and mine is not None:
        frame.remove(tables.AUTH_METHOD)
        frame.properties = [
            *(frame.properties or ()),
            (tables.AUTH_METHOD, link.notes["method"]),
        ]
    return None


@on_client("reads_no_auth", "passes over AUTH", AUTH)
def _(link: Link, frame: Frame) -> Answer:
    return DROP


@on_broker("strange_auth_code", "sends AUTH with a reason code of no table", AUTH)
def _(link: Link, frame: Frame) -> Answer:
    frame.reason = 0x01
    return None


@on_broker("explains_auth", "adds a long Reason String to every AUTH", AUTH)
def _(link: Link, frame: Frame) -> Answer:
    frame.add(tables.REASON_STRING, "r" * 300)
    return None


@on_broker("adorns_auth", "adds large User Properties to every AUTH", AUTH)
def _(link: Link, frame: Frame) -> Answer:
    frame.add(tables.USER_PROPERTY, ("u" * 150, "v" * 150))
    return None


eager = mutant("acts_during_auth", "answers other packets before the exchange is over")


@eager.on_broker(CONNACK)
def _(link: Link, frame: Frame) -> Answer:
    link.notes["in"] = True
    return None


@eager.on_client()
def _(link: Link, frame: Frame) -> Answer:
    if frame.kind in (CONNECT, AUTH) or link.notes.get("in") or link.version != 5:
        return None
    link.to_client(answer(frame.raw, 5))
    return DROP

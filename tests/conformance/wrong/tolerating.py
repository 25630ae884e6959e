"""Brokers that mend what they should refuse."""

from collections.abc import Callable

from conformance import tables
from tests.conformance.wrong.frames import CONNECT, PUBLISH, SUBSCRIBE, UNSUBSCRIBE, Frame
from tests.conformance.wrong.mutant import DROP, Answer, Link, on_client


def _text(change: Callable[[bytes], bytes], raw: bytes) -> bytes:
    """Return a string field of the wire with other text."""
    text = change(raw[2:])
    return len(text).to_bytes(2, "big") + text


def _property(change: Callable[[bytes], bytes], identifier: int, raw: bytes) -> bytes:
    kind = tables.PROPERTY_TYPES[identifier]
    if kind == "string":
        return _text(change, raw)
    if kind == "pair":
        border = 2 + int.from_bytes(raw[:2], "big")
        return _text(change, raw[:border]) + _text(change, raw[border:])
    return raw


def mends(name: str, sentence: str, change: Callable[[bytes], bytes]) -> None:
    """Register a broker that mends all text of clients."""

    @on_client(name, sentence, CONNECT, PUBLISH, SUBSCRIBE, UNSUBSCRIBE)
    def _(link: Link, frame: Frame) -> Answer:
        frame.topic = change(frame.topic)
        frame.client_id, frame.username = change(frame.client_id), change(frame.username)
        frame.filters = [(change(f), o) for f, o in frame.filters]
        if frame.properties:
            frame.properties = [(i, _property(change, i, raw)) for i, raw in frame.properties]
        frame.will_properties = [(i, _property(change, i, raw)) for i, raw in frame.will_properties]
        return None


def _utf_8(text: bytes) -> bytes:
    return text.decode("utf-8", "replace").encode()


mends("mends_utf_8", "replaces what is not UTF-8", _utf_8)
mends("mends_zeros", "replaces U+0000", lambda text: text.replace(b"\0", b"?"))


@on_client("mends_wildcards", "takes wildcards in topics for letters", PUBLISH, CONNECT)
def _(link: Link, frame: Frame) -> Answer:
    def change(text: bytes) -> bytes:
        return text.replace(b"+", b"p").replace(b"#", b"n")

    frame.topic = change(frame.topic)
    frame.properties = frame.properties and [
        (i, _text(change, raw) if i == tables.RESPONSE_TOPIC else raw)
        for i, raw in frame.properties
    ]
    return None


@on_client(
    "mends_empty_topics", "takes an empty filter or topic for one", SUBSCRIBE, PUBLISH, UNSUBSCRIBE
)
def _(link: Link, frame: Frame) -> Answer:
    if frame.get(tables.TOPIC_ALIAS) is None:
        frame.topic = frame.topic or b"empty"
    frame.filters = [(f or b"empty", o) for f, o in frame.filters]
    return None


@on_client("mends_packet_ids", "takes packet identifier 0 for one", SUBSCRIBE, PUBLISH, UNSUBSCRIBE)
def _(link: Link, frame: Frame) -> Answer:
    if frame.packet_id == 0:
        frame.packet_id = 777
    return None


@on_client("qos_3_is_qos_2", "takes a PUBLISH of QoS 3 for one of QoS 2", PUBLISH)
def _(link: Link, frame: Frame) -> Answer:
    if frame.qos == 3:
        frame.flags &= ~2
    return None


@on_client("mends_repeated_properties", "takes the first of two equal properties", *range(1, 16))
def _(link: Link, frame: Frame) -> Answer:
    often = (tables.USER_PROPERTY, tables.SUBSCRIPTION_ID)
    found: dict[int, bytes] = {}
    kept = []
    for identifier, raw in frame.properties or ():
        if identifier in often or identifier not in found:
            kept.append((identifier, raw))
        found[identifier] = raw
    if frame.properties:
        frame.properties = kept
    return None


@on_client("ignores_reserved_flag", "does not look at the reserved flag of CONNECT", CONNECT)
def _(link: Link, frame: Frame) -> Answer:
    frame.connect_flags &= ~1
    return None


@on_client("any_protocol_name", "does not look at the protocol name", CONNECT)
def _(link: Link, frame: Frame) -> Answer:
    frame.name = b"MQTT"
    return None


@on_client("reads_one_connect", "passes over a second CONNECT", CONNECT, bad=True)
def _(link: Link, frame: Frame) -> Answer:
    return None if link.last is None else DROP


@on_client("ignores_ids_of_publishers", "passes over a Subscription Identifier in PUBLISH", PUBLISH)
def _(link: Link, frame: Frame) -> Answer:
    frame.remove(tables.SUBSCRIPTION_ID)
    return None


@on_client("ignores_auth_data", "does not read Authentication Data in CONNECT", CONNECT)
def _(link: Link, frame: Frame) -> Answer:
    frame.remove(tables.AUTH_DATA)
    return None

"""Packets that break a rule, or are unusual: each with a name, as bytes for one version.

`FIRST` come in place of CONNECT, `LATER` on a connection that was accepted. Built with the byte
builders of the conformance suite, which check nothing. Must never be random: what a name stands for
is explained in differences.toml. Read next: `tests.differential.sequences`.
"""

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from conformance import wire

BAD_UTF8: Final = b"a\xc3\x28"
SURROGATE: Final = b"a\xed\xa0\x80"
ZERO: Final = b"a\0b"
CONTROL: Final = b"a\x01b"
WILDCARDS: Final = b"a/+/#"
NONCHARACTER: Final = b"a\xef\xbf\xbf"
BOTH: Final = (4, 5)
FIVE: Final = (5,)
FOUR: Final = (4,)


class Place(NamedTuple):
    """Where an odd packet is to be sent."""

    version: int
    client_id: str
    topic: str  # the sequence's own; subscribed to by somebody, perhaps


Build = Callable[[Place], bytes]


class Oddity(NamedTuple):
    """One of them."""

    name: str
    versions: tuple[int, ...]
    build: Build
    is_partial: bool = False  # half a packet: whatever follows belongs to it

    @property
    def is_end(self) -> bool:
        """Is it about how a connection ends, whatever else it may be?"""
        return self.name.startswith("DISCONNECT") or self.name == "second CONNECT"


FIRST: Final[list[Oddity]] = []
LATER: Final[list[Oddity]] = []


def _first(
    name: str, build: Build, versions: tuple[int, ...] = BOTH, partial: bool = False
) -> None:
    FIRST.append(Oddity(f"first: {name}", versions, build, partial))


def _later(
    name: str, build: Build, versions: tuple[int, ...] = BOTH, partial: bool = False
) -> None:
    LATER.append(Oddity(name, versions, build, partial))


def _just(data: bytes) -> Build:
    """Return what builds this, wherever it is sent."""
    return lambda place: data


def _connect(place: Place, **fields: Any) -> bytes:
    client_id = fields.pop("client_id", place.client_id)
    if client_id in (CONTROL, WILDCARDS):  # these may be taken: nobody else may have the same
        client_id = place.client_id.encode() + bytes(client_id)
    return wire.connect(client_id, version=place.version, **fields)


def _connecting(fields: dict[str, Any]) -> Build:
    return lambda place: _connect(place, **fields)


def _add_connects() -> None:
    """CONNECT with something wrong in it."""
    will = wire.Will("w", b"x")
    table: list[tuple[str, dict[str, Any], tuple[int, ...]]] = [
        ("reserved flag", {"flags": 0x03}, BOTH),
        ("will qos 3", {"flags": 0x1E, "will": will}, BOTH),
        ("will qos without will", {"flags": 0x0A}, BOTH),
        ("will retain without will", {"flags": 0x22}, BOTH),
        ("will flag, no will", {"flags": 0x06}, BOTH),
        ("password without user name", {"flags": 0x42, "trailing": b"\0\1x"}, BOTH),
        ("user name flag, no user name", {"flags": 0x82}, BOTH),
        ("fixed header flags", {"first_byte": 0x11}, BOTH),
        ("protocol name in small letters", {"name": "mqtt"}, BOTH),
        ("another protocol name", {"name": "MQXX"}, BOTH),
        ("empty protocol name", {"name": ""}, BOTH),
        ("protocol level 0", {"level": 0}, BOTH),
        ("protocol level 6", {"level": 6}, BOTH),
        ("protocol level 132", {"level": 132}, BOTH),
        ("empty client id", {"client_id": ""}, BOTH),
        ("empty client id, clean 0", {"client_id": "", "clean": False}, BOTH),
        ("client id of bad UTF-8", {"client_id": BAD_UTF8}, BOTH),
        ("client id with a surrogate", {"client_id": SURROGATE}, BOTH),
        ("client id with a zero", {"client_id": ZERO}, BOTH),
        ("client id with a control character", {"client_id": CONTROL}, BOTH),
        ("client id with a wildcard", {"client_id": WILDCARDS}, BOTH),
        ("user name of bad UTF-8", {"username": BAD_UTF8}, BOTH),
        ("bytes behind the payload", {"trailing": b"x"}, BOTH),
        ("will topic empty", {"will": wire.Will("", b"x")}, BOTH),
        ("will topic with a wildcard", {"will": wire.Will("w/#", b"x")}, BOTH),
        ("will topic with a zero", {"will": wire.Will(ZERO, b"x")}, BOTH),
        ("will topic of bad UTF-8", {"will": wire.Will(BAD_UTF8, b"x")}, BOTH),
        ("will topic begins with $", {"will": wire.Will("$SYS/x", b"x")}, BOTH),
        ("receive maximum 0", {"properties": [(0x21, 0)]}, FIVE),
        ("receive maximum twice", {"properties": [(0x21, 5), (0x21, 5)]}, FIVE),
        ("maximum packet size 0", {"properties": [(0x27, 0)]}, FIVE),
        ("maximum packet size 2", {"properties": [(0x27, 2)]}, FIVE),
        ("session expiry twice", {"properties": [(0x11, 5), (0x11, 5)]}, FIVE),
        ("request response information 2", {"properties": [(0x19, 2)]}, FIVE),
        ("request problem information 2", {"properties": [(0x17, 2)]}, FIVE),
        ("authentication data, no method", {"properties": [(0x16, b"x")]}, FIVE),
        ("unknown authentication method", {"properties": [(0x15, "NONE")]}, FIVE),
        ("a property of PUBLISH", {"properties": [(0x23, 5)]}, FIVE),
        ("an unknown property", {"properties": [b"\x7f\x00"]}, FIVE),
        ("user property of bad UTF-8", {"properties": [(0x26, ("k", BAD_UTF8))]}, FIVE),
        ("property length too long", {"properties": b"\x7f"}, FIVE),
        ("property length too short", {"properties": b"\x01\x21\x00\x05"}, FIVE),
        ("long form of the property length", {"properties": b"\x80\x00"}, FIVE),
        ("will payload format 2", {"will": wire.Will("w", b"x", 0, False, [(1, 2)])}, FIVE),
        ("will payload is not UTF-8", {"will": wire.Will("w", BAD_UTF8, 0, False, [(1, 1)])}, FIVE),
        ("will delay twice", {"will": wire.Will("w", b"x", 0, False, [(24, 1), (24, 1)])}, FIVE),
        ("will with a topic alias", {"will": wire.Will("w", b"x", 0, False, [(0x23, 1)])}, FIVE),
        ("will response topic with #", {"will": wire.Will("w", b"", 0, False, [(8, "#")])}, FIVE),
    ]
    for name, fields, versions in table:
        _first(name, _connecting(fields), versions)


def _add_strangers() -> None:
    """Something else than CONNECT."""
    _first("PINGREQ", _just(wire.pingreq()))
    _first("DISCONNECT", _just(wire.disconnect()))
    _first("PUBLISH", lambda place: wire.publish(place.topic, b"x", version=place.version))
    _first("SUBSCRIBE", lambda place: wire.subscribe(1, [(place.topic, 0)], version=place.version))
    _first("AUTH", _just(wire.auth(0x18, [(0x15, "NONE")])), FIVE)
    _first("CONNACK", _just(bytes.fromhex("20020000")))
    _first("kind 0", _just(bytes.fromhex("0000")))
    _first("remaining length of five bytes", _just(bytes.fromhex("10ffffffffff01")))
    _first("HTTP", lambda place: b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
    _first("nothing but a first byte", lambda place: b"\x10", partial=True)
    _first("half a CONNECT", lambda place: _connect(place)[:9], partial=True)
    _first("empty CONNECT", _just(bytes.fromhex("1000")))
    _first("two CONNECTs at once", lambda place: _connect(place) * 2)
    _first(
        "CONNECT and PUBLISH at once",
        lambda place: _connect(place) + _publish(place, qos=1, packet_id=9),
    )
    _first("CONNECT and DISCONNECT at once", lambda place: _connect(place) + wire.disconnect())


def _publish(place: Place, topic: str | bytes | None = None, **fields: Any) -> bytes:
    name = place.topic if topic is None else topic
    return wire.publish(name, b"odd", version=place.version, **fields)


def _publishing(topic: str | bytes | None, fields: dict[str, Any]) -> Build:
    return lambda place: _publish(place, topic, **fields)


def _add_publishes() -> None:
    """PUBLISH with something wrong in it."""
    table: list[tuple[str, str | bytes | None, dict[str, Any], tuple[int, ...]]] = [
        ("qos 3", None, {"first_byte": 0x36, "packet_id": 7}, BOTH),
        ("qos 0 with DUP", None, {"dup": True}, BOTH),
        ("packet id 0", None, {"qos": 1, "packet_id": 0}, BOTH),
        ("packet id 0, qos 2", None, {"qos": 2, "packet_id": 0}, BOTH),
        ("empty topic", "", {}, BOTH),
        ("topic with +", "a/+/b", {}, BOTH),
        ("topic with #", "a/#", {"qos": 1, "packet_id": 7}, BOTH),
        ("topic of bad UTF-8", BAD_UTF8, {}, BOTH),
        ("topic with a surrogate", SURROGATE, {}, BOTH),
        ("topic with a zero", ZERO, {}, BOTH),
        ("topic with a control character", CONTROL, {}, BOTH),
        ("topic with a noncharacter", NONCHARACTER, {}, BOTH),
        ("topic $SYS/x, qos 1", "$SYS/x", {"qos": 1, "packet_id": 7}, BOTH),
        ("topic $other, qos 1", "$other/x", {"qos": 1, "packet_id": 7}, BOTH),
        ("topic $share/x", "$share/g/x", {"qos": 1, "packet_id": 7}, BOTH),
        ("200 levels", "/" * 200, {"qos": 1, "packet_id": 7}, BOTH),
        ("topic longer than the packet", None, {"remaining": 3}, BOTH),
        ("payload format 2", None, {"properties": [(1, 2)]}, FIVE),
        ("payload format 1 twice", None, {"properties": [(1, 1), (1, 1)]}, FIVE),
        ("topic alias 0", None, {"properties": [(0x23, 0)]}, FIVE),
        ("topic alias 11", None, {"properties": [(0x23, 11)]}, FIVE),
        ("topic alias unknown", "", {"properties": [(0x23, 3)]}, FIVE),
        ("topic alias twice", None, {"properties": [(0x23, 1), (0x23, 1)]}, FIVE),
        ("subscription identifier", None, {"properties": [(0x0B, 1)]}, FIVE),
        ("message expiry twice", None, {"properties": [(2, 1), (2, 1)]}, FIVE),
        ("response topic with #", None, {"properties": [(8, "a/#")]}, FIVE),
        ("empty response topic", None, {"properties": [(8, "")]}, FIVE),
        ("content type of bad UTF-8", None, {"properties": [(3, BAD_UTF8)]}, FIVE),
        ("a property of CONNECT", None, {"properties": [(0x21, 5)]}, FIVE),
        ("an unknown property", None, {"properties": [b"\x7f\x00"]}, FIVE),
        ("property length too long", None, {"properties": b"\x7f"}, FIVE),
        ("long form of the property length", None, {"properties": b"\x80\x00"}, FIVE),
    ]
    for name, topic, fields, versions in table:
        _later(
            f"PUBLISH {name}",
            _publishing(topic, fields),
            versions,
        )
    _later(
        "PUBLISH payload is not UTF-8",
        lambda place: wire.publish(place.topic, BAD_UTF8, version=5, properties=[(1, 1)]),
        FIVE,
    )
    _later("half a PUBLISH", lambda place: _publish(place)[:-2], partial=True)
    _later("PUBLISH of 300 kB", lambda place: _large(place))
    _later(
        "PUBLISH qos 2 twice, other payload",
        lambda place: b"".join(
            wire.publish(place.topic, payload, version=place.version, qos=2, packet_id=5)
            for payload in (b"one", b"two")
        ),
    )


def _large(place: Place) -> bytes:
    return wire.publish(f"{place.topic}/large", bytes(300_000), version=place.version)


def _subscribe(place: Place, *filters: tuple[str | bytes, int], **fields: Any) -> bytes:
    number = fields.pop("packet_id", 9)
    return wire.subscribe(number, filters, version=place.version, **fields)


def _subscribing(*filters: tuple[str | bytes, int]) -> Build:
    return lambda place: _subscribe(place, *filters)


def _unsubscribing(topic_filter: str | bytes) -> Build:
    return lambda place: wire.unsubscribe(9, [topic_filter], version=place.version)


def _identified(identifier: bytes) -> Build:
    return lambda place: _subscribe(place, (place.topic, 0), properties=[identifier])


def _add_subscribes() -> None:
    """SUBSCRIBE and UNSUBSCRIBE with something wrong in them."""
    bad: list[tuple[str, str | bytes]] = [
        ("empty filter", ""),
        ("filter a/#/b", "a/#/b"),
        ("filter a#", "a#"),
        ("filter a+", "a+"),
        ("filter of bad UTF-8", BAD_UTF8),
        ("filter with a zero", ZERO),
        ("filter with a control character", CONTROL),
        ("filter $share/g", "$share/g"),
        ("filter $share//a", "$share//a"),
        ("filter $share/g/", "$share/g/"),
        ("filter $share/+/a", "$share/+/a"),
        ("filter $share/g/a/#/b", "$share/g/a/#/b"),
        ("filter of 200 levels", "/" * 200),
    ]
    for name, topic_filter in bad:
        _later(f"SUBSCRIBE {name}", _subscribing((topic_filter, 0)))
        _later(
            f"UNSUBSCRIBE {name}",
            _unsubscribing(topic_filter),
        )
    _later("SUBSCRIBE a good and a bad filter", lambda p: _subscribe(p, (p.topic, 1), ("a#", 1)))
    _later("SUBSCRIBE no filter", lambda place: _subscribe(place))
    _later("SUBSCRIBE packet id 0", lambda p: _subscribe(p, (p.topic, 0), packet_id=0))
    _later("SUBSCRIBE flags 0", lambda p: _subscribe(p, (p.topic, 0), first_byte=0x80))
    _later("SUBSCRIBE flags 3", lambda p: _subscribe(p, (p.topic, 0), first_byte=0x83))
    _later("SUBSCRIBE qos 3", lambda p: _subscribe(p, (p.topic, 3)))
    _later("SUBSCRIBE reserved option bits", lambda p: _subscribe(p, (p.topic, 0x40)))
    _later("SUBSCRIBE retain handling 3", lambda p: _subscribe(p, (p.topic, 0x30)), FIVE)
    _later("SUBSCRIBE 5.0 options", lambda p: _subscribe(p, (p.topic, 0x0C)), FOUR)
    _later("SUBSCRIBE shared, no local", lambda p: _subscribe(p, (f"$share/g/{p.topic}", 4)), FIVE)
    for name, value in (("0", b"\x0b\x00"), ("twice", b"\x0b\x01\x0b\x02")):
        _later(
            f"SUBSCRIBE identifier {name}",
            _identified(value),
            FIVE,
        )
    _later(
        "SUBSCRIBE a property of CONNECT",
        lambda p: _subscribe(p, (p.topic, 0), properties=[(0x21, 5)]),
        FIVE,
    )
    _later("UNSUBSCRIBE no filter", lambda p: wire.unsubscribe(9, [], version=p.version))
    _later("UNSUBSCRIBE packet id 0", lambda p: wire.unsubscribe(0, [p.topic], version=p.version))
    _later(
        "UNSUBSCRIBE flags 0",
        lambda p: wire.unsubscribe(9, [p.topic], version=p.version, first_byte=0xA0),
    )


def _add_acknowledgements() -> None:
    """Acknowledgements of nothing, and broken ones."""
    for name, build in (
        ("PUBACK", wire.puback),
        ("PUBREC", wire.pubrec),
        ("PUBREL", wire.pubrel),
        ("PUBCOMP", wire.pubcomp),
    ):
        _later(f"{name} of nothing", _just(build(77)))
        _later(f"{name} packet id 0", _just(build(0)))
        _later(f"{name} reason 0x55", _just(build(77, 0x55)), FIVE)
        _later(f"{name} reason 0x80 of nothing", _just(build(77, 0x80)), FIVE)
        _later(
            f"{name} with a session expiry",
            _just(build(77, 0, [(0x11, 5)])),
            FIVE,
        )
        _later(
            f"{name} with reason string and user property",
            _just(build(77, 0, [(0x1F, "why"), (0x26, ("k", "v"))])),
            FIVE,
        )
        _later(f"{name} of three bytes", _just(build(77, 0)), FOUR)
        _later(f"{name} of one byte", _just(bytes((build(1)[0], 1, 0))))
        first = 0x60 if name == "PUBREL" else build(1)[0] | 2
        _later(f"{name} wrong flags", _just(bytes((first,)) + build(77)[1:]))


def _add_others() -> None:
    """Everything else."""
    _later("second CONNECT", lambda place: _connect(place))
    for name, data in (
        ("CONNACK", "20020000"),
        ("SUBACK", "9003000100"),
        ("UNSUBACK", "b0020001"),
        ("PINGRESP", "d000"),
        ("kind 0", "0000"),
    ):
        _later(f"{name} from a client", _just(bytes.fromhex(data)))
    _later("kind 15", _just(bytes.fromhex("f000")), FOUR)
    _later("AUTH without a method", _just(wire.auth()), FIVE)
    _later("AUTH 0x18", _just(wire.auth(0x18, [(0x15, "NONE")])), FIVE)
    _later("AUTH 0x19", _just(wire.auth(0x19, [(0x15, "NONE")])), FIVE)
    _later("PINGREQ with flags", _just(bytes.fromhex("c100")))
    _later("PINGREQ with a body", _just(bytes.fromhex("c00100")))
    _later("PINGREQ in long form", _just(bytes.fromhex("c08000")))
    _later("remaining length of five bytes", _just(bytes.fromhex("30ffffffffff01")))
    _later("a first byte alone", lambda place: b"\x30", partial=True)
    _later("DISCONNECT with flags", _just(wire.disconnect(first_byte=0xE1)))
    _later("DISCONNECT with a body", _just(bytes.fromhex("e00100")), FOUR)
    _later("DISCONNECT reason 0x55", _just(wire.disconnect(0x55)), FIVE)
    _later("DISCONNECT reason 0x8b of a server", _just(wire.disconnect(0x8B)), FIVE)
    _later("DISCONNECT reason 0x8e of a server", _just(wire.disconnect(0x8E)), FIVE)
    _later("DISCONNECT reason 0x80", _just(wire.disconnect(0x80)), FIVE)
    _later("DISCONNECT server reference", _just(wire.disconnect(0, [(0x1C, "x")])), FIVE)
    _later("DISCONNECT expiry twice", _just(wire.disconnect(0, [(17, 1), (17, 1)])), FIVE)
    _later("DISCONNECT expiry raised from 0", _just(wire.disconnect(0, [(17, 60)])), FIVE)
    _later(
        "PUBLISH behind DISCONNECT", lambda p: wire.disconnect() + _publish(p, qos=1, packet_id=3)
    )


_add_connects()
_add_strangers()
_add_publishes()
_add_subscribes()
_add_acknowledgements()
_add_others()

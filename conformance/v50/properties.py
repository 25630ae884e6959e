"""MQTT 5.0, section 2.2.2: which properties a packet may have, how often, with which values."""

from conformance import stages, tables, wire
from conformance.check import Bench, statement
from conformance.stages import SAMPLES

MALFORMED = 0x81
PROTOCOL_ERROR = 0x82
NOT_AUTHORIZED = 0x87
BAD_AUTHENTICATION_METHOD = 0x8C
TOPIC_ALIAS_INVALID = 0x94

# Identifiers that mean nothing in 5.0; the last ones need a second byte.
UNKNOWN = (0x00, 0x04, 0x0A, 0x14, 0x1B, 0x20, 0x2B, 0x7E, 0x7F, 0x80, 0x3FFF)
# Whether a client may send these at all is another statement's question, with an answer of its own.
ELSEWHERE = {
    tables.PUBLISH: frozenset({tables.SUBSCRIPTION_ID}),
    tables.DISCONNECT: frozenset({tables.SERVER_REFERENCE}),
}
MANY = frozenset({tables.USER_PROPERTY})


def _name(identifier: int) -> str:
    return tables.PROPERTY_NAMES.get(identifier, f"unknown property 0x{identifier:02X}")


def _sample(identifier: int) -> wire.Property:
    """Return the property with a legal value; of an unknown one something short."""
    return (identifier, SAMPLES.get(identifier, b"\x01"))


def _expect_refused(bench: Bench, data: bytes, *codes: int) -> None:
    client = bench.client("raw", connect=False)
    client.send(data)
    client.expect_refused(*codes)


def _connect_twice(bench: Bench) -> None:
    """Repeat each property of CONNECT and of the will."""
    own = bench.id("raw")
    for identifier in sorted(tables.PROPERTIES_OF[tables.CONNECT] - MANY):
        with bench.case(f"CONNECT with {_name(identifier)} twice"):
            block = [_sample(identifier)] * 2
            codes = [PROTOCOL_ERROR]
            if identifier == tables.AUTH_DATA:
                block.insert(0, _sample(tables.AUTH_METHOD))
            if identifier in (tables.AUTH_DATA, tables.AUTH_METHOD):
                # There is a second fault: the broker does not know the method either.
                codes += [BAD_AUTHENTICATION_METHOD, NOT_AUTHORIZED]
            _expect_refused(bench, wire.connect(own, version=5, properties=block), *codes)
    for identifier in sorted(tables.PROPERTIES_OF[tables.WILL] - MANY):
        with bench.case(f"will with {_name(identifier)} twice"):
            will = wire.Will(bench.topic("will"), properties=[_sample(identifier)] * 2)
            _expect_refused(bench, wire.connect(own, version=5, will=will), PROTOCOL_ERROR)


@statement("X-09")
def x_09(bench: Bench) -> None:
    """[X-09] A property that may come once and comes twice is a protocol error."""
    _connect_twice(bench)
    for kind in stages.WITH_PROPERTIES:
        may_not = MANY | ELSEWHERE.get(kind, frozenset())
        for identifier in sorted(tables.PROPERTIES_OF[kind] - may_not):
            reasons = [PROTOCOL_ERROR]
            if identifier == tables.TOPIC_ALIAS:
                reasons.append(TOPIC_ALIAS_INVALID)  # of a broker that takes no aliases
            with bench.case(f"{tables.PACKET_NAMES[kind]} with {_name(identifier)} twice"):
                block = [_sample(identifier)] * 2
                if kind == tables.AUTH and identifier != tables.AUTH_METHOD:
                    block.insert(0, _sample(tables.AUTH_METHOD))
                stages.expect_unfit(bench, kind, *reasons, properties=block)


@statement("X-10")
def x_10(bench: Bench) -> None:
    """[X-10] A property that is unknown, or is not for this packet, makes it malformed."""
    own = bench.id("raw")
    every = (*sorted(tables.PROPERTY_TYPES), *UNKNOWN)
    for identifier in every:
        if identifier not in tables.PROPERTIES_OF[tables.CONNECT]:
            with bench.case(f"CONNECT with {_name(identifier)}"):
                block = [_sample(identifier)]
                _expect_refused(bench, wire.connect(own, version=5, properties=block), MALFORMED)
        if identifier not in tables.PROPERTIES_OF[tables.WILL]:
            with bench.case(f"will with {_name(identifier)}"):
                will = wire.Will(bench.topic("will"), properties=[_sample(identifier)])
                _expect_refused(bench, wire.connect(own, version=5, will=will), MALFORMED)
    for kind in stages.WITH_PROPERTIES:
        fine = tables.PROPERTIES_OF[kind] | ELSEWHERE.get(kind, frozenset())
        # AUTH is a protocol error by itself where CONNECT named no method.
        reasons = (MALFORMED, PROTOCOL_ERROR) if kind == tables.AUTH else (MALFORMED,)
        for identifier in every:
            if identifier not in fine:
                with bench.case(f"{tables.PACKET_NAMES[kind]} with {_name(identifier)}"):
                    stages.expect_unfit(bench, kind, *reasons, properties=[_sample(identifier)])


@statement("X-11")
def x_11(bench: Bench) -> None:
    """[X-11] In CONNECT, a limit of 0 and a flag other than 0 or 1 are protocol errors."""
    own = bench.id("raw")
    for identifier, value in (
        (tables.RECEIVE_MAXIMUM, 0),
        (tables.MAXIMUM_PACKET_SIZE, 0),
        (tables.REQUEST_PROBLEM_INFO, 2),
        (tables.REQUEST_PROBLEM_INFO, 255),
        (tables.REQUEST_RESPONSE_INFO, 2),
        (tables.REQUEST_RESPONSE_INFO, 255),
    ):
        with bench.case(f"CONNECT with {_name(identifier)} {value}"):
            data = wire.connect(own, version=5, properties=[(identifier, value)])
            _expect_refused(bench, data, PROTOCOL_ERROR)


@statement("X-12")
def x_12(bench: Bench) -> None:
    """[X-12] Authentication Data without an Authentication Method is a protocol error."""
    own = bench.id("raw")
    for data in (b"secret", b""):
        with bench.case(f"CONNECT with Authentication Data {data!r} only"):
            block = [(tables.AUTH_DATA, data)]
            connect = wire.connect(own, version=5, properties=block, username="u", password="p")
            _expect_refused(bench, wire.connect(own, version=5, properties=block), PROTOCOL_ERROR)
            _expect_refused(bench, connect, PROTOCOL_ERROR)

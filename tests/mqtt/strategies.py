"""Hypothesis strategies for every packet that a sender may send in a version."""

from hypothesis import strategies as st

from mqtt import reasons
from mqtt.packets import (
    Auth,
    Connack,
    Connect,
    Disconnect,
    Packet,
    Pingreq,
    Pingresp,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    Subscription,
    Unsuback,
    Unsubscribe,
    Will,
)
from mqtt.wire import VARINT_MAX
from tests.mqtt.samples import Sender

_characters = st.characters(exclude_categories=("Cs",), exclude_characters="\0")
strings = st.text(_characters, max_size=12)
topics = st.text(
    st.one_of(
        st.sampled_from("/$ab"),
        st.characters(exclude_categories=("Cs",), exclude_characters="\0+#"),
    ),
    min_size=1,
    max_size=12,
)
binaries = st.binary(max_size=12)
packet_ids = st.integers(1, 65_535)
two_bytes = st.integers(0, 65_535)
four_bytes = st.integers(0, 0xFFFF_FFFF)
identifiers = st.integers(1, VARINT_MAX)
user_properties = st.lists(st.tuples(strings, strings), max_size=3).map(tuple)
optional_strings = st.none() | strings
optional_binaries = st.none() | binaries


def _prefixed(raw: bytes) -> bytes:
    return len(raw).to_bytes(2, "big") + raw


@st.composite
def forwards(draw: st.DrawFn) -> bytes:
    """Raw forwardable properties in any order, each single one at most once."""
    pieces: list[bytes] = []
    if draw(st.booleans()):
        pieces.append(b"\x01" + draw(st.sampled_from((b"\x00", b"\x01"))))
    if draw(st.booleans()):
        pieces.append(b"\x03" + _prefixed(draw(strings).encode()))
    if draw(st.booleans()):
        pieces.append(b"\x08" + _prefixed(draw(topics).encode()))
    if draw(st.booleans()):
        pieces.append(b"\x09" + _prefixed(draw(binaries)))
    for name, value in draw(user_properties):
        pieces.append(b"\x26" + _prefixed(name.encode()) + _prefixed(value.encode()))
    return b"".join(draw(st.permutations(pieces)))


@st.composite
def publishes(draw: st.DrawFn, version: int, sender: Sender) -> Publish:
    qos = draw(st.integers(0, 2))
    publish = Publish(
        draw(topics),
        draw(st.binary(max_size=300)),
        qos,
        draw(st.booleans()),
        draw(st.booleans()) if qos else False,
        draw(packet_ids) if qos else 0,
    )
    if version == 5:
        publish.properties = draw(forwards())
        publish.message_expiry_interval = draw(st.just(-1) | four_bytes)
        publish.topic_alias = draw(two_bytes)
        if publish.topic_alias and draw(st.booleans()):
            publish.topic = ""
        if sender == "server":
            publish.subscription_identifiers = tuple(draw(st.lists(identifiers, max_size=3)))
    return publish


def _codes(codes: frozenset[int]) -> st.SearchStrategy[int]:
    return st.sampled_from(sorted(codes))


@st.composite
def acknowledgements(draw: st.DrawFn, version: int, sender: Sender) -> Packet:
    packet_type = draw(st.sampled_from((Puback, Pubrec, Pubrel, Pubcomp)))
    if version == 4:
        return packet_type(draw(packet_ids))
    codes = reasons.PUBREL_CODES
    if packet_type in (Puback, Pubrec):
        codes = reasons.PUBACK_CODES
    return packet_type(
        draw(packet_ids), draw(_codes(codes)), draw(optional_strings), draw(user_properties)
    )


@st.composite
def wills(draw: st.DrawFn, version: int) -> Will:
    will = Will(draw(topics), draw(binaries), draw(st.integers(0, 2)), draw(st.booleans()))
    if version == 5:
        will.delay_interval = draw(four_bytes)
        will.message_expiry_interval = draw(st.none() | four_bytes)
        will.properties = draw(forwards())
    return will


@st.composite
def connects(draw: st.DrawFn, version: int) -> Connect:
    username = draw(optional_strings)
    connect = Connect(
        draw(strings),
        version,
        draw(st.booleans()),
        draw(two_bytes),
        draw(st.none() | wills(version)),
        username,
        draw(optional_binaries) if version == 5 or username is not None else None,
    )
    if version == 5:
        connect.session_expiry_interval = draw(four_bytes)
        connect.receive_maximum = draw(st.integers(1, 65_535))
        connect.maximum_packet_size = draw(four_bytes)
        connect.topic_alias_maximum = draw(two_bytes)
        connect.request_response_information = draw(st.booleans())
        connect.request_problem_information = draw(st.booleans())
        connect.user_properties = draw(user_properties)
        connect.authentication_method = draw(optional_strings)
        if connect.authentication_method is not None:
            connect.authentication_data = draw(optional_binaries)
    return connect


@st.composite
def connacks(draw: st.DrawFn, version: int) -> Connack:
    codes = reasons.CONNACK_CODES if version == 5 else reasons.CONNACK_CODES_V4
    code = draw(_codes(codes))
    connack = Connack(draw(st.booleans()) if code == 0 else False, code)
    if version == 5:
        connack.session_expiry_interval = draw(st.none() | four_bytes)
        connack.receive_maximum = draw(st.integers(1, 65_535))
        connack.maximum_qos = draw(st.integers(0, 2))
        connack.retain_available = draw(st.booleans())
        connack.maximum_packet_size = draw(four_bytes)
        connack.assigned_client_id = draw(optional_strings)
        connack.topic_alias_maximum = draw(two_bytes)
        connack.reason_string = draw(optional_strings)
        connack.user_properties = draw(user_properties)
        connack.wildcard_subscription_available = draw(st.booleans())
        connack.subscription_identifier_available = draw(st.booleans())
        connack.shared_subscription_available = draw(st.booleans())
        connack.server_keep_alive = draw(st.none() | two_bytes)
        connack.response_information = draw(optional_strings)
        connack.server_reference = draw(optional_strings)
        connack.authentication_method = draw(optional_strings)
        connack.authentication_data = draw(optional_binaries)
    return connack


@st.composite
def subscriptions(draw: st.DrawFn, version: int) -> Subscription:
    subscription = Subscription(draw(strings.filter(bool)), draw(st.integers(0, 2)))
    if version == 5:
        subscription.no_local = draw(st.booleans())
        subscription.retain_as_published = draw(st.booleans())
        subscription.retain_handling = draw(st.integers(0, 2))
    return subscription


@st.composite
def client_packets(draw: st.DrawFn, version: int) -> Packet:
    """Any packet a client may send after CONNECT."""
    user = draw(user_properties) if version == 5 else ()
    kind = draw(st.integers(0, 6))
    if kind == 0:
        chosen = draw(st.lists(subscriptions(version), min_size=1, max_size=4))
        identifier = draw(st.just(0) | identifiers) if version == 5 else 0
        return Subscribe(draw(packet_ids), chosen, identifier, user)
    if kind == 1:
        filters = draw(st.lists(strings.filter(bool), min_size=1, max_size=4))
        return Unsubscribe(draw(packet_ids), filters, user)
    if kind == 2:
        return Pingreq()
    if kind == 3 or version == 4:
        disconnect = Disconnect()
        if version == 5:
            disconnect.reason_code = draw(_codes(reasons.DISCONNECT_CODES_FROM_CLIENT))
            disconnect.session_expiry_interval = draw(st.none() | four_bytes)
            disconnect.reason_string = draw(optional_strings)
            disconnect.user_properties = user
        return disconnect
    return _auth(draw, reasons.AUTH_CODES_FROM_CLIENT)


def _auth(draw: st.DrawFn, codes: frozenset[int]) -> Auth:
    return Auth(
        draw(_codes(codes)),
        draw(strings),
        draw(optional_binaries),
        draw(optional_strings),
        draw(user_properties),
    )


@st.composite
def server_packets(draw: st.DrawFn, version: int) -> Packet:
    """Any packet that only a server sends, and its DISCONNECT and AUTH."""
    user = draw(user_properties) if version == 5 else ()
    reason_string = draw(optional_strings) if version == 5 else None
    kind = draw(st.integers(0, 5))
    if kind == 0:
        codes = reasons.SUBACK_CODES if version == 5 else reasons.SUBACK_CODES_V4
        chosen = draw(st.lists(_codes(codes), min_size=1, max_size=4))
        return Suback(draw(packet_ids), chosen, reason_string, user)
    if kind == 1:
        if version == 4:
            return Unsuback(draw(packet_ids), [])
        chosen = draw(st.lists(_codes(reasons.UNSUBACK_CODES), min_size=1, max_size=4))
        return Unsuback(draw(packet_ids), chosen, reason_string, user)
    if kind == 2:
        return draw(connacks(version))
    if kind == 3 or version == 4:
        return Pingresp()
    if kind == 4:
        code = draw(_codes(reasons.DISCONNECT_CODES_FROM_SERVER))
        return Disconnect(code, None, reason_string, user, draw(optional_strings))
    return _auth(draw, reasons.AUTH_CODES_FROM_SERVER)


def packets_from(sender: Sender, version: int) -> st.SearchStrategy[Packet]:
    """Any packet of `sender` but CONNECT, which only starts a connection."""
    own = client_packets(version) if sender == "client" else server_packets(version)
    return st.one_of(publishes(version, sender), acknowledgements(version, sender), own)

"""A message as PUBLISH bytes: what goes into the packet for which kind of receiver."""

import pytest

from mqtt.decoder import Decoder
from mqtt.encoder import PACKET_ID
from mqtt.message import NEVER, Message
from mqtt.packets import Publish
from session.delivery.publish_bytes import encode_delivery

NOW = 1_700_000_000_000
PROPERTIES = b"\x01\x01\x03\x00\x01t"


def message(expires_in_ms: int | None = None, properties: bytes = PROPERTIES) -> Message:
    """Return a message accepted now."""
    expires = NEVER if expires_in_ms is None else NOW + expires_in_ms
    return Message("täg", b"payload", 2, True, properties, "p", NOW, expires)


def decoded(
    version: int,
    value: Message,
    qos: int = 0,
    retain: bool = False,
    dup: bool = False,
    identifiers: tuple[int, ...] = (),
    waited_ms: int = 0,
    alias: int = 0,
    alias_known: bool = False,
) -> Publish:
    """Encode for one receiver, and decode as it would."""
    head, tail = encode_delivery(
        version,
        value,
        qos,
        identifiers,
        NOW + waited_ms,
        retain=retain,
        dup=dup,
        alias=alias,
        alias_known=alias_known,
    )
    data = head + (PACKET_ID[9] if qos else b"") + tail
    (packet,) = Decoder("client", 0, version).receive(data)
    assert isinstance(packet, Publish)
    return packet


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize(("qos", "dup"), [(0, False), (1, False), (1, True), (2, False), (2, True)])
@pytest.mark.parametrize("retain", [True, False])
def test_flags_and_id_are_those_of_the_delivery(
    version: int, qos: int, dup: bool, retain: bool
) -> None:
    packet = decoded(version, message(), qos, retain, dup)
    assert packet == Publish(
        "täg",
        b"payload",
        qos,
        retain,
        dup,
        9 if qos else 0,
        PROPERTIES if version == 5 else b"",
    )


def test_v4_gets_no_properties_at_all() -> None:
    packet = decoded(4, message(10_000), identifiers=(7,))
    assert packet == Publish("täg", b"payload")


@pytest.mark.parametrize(
    ("waited_ms", "left"),
    [(0, 10), (1, 10), (999, 10), (1000, 9), (1001, 9), (9_999, 1), (10_000, 0), (99_000, 0)],
)
def test_the_interval_left_is_rounded_up_to_whole_seconds(waited_ms: int, left: int) -> None:
    assert decoded(5, message(10_000), waited_ms=waited_ms).message_expiry_interval == left


def test_time_that_goes_back_lengthens_no_interval() -> None:
    assert decoded(5, message(10_000), waited_ms=-5000).message_expiry_interval == 10


def test_an_interval_of_0_is_sent_as_0_and_none_as_none() -> None:
    assert decoded(5, message(0)).message_expiry_interval == 0
    assert decoded(5, message()).message_expiry_interval == -1


def test_identifiers_come_in_their_number_before_the_forwarded_properties() -> None:
    packet = decoded(5, message(), 1, identifiers=(7, 7, 268_435_455))
    assert packet.subscription_identifiers == (7, 7, 268_435_455)
    assert packet.properties == PROPERTIES


def test_a_new_alias_comes_with_the_topic_and_a_known_one_without() -> None:
    packet = decoded(5, message(), alias=3)
    assert (packet.topic, packet.topic_alias) == ("täg", 3)
    packet = decoded(5, message(), alias=3, alias_known=True)
    assert (packet.topic, packet.topic_alias) == ("", 3)


def test_the_message_itself_is_not_changed() -> None:
    value = message(10_000)
    before = [getattr(value, name) for name in Message.__slots__]
    decoded(5, value, 1, True, True, (7,), 500, 3)
    assert [getattr(value, name) for name in Message.__slots__] == before

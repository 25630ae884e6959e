"""A message holds what all its receivers share, and nothing of one delivery."""

import pytest

from mqtt.message import NEVER, Message


def message() -> Message:
    return Message("t", b"p", 1, True, b"\x01\x01", "publisher", 1000, NEVER)


def test_a_message_is_not_stored_until_it_has_an_offset() -> None:
    fresh = message()
    assert fresh.offset == 0
    fresh.offset = 7
    assert fresh.offset == 7


def test_a_message_has_no_room_for_the_state_of_a_delivery() -> None:
    """One message is shared by all its receivers."""
    for name in ("packet_id", "dup", "granted_qos", "topic_alias"):
        with pytest.raises(AttributeError):
            setattr(message(), name, 1)


def test_fields_are_kept_as_published() -> None:
    kept = message()
    assert (kept.topic, kept.payload, kept.qos, kept.retain) == ("t", b"p", 1, True)
    assert (kept.properties, kept.publisher) == (b"\x01\x01", "publisher")
    assert (kept.accepted_at_ms, kept.expires_at_ms) == (1000, 0)

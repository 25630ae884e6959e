"""Defaults are usable as they are, and what the protocol forbids is named."""

import pytest

from broker.settings import Settings


def test_the_defaults_are_good() -> None:
    assert Settings().problems() == []


@pytest.mark.parametrize(
    ("attribute", "value"),
    [
        ("receive_maximum", 0),
        ("receive_maximum", 65_536),
        ("max_inflight", 0),
        ("topic_alias_maximum", -1),
        ("outbound_topic_alias_maximum", 65_536),
        ("maximum_qos", 3),
        ("keep_alive_max_s", 65_536),
        ("maximum_packet_size", 127),
        ("maximum_packet_size", 268_435_461),
        ("client_id_bytes_max", 22),
        ("topic_levels_max", 0),
        ("pending_messages_max", 0),
        ("heartbeat_ms", 0),
        ("expiry_slice", 0),
    ],
)
def test_a_value_out_of_range_is_named_with_what_was_expected(attribute: str, value: int) -> None:
    settings = Settings()
    setattr(settings, attribute, value)
    (problem,) = settings.problems()
    assert attribute in problem
    assert str(value) in problem
    assert "expected" in problem


def test_two_settings_do_not_share_state() -> None:
    first, second = Settings(), Settings()
    first.max_inflight = 1
    assert second.max_inflight == 256

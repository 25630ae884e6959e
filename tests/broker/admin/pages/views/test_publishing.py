"""What the form of a message says becomes a message, or one line that says what is wrong."""

import pytest

from broker.admin.pages.views import publishing as view
from broker.admin.records import Published


def fields(**given: str) -> dict[str, str]:
    return {**view.FIELDS, "topic": "a/b", **given}


def test_every_field_is_in_the_message() -> None:
    made = view.wanted(
        fields(
            payload="one\r\ntwo", qos="2", retain="1", content_type="text/plain", expires="2h",
            properties="unit = m\n\nunit=k=v\n", reason="test",
        )
    )  # fmt: skip
    assert (made.topic, made.text, made.payload) == ("a/b", "one\ntwo", None)
    assert (made.qos, made.retain, made.content_type) == (2, True, "text/plain")
    assert (made.expiry_seconds, made.reason) == (7200, "test")
    assert made.user_properties == [("unit", "m"), ("unit", "k=v")]


def test_a_payload_in_base64_may_have_line_ends() -> None:
    made = view.wanted(fields(written="base64", payload="AA\r\nAA\n"))
    assert (made.text, made.payload) == (None, "AAAA")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"topic": ""}, "on which topic"),
        ({"topic": "a/#"}, "a/#"),
        ({"qos": "3"}, "qos"),
        ({"expires": "soon"}, "'soon': expected a time"),
        ({"properties": "unit"}, "'unit': expected name=value"),
    ],
)
def test_what_was_typed_wrong_is_said(given: dict[str, str], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        view.wanted(fields(**given))


def test_the_notice_says_who_gets_it() -> None:
    assert "1 subscription gets it" in view.notice(Published("a", 1, 1, 0, 0, True))
    assert "2 subscriptions get it" in view.notice(Published("a", 2, 1, 0, 1, True))
    assert "no subscription gets it" in view.notice(Published("a", 0, 0, 0, 0, False))

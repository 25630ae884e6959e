"""Each parameter reads what it should and says what it expected."""

import re

import pytest

from broker.admin.api import values
from broker.admin.api.endpoints import Parameter


@pytest.mark.parametrize(
    ("parameter", "text", "value"),
    [
        (values.LIMITED, "1000", 1000),
        (values.OLDER, "2d", 172_800),
        (values.SINCE, "45s", 45),
        (values.DRY_RUN, "true", True),
        (values.DRY_RUN, "false", False),
        (values.TOPIC, "a/+/#", "a/+/#"),
        (values.TOPIC_NAME, "a/b", "a/b"),
        (values.REASON, "", ""),
        (values.CURSOR, "0a", "0a"),
    ],
)
def test_what_is_written_well_is_read(parameter: Parameter, text: str, value: object) -> None:
    assert parameter.parse(text) == value


@pytest.mark.parametrize(
    ("parameter", "text", "words"),
    [
        (values.OLDER, "0s", "expected a time such as"),
        (values.OLDER, "2", "expected a time such as"),
        (values.OLDER, "9999999999d", "expected a time such as"),
        (values.DRY_RUN, "1", "expected true or false"),
        (values.TOPIC, "a/#/b", "#"),
        (values.TOPIC, "$share/g/a", "without $share/NAME/"),
        (values.TOPIC, "", "expected 1 to"),
        (values.TOPIC_NAME, "a/+", "topic"),
        (values.TOPIC_NAME, "x" * 70_000, "expected 1 to"),
        (values.MATCH, "a\0", "U+0000"),
        (values.REASON, "ä" * 600, "at most 1024 bytes"),
        (values.CURSOR, "Z", "`next`"),
    ],
)
def test_what_is_not_is_told(parameter: Parameter, text: str, words: str) -> None:
    with pytest.raises(ValueError, match=re.escape(words)):
        parameter.parse(text)

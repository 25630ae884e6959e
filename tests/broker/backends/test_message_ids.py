"""Are identifiers those that other brokers' stores have: same form, same time, same order?"""

import pytest

from broker.backends.message_ids import (
    CHARACTERS,
    UNSTORED,
    decimal_id,
    decode_id,
    message_id,
    message_number,
    node_number,
    number_of,
    unstored_id,
)


def test_an_identifier_of_another_broker_tells_its_time() -> None:
    microseconds, _, _ = decode_id("2VFt0kuNrOktefX6m4nP")
    assert microseconds // 1_000_000 == 1_542_338_754


def test_an_identifier_is_what_it_was_before() -> None:
    assert message_id(1_542_338_754_670, 258, 70_000) == "2VFt0kuBeDG4M3gZG2c4"


@pytest.mark.parametrize("offset", [1, 2**20, UNSTORED - 1])
def test_an_identifier_says_what_it_is_made_of(offset: int) -> None:
    text = message_id(1_763_711_111_111, 65_535, offset)
    assert len(text) == CHARACTERS
    assert decode_id(text) == (1_763_711_111_111_000, 65_535, offset)


def test_identifiers_sort_by_time_and_then_by_offset() -> None:
    moments = [
        (ms, offset) for ms in (1, 1_542_338_754_670, 1_763_711_111_111) for offset in (1, 9)
    ]
    names = [message_id(ms, 7, offset) for ms, offset in moments]
    assert names == sorted(names) and len(set(names)) == len(names)
    assert "2VFt0kuNrOktefX6m4nP" < names[-1]


def test_a_message_that_is_not_in_the_log_has_a_name_of_its_own() -> None:
    assert unstored_id(5, 7, 3) != message_id(5, 7, 3)
    assert decode_id(unstored_id(5, 7, 3)) == (5000, 7, UNSTORED | 3)


def test_nodes_differ() -> None:
    assert node_number("a") != node_number("b")
    assert 0 <= node_number("emqx@127.0.0.1") < 1 << 16


@pytest.mark.parametrize("wrong", ["", "x" * 19, "x" * 21, "2VFt0kuNrOktefX6m4n-"])
def test_what_is_no_identifier_is_refused(wrong: str) -> None:
    with pytest.raises(ValueError, match="base62"):
        decode_id(wrong)


def test_a_decimal_identifier_is_the_same_number() -> None:
    number = message_number(1_542_338_754_670, 258, 70_000)
    assert decode_id(message_id(1_542_338_754_670, 258, 70_000))[2] == 70_000
    written = decimal_id(number)
    assert "=" not in written
    assert number_of(written) == number
    assert number_of("Mjg4MTk1MDYwNTk0NjYwNzYzMTg4MDk3OTQ2MDU2Nzg1OTA") > 10**34


@pytest.mark.parametrize("text", ["", "!", "a", "YWJj", "Mjg4M"])
def test_another_text_is_no_number(text: str) -> None:
    assert number_of(text) == 0

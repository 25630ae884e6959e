"""Are the names of tables and of messages what applications know?"""

import pytest

from broker.backends.dynamodb_tables import (
    CONDITION_FAILED,
    EXPIRING,
    KEYS,
    CallRefused,
    id_of_told,
    ordered_id,
)
from broker.backends.message_ids import decimal_id


def test_the_tables_that_expire_are_among_those_that_there_are() -> None:
    assert set(EXPIRING) < set(KEYS)
    assert all(1 <= len(keys) <= 2 for keys in KEYS.values())


@pytest.mark.parametrize("number", [0, 1, 10**20, 2**128 - 1])
def test_an_ordered_id_gives_the_stores_own_back(number: int) -> None:
    assert id_of_told(ordered_id(number)) == decimal_id(number)


def test_ordered_ids_sort_by_their_numbers() -> None:
    numbers = [0, 9, 10, 10**38, 2**128 - 1]
    assert sorted(map(ordered_id, numbers)) == [ordered_id(each) for each in numbers]


@pytest.mark.parametrize("text", ["m", "", "#", "#7", "0" * 40, "#" + "x" * 39])
def test_another_id_is_the_stores_own(text: str) -> None:
    assert id_of_told(text) == text


def test_a_condition_that_does_not_hold_is_told_from_other_refusals() -> None:
    assert CallRefused("x", code=CONDITION_FAILED + "Exception").is_condition
    assert not CallRefused("x", code="ValidationException").is_condition
    assert CallRefused("x", {1: "y"}).at == {1: "y"}

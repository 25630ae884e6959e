"""Is each item written once in a group, and does the one change say what all of them said?"""

from typing import Any

import pytest

from broker.backends.dynamodb_actions import ADD, DELETE, PUT, REMOVE, SET, Change
from broker.backends.dynamodb_groups import BYTES_MAX, STEPS_MAX, Group, Part, merge, size_of
from broker.backends.dynamodb_tables import number, text

KEY = {"topic": text("t")}


def change(kind: str, **more: Any) -> Change:
    """Return a change of one item."""
    return Change(kind, "topic_msg_map", {**KEY, **more})


def ids(*names: str) -> dict[str, list[str]]:
    """Return a set of texts."""
    return {"SS": list(names)}


@pytest.mark.parametrize("first", [PUT, DELETE, SET, ADD, REMOVE])
@pytest.mark.parametrize("second", [PUT, DELETE])
def test_what_replaces_the_item_is_all_that_counts(first: str, second: str) -> None:
    last = change(second, qos=number(2))
    assert merge(change(first, qos=number(1), MsgId=ids("a")), last) is last


@pytest.mark.parametrize(
    ("first", "kind", "item"),
    [
        (change(PUT, a=number(1), b=number(1)), PUT, {"a": number(1), "b": number(2)}),
        (change(SET, a=number(1)), SET, {"a": number(1), "b": number(2)}),
        (change(DELETE), PUT, {"b": number(2)}),
    ],
)
def test_attributes_are_set_on_what_was_there(first: Change, kind: str, item: Any) -> None:
    found = merge(first, change(SET, b=number(2)))
    assert found is not None
    assert (found.kind, found.item) == (kind, {**KEY, **item})


@pytest.mark.parametrize("kind", [ADD, REMOVE])
def test_members_are_united(kind: str) -> None:
    found = merge(change(kind, MsgId=ids("a", "b")), change(kind, MsgId=ids("b", "c")))
    assert found is not None
    assert (found.kind, found.item["MsgId"]) == (kind, ids("a", "b", "c"))


@pytest.mark.parametrize("kinds", [(ADD, REMOVE), (REMOVE, ADD), (PUT, ADD), (ADD, SET)])
def test_what_cannot_be_one_change_waits(kinds: tuple[str, str]) -> None:
    group = Group()
    first, second = (Part(0, 1, change(kind, MsgId=ids("a"))) for kind in kinds)
    assert group.take(first)
    assert not group.take(second)
    assert [step.parts for step in group.steps()] == [[first]]


def test_a_group_has_no_more_items_than_a_transaction() -> None:
    group = Group()
    for each in range(STEPS_MAX):
        assert group.take(Part(each, 1, Change(PUT, "msg", {"msgid": text(str(each))})))
    assert not group.take(Part(0, 1, Change(PUT, "msg", {"msgid": text("another")})))
    assert group.take(Part(0, 1, Change(PUT, "msg", {"msgid": text("7")})))
    assert len(group.steps()) == STEPS_MAX


def test_a_group_has_no_more_bytes_than_a_transaction() -> None:
    group = Group()
    large = {"msgid": text("a"), "payload": {"B": bytes(BYTES_MAX)}}
    assert group.take(Part(0, 1, Change(PUT, "msg", large))), "alone it is tried, and refused"
    assert not group.take(Part(1, 1, Change(PUT, "msg", {"msgid": text("b")})))


def test_sizes_are_of_bytes() -> None:
    small = size_of({"topic": text("a")})
    assert size_of({"topic": text("ä")}) == small + 1
    assert size_of({"topic": text("a"), "MsgId": ids("12", "345")}) == small + 10

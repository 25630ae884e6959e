"""Whom a page is about, and what hides the others."""

from audit.report import nodes
from tests.audit import pictures


def test_every_broker_that_ran_or_was_covered_can_be_chosen() -> None:
    assert nodes.of(pictures.uneven())[:2] == ["holdfast-1", "holdfast-2"]
    assert len(nodes.of(pictures.uneven())) == 6


def test_one_broker_is_no_choice() -> None:
    assert nodes.classes(pictures.violated()) == {}


def test_there_are_as_many_rules_as_choices_and_no_more_than_fit() -> None:
    picture = pictures.uneven()
    for number in range(60):
        picture.coverage += pictures.recorded(f"n{number:02}", (1, "full"))
    assert len(nodes.of(picture)) == nodes.NODES_MAX
    assert len(nodes.rules(nodes.of(picture)).splitlines()) == nodes.NODES_MAX
    assert nodes.classes(picture)["holdfast-2"] == "of n1"

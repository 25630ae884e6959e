"""Starts of the broker, and the last verdict."""

from broker.admin.pages.views import past
from broker.admin.records import Start, Starts, Verdict
from tests.broker.admin.pages.records import AT


def test_while_the_history_is_read_the_page_says_so() -> None:
    assert "being read" in past.context(None, None)["boots_empty"]
    assert "no start" in past.context(Starts([], []), None)["boots_empty"]


def test_a_verdict_has_a_word_and_a_colour() -> None:
    start = Start(1, AT, "crash", 5, "books")
    context = past.context(Starts([start], ["n"]), Verdict("violated", AT, ["D1: violated"]))
    assert (context["audit_kind"], context["audit_word"]) == ("bad", "an invariant is violated")
    assert (context["boots"], context["boots_notes"]) == ([start], ["n"])
    assert past.context(None, Verdict("ok", "", []))["audit_kind"] == "good"

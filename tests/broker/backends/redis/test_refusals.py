"""Is what a server has refused read as it was written, each refusal once?"""

from broker.backends.redis import refusals
from broker.backends.sink import Fence

PLACES = ["1,0,4", "1,0,5", "2,0,4"]


def test_a_refusal_names_row_rule_and_reason() -> None:
    fence = Fence("ours", (2, 0))
    kept = [refusals.encode(fence, PLACES, [(0, "WRONGTYPE"), (2, "no such command")]).encode()]
    found = list(refusals.decode(kept, "ours"))
    assert [(each.upto, each.at, each.rule, each.why) for each in found] == [
        ((2, 0), (1, 0), 4, "WRONGTYPE"),
        ((2, 0), (2, 0), 4, "no such command"),
    ]


def test_a_batch_that_was_applied_again_has_its_refusals_once() -> None:
    kept = [refusals.encode(Fence("ours", (2, 0)), PLACES, [(0, "a"), (1, "b")])] * 2
    assert [each.why for each in refusals.decode(kept, "ours")] == ["a", "b"]


def test_those_of_another_database_are_left_out() -> None:
    kept = [refusals.encode(Fence("theirs", (2, 0)), PLACES, [(0, "a")])]
    assert list(refusals.decode(kept, "ours")) == []
    assert list(refusals.decode(None, "ours")) == []

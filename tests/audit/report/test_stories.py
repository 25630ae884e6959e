"""Which witnesses get a story, and what it says."""

from typing import Any

import pytest

from audit.report import page as report
from audit.report import stories
from audit.report.stories import Focus
from storage.history.events import COLUMNS
from tests.audit import pictures


def row(seq: int, ev: str, **columns: Any) -> dict[str, Any]:
    """Return a row as `audit.analytics.witness_rows` gets it."""
    empty: dict[str, Any] = {name: None for name, _ in COLUMNS}
    return {**empty, "boot": 1, "seq": seq, "ev": ev, "at_us": pictures.BEGIN + seq, **columns}


def test_every_invariant_gets_a_story_before_one_gets_two() -> None:
    witnesses = [{"node": "n", "msg": number} for number in range(100)]
    chosen = stories.chosen({"L2": witnesses, "D1": witnesses, "O1": witnesses[:1]})
    assert [focus.invariant for focus in chosen[:5]] == ["L2", "D1", "O1", "L2", "D1"]
    assert len(chosen) == stories.STORIES_MAX


@pytest.mark.parametrize(
    ("witness", "place"),
    [
        ({"boot": 2, "seq": 9}, 2 << 40 | 9),
        ({"at": {"boot": 1, "seq": 4}}, 1 << 40 | 4),
        ({"from": {"boot": 1, "seq": 1}, "to": {"boot": 1, "seq": 7}}, 1 << 40 | 7),
        ({"boot": 3, "from_seq": 5, "to_seq": 8}, 3 << 40 | 8),
        ({"msg": 5}, None),
    ],
)
def test_the_place_of_a_witness_is_where_it_went_wrong(
    witness: dict[str, Any], place: int | None
) -> None:
    (focus,) = stories.chosen({"L2": [{"node": "n", "msg": 1, **witness}]})
    assert focus.place == place


def test_a_witness_that_names_nobody_and_a_suppressed_one_get_none() -> None:
    assert stories.chosen({"G1": [{"what": "a negative count", "node": "n"}]}) == []
    assert stories.chosen({"B1": [{"msg": 4}]}) == []
    assert stories.chosen({"L2": [{"node": "n", "msg": 4, "suppressed": "known"}]}) == []


def test_a_story_is_told_in_order_in_the_words_of_the_timeline() -> None:
    focus = Focus("L2", 0, "n", 7, None, 1 << 40 | 2)
    rows = [
        row(2, "msg_delivered", msg=7, qos=1, pid=3, client_id="c\x1b"),
        row(1, "msg_accepted", msg=7, topic="t", pub_qos=1, client_id="p"),
    ]
    story = stories.told(focus, rows, 12)
    assert [told.text for told in story.rows] == [
        "published message 7 to 't' at QoS 1", "was sent message 7 at QoS 1, packet id 3",
    ]  # fmt: skip
    assert [told.is_witness for told in story.rows] == [False, True]
    assert story.rows[1].client_id == "c\\x1b"
    assert story.left_out == 10
    assert stories.of_json(stories.as_json([story])) == [story]


def test_a_story_is_bounded() -> None:
    rows = [row(seq, "msg_dropped", reason=1020, msg=1) for seq in range(500)]
    story = stories.told(Focus("L2", 0, "n", 1, None, None), rows, 500)
    assert len(story.rows) == stories.ROWS_MAX
    assert story.left_out == 500 - stories.ROWS_MAX


def test_the_page_tells_the_story_and_marks_the_row_of_the_finding() -> None:
    page = report.render(pictures.violated())
    assert "Story of witness 1: passed over: below the position, never delivered" in page
    assert page.count("(the row that the finding names)") == 4
    assert "and 12 more rows" in page

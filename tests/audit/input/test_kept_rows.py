"""What one batch keeps for the next."""

from pyspark.sql import functions as F

from audit.input import kept_rows
from audit.input.events import NAMES
from audit.input.kept_rows import Kept


def test_what_two_parts_want_is_kept_once(history, view) -> None:
    history.boot()
    for number in range(4):
        history.row("msg_accepted", msg=number)
    made = view(history)
    accepted = made.of("msg_accepted", columns=("node", "gseq", "msg"))
    one, other = accepted.where("msg < 2"), accepted.where("msg IN (1, 3)")
    rows = kept_rows.rows(made, [Kept((one,)), Kept((other,))]).collect()
    assert sorted((row.ev, row.msg) for row in rows) == [
        ("msg_accepted", 0),
        ("msg_accepted", 1),
        ("msg_accepted", 3),
    ]


def test_a_place_means_the_event_and_not_a_row_that_was_made_there(history, view) -> None:
    history.boot()
    event = history.row("msg_accepted", msg=7)
    history.rows.append({**event, "ev": "#made", "session": 5})
    shown = view(history)
    place = shown.of("msg_accepted", columns=("node", "gseq"))
    new = shown.events.where(F.col("ev") == "boot").withColumn("ev", F.lit("#other"))
    rows = kept_rows.rows(shown, [Kept((place,), (new,))])
    assert sorted(row.ev for row in rows.collect()) == ["#other", "msg_accepted"]
    assert tuple(rows.columns) == NAMES


def test_nothing_wanted_is_no_row(history, view) -> None:
    history.boot()
    assert kept_rows.rows(view(history), []).count() == 0

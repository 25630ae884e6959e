"""What a view knows: holes, levels of detail, boots; and its condition for Spark."""

from pyspark.sql import functions as F

from audit.input.events import gseq


def test_a_history_without_holes_has_no_gap(history, view) -> None:
    history.boot()
    for _ in range(5):
        history.row("gc_run")
    history.row("shutdown")
    history.boot()
    made = view(history)
    assert list(made.gaps) == []
    assert [(b.boot, b.last_seq, b.clean, b.claimed) for b in made.boots] == [
        (1, 7, True, 0),
        (2, 1, False, 7),
    ]
    assert made.boots[0].first_us < made.boots[0].last_us < made.boots[1].first_us


def test_a_hole_is_found_within_a_bucket_and_doubled_rows_count_once(history, view) -> None:
    history.boot()
    history.row("gc_run")
    history.lose(3)
    history.row("gc_run")
    history.rows.append(dict(history.rows[1]))  # makes up for the number of rows of one lost
    history.rows.append(dict(history.rows[1]))
    history.rows.append(dict(history.rows[1]))
    made = view(history)
    assert [(g.from_gseq, g.to_gseq, g.kind, g.explained) for g in made.gaps] == [
        (gseq(1, 3), gseq(1, 5), "hole", False)
    ]
    assert sum(doubled.rows for doubled in made.duplicates) == 3
    assert made.events.count() == 3


def test_the_condition_is_true_where_an_interval_touches_a_gap(history, view) -> None:
    history.boot()
    history.row("gc_run")
    history.lose(2)
    history.row("gc_run")
    made = view(history)
    spans = [(1, 2), (1, 3), (4, 9), (5, 9)]
    frame = made.spark.createDataFrame(
        [("n1", gseq(1, start), gseq(1, end)) for start, end in spans] + [("n2", 0, 1 << 60)],
        "node string, start long, end long",
    )
    touched = made.touches_gap(F.col("node"), F.col("start"), F.col("end"))
    assert [row[0] for row in frame.select(touched).collect()] == [False, True, True, False, False]


def test_a_gap_of_messages_is_none_for_sessions(history, view) -> None:
    history.boot(detail="books")
    made = view(history)
    frame = made.spark.range(1).select(F.lit(gseq(1, 1)).alias("at"))
    node, at = F.lit("n1"), F.col("at")
    assert frame.select(made.touches_gap(node, at, at)).first()[0] is True
    assert frame.select(made.touches_gap(node, at, at, kinds=["hole"])).first()[0] is False
    assert not made.has_messages


def test_only_asked_for_events_and_columns_come(history, view) -> None:
    history.boot()
    history.row("gc_run", count=4)
    history.row("checkpoint")
    made = view(history)
    frame = made.of("gc_run", columns=["seq", "count"])
    assert frame.columns == ["seq", "count"]
    assert [tuple(row) for row in frame.collect()] == [(2, 4)]
    assert made.of("gc_run", "boot", columns=["seq"]).count() == 2


def test_a_history_that_begins_late_without_messages_is_not_taken_for_full(history, view) -> None:
    history.boot(detail="books")
    history.row("gc_run", count=0)
    del history.rows[0]  # its segment was deleted by the retention
    made = view(history)
    assert [span.recorded for span in made.new_spans] == ["sessions"]
    history.row("msg_accepted", msg=1)
    assert [span.recorded for span in view(history).new_spans] == ["full"]

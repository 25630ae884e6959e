"""H1: holes, doubled rows, and disks that lose what was durable."""

from dataclasses import replace

from audit.checks.log_checks import check, lost_messages
from audit.input.segments import find
from tests.audit.conftest import History


def segment_name(boot: int, first: int, last: int) -> str:
    return f"n1-{boot:08}-{first:016}-{last:016}.parquet"


def test_a_history_without_holes_is_ok(history, view) -> None:
    history.boot()
    history.row("shutdown")
    history.boot()
    (outcome,) = check(view(history))
    assert (outcome.status, outcome.checked, outcome.witnesses) == ("ok", 3, [])


def test_a_hole_nobody_accounts_for_is_a_violation(history, view) -> None:
    history.boot()
    history.lose(2)
    history.row("shutdown")
    (outcome,) = check(view(history))
    assert outcome.status == "violated"
    assert outcome.witnesses == [
        {
            "what": "rows are missing",
            "node": "n1",
            "from": {"boot": 1, "seq": 2},
            "to": {"boot": 1, "seq": 3},
            "reason": "rows are missing",
            "files": [segment_name(1, 1, 4)],
        }
    ]


def test_a_missing_segment_is_named_by_those_around_it(history, view, tmp_path) -> None:
    history.boot()
    for _ in range(8):
        history.row("gc_run")
    for path in history.write(tmp_path, segments=3)[1:2]:
        path.unlink()
    del history.rows[3:6]
    other = History("n0")
    other.boot()
    other.write(tmp_path)
    kept = find(view.spark, str(tmp_path))
    assert len(kept) == 3
    (outcome,) = check(replace(view(history), segments=kept))
    (witness,) = outcome.witnesses
    assert (witness["from"], witness["to"]) == ({"boot": 1, "seq": 4}, {"boot": 1, "seq": 6})
    assert witness["files"] == [segment_name(1, 1, 3), segment_name(1, 7, 9)]


def test_rows_thrown_away_with_a_word_are_unknown(history, view) -> None:
    history.boot()
    history.lose(2)
    history.row("history_gap", reason=1051, count=2)
    made = view(history)
    (outcome,) = check(made)
    outcome = outcome.within(made.new_spans)
    assert (outcome.status, outcome.unknown, outcome.violated) == ("unknown", 1, 0)


def test_more_missing_than_was_thrown_away_is_a_violation(history, view) -> None:
    history.boot()
    history.lose(3)
    history.row("history_gap", reason=1051, count=2)
    (outcome,) = check(view(history))
    assert outcome.status == "violated"


def test_the_end_of_a_boot_is_missing_if_the_next_one_had_it(history, view) -> None:
    history.boot()
    history.row("gc_run")
    history.boot(count=5)
    (outcome,) = check(view(history))
    assert outcome.status == "violated"
    assert outcome.witnesses[0]["from"] == {"boot": 1, "seq": 3}
    assert outcome.witnesses[0]["to"] == {"boot": 1, "seq": 5}


def test_a_disk_that_lost_durable_rows_is_found_and_its_messages_are_named(history, view) -> None:
    history.boot()
    history.row("msg_persisted", msg=1)
    history.row("msg_persisted", msg=2)
    history.row("pub_acked", msg=2)
    history.boot(count=2)
    made = view(history)
    (outcome,) = check(made)
    assert outcome.status == "violated"
    assert outcome.witnesses == [
        {
            "what": "the disk lost rows that had been durable",
            "node": "n1",
            "boot": 1,
            "from_seq": 3,
            "to_seq": 4,
            "messages": [2],
            "files": [segment_name(1, 1, 4)],
        }
    ]
    assert lost_messages(made, _loss(made)) == [2]


def test_where_the_history_begins_is_no_fault(history, view) -> None:
    history.number, history.seq = 4, 90
    history.row("gc_run")
    (outcome,) = check(view(history))
    assert outcome.status == "ok"


def test_boots_without_history_are_unknown(history, view) -> None:
    history.boot()
    history.row("shutdown")
    history.number += 1
    history.boot(count=0)
    made = view(history)
    (outcome,) = check(made)
    outcome = outcome.within(made.new_spans)
    assert (outcome.status, outcome.unknown) == ("unknown", 1)


def test_rows_twice_are_a_violation(history, view) -> None:
    history.boot()
    for _ in range(3):
        history.rows.append(dict(history.row("gc_run")))
    history.row("gc_run")
    history.boot()
    history.rows.append(dict(history.row("gc_run")))
    (outcome,) = check(view(history))
    assert outcome.violated == 2
    assert outcome.witnesses == [
        {
            "what": "rows are there more than once",
            "node": "n1",
            "from": {"boot": boot, "seq": 2},
            "to": {"boot": boot, "seq": last},
            "rows": rows,
            "files": [segment_name(boot, 1, end)],
        }
        for boot, last, rows, end in ((1, 4, 3, 5), (2, 2, 1, 2))
    ]


def _loss(made):
    from audit.checks.log_checks import disk_losses

    (loss,) = disk_losses(made)
    return loss

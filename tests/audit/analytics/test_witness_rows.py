"""The rows around witnesses: which ones, and how many."""

from pathlib import Path

from pyspark.sql import SparkSession

from audit.analytics import witness_rows
from audit.checks.verdict import Outcome
from audit.report import stories


def test_a_story_has_the_rows_of_its_message_and_session_and_is_bounded_and_kept(
    spark: SparkSession, tmp_path: Path, history, view
) -> None:
    history.boot()
    reader, giver, other = (history.session(n, i) for i, n in enumerate(("r", "g", "o"), 1))
    for client in (reader, giver, other):
        client.create()
    giver.row("msg_accepted", msg=5, topic="t", pub_qos=1)
    history.row("msg_enqueued", msg=5, stream=2)
    other.row("msg_delivered", msg=5, qos=1, pid=1)
    sent = reader.row("msg_delivered", msg=5, qos=1, pid=1)
    for number in range(100, 160):
        reader.row("msg_delivered", msg=number, qos=0)
    reader.leave()
    history.row("shutdown")
    made = view(history)
    about = {"node": "n1", "msg": 5, "session": reader.number, "boot": 1, "seq": sent["seq"]}
    outcomes = [
        Outcome("L2", 1, 1, 0, [about]),
        Outcome("W1", 1, 1, 0, [{"node": "n1", "session": other.number, "boot": 1, "seq": 4}]),
        Outcome("H1", 1, 1, 0, [{"node": "n1", "to": {"boot": 1, "seq": 2}}]),
        Outcome("S1", 1, 1, 0, [{"node": "n9", "session": 1, "boot": 1, "seq": 2}]),
        Outcome("O1", 1, 0, 1, [about]),
    ]
    witness_rows.write(made, outcomes, str(tmp_path), 3)
    told = {s.invariant: s for s in witness_rows.read(spark, str(tmp_path), 3)}
    assert sorted(told) == ["H1", "L2", "W1"]
    lost = told["L2"]
    assert len(lost.rows) == stories.ROWS_MAX
    assert lost.left_out == (5 + 1 + 60 + 1 + 2) - stories.ROWS_MAX - 1
    texts = [row.text for row in lost.rows]
    assert "published message 5 to 't' at QoS 1" in texts
    assert "message 5 stored for stream 2" in texts
    assert [row.seq for row in lost.rows if row.is_witness] == [sent["seq"]]
    assert [row.seq for row in lost.rows] == sorted(row.seq for row in lost.rows)
    assert [row.client_id for row in told["W1"].rows] == ["", "o", "o", ""]
    assert [row.seq for row in told["H1"].rows][:7] == [1, 2, 3, 4, 5, 6, 7]
    assert witness_rows.read(spark, str(tmp_path), 4) == []


def test_what_holds_costs_no_job(spark: SparkSession, tmp_path: Path, history, view) -> None:
    history.boot()
    made = view(history)
    assert witness_rows.tell(made, []) == []
    witness_rows.write(made, [Outcome("L2", 1, 0, 0)], str(tmp_path), 0)
    assert witness_rows.read(spark, str(tmp_path), 0) == []

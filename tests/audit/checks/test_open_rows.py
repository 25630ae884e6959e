"""A history that is audited in two batches is judged like one that is audited in one."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from audit.checks import delivery_checks, open_rows, publish_checks, session_checks
from audit.input import kept_rows
from audit.run import Part, run
from tests.audit.conftest import History
from tests.audit.story import PUBLISHER, Story

PARTS = (
    Part("sessions", lambda view: [], session_checks.carry),
    Part("messages on their way in", publish_checks.check),
    Part("deliveries", delivery_checks.check, open_rows.carry, delivery_checks.tables),
)
DONE, BEHIND, MEMBER, OTHER = 1, 2, 3, 4
GROUP = "$share/g/+/both"
ADDED_UP = (
    "accepted",
    "acknowledged",
    "cut_off",
    "delivered",
    "redelivered",
    "duplicated",
    "duplicated_qos2",
    "lost",
)

Row = dict[str, Any]


def first_half(story: Story) -> dict[str, int]:
    """Tell how one session is done with nearly everything, and another one with nothing."""
    for session in (DONE, BEHIND, MEMBER, OTHER):
        story.connect(session)
    for session in (DONE, BEHIND):
        story.subscribe(session, "a/#")
    for session in (MEMBER, OTHER):
        story.subscribe(session, GROUP, share="g")
    for tfilter in ("c/#", "d/#", "+/x"):
        story.subscribe(DONE, tfilter)
    flying = story.publish("a/1", "a/#")
    story.exchange(DONE, flying)
    story.deliver(BEHIND, flying, pid=1)
    both = story.publish("a/1", "a/#", pub_qos=2)  # its PUBCOMP is still to come
    story.exchange(DONE, both)
    due = story.publish("a/1", "a/#", expiry_s=60)
    story.exchange(DONE, due)
    grouped = story.publish("a/both", "a/#", GROUP)
    story.exchange(MEMBER, grouped, share="g")
    story.exchange(DONE, grouped)
    waiting = story.publish("a/both", "a/#", GROUP)
    story.exchange(DONE, waiting)
    lost = story.publish("a/3", "a/#")
    left = story.publish("c/1", "c/#")
    story.deliver(DONE, left, pid=7)
    story.row("unsubscribed", DONE, conn=1, tfilter="c/#")
    overlapping = story.publish("d/x", "d/#", "+/x")
    late = story.publish("a/1", "a/#", acked=False)
    names = ("flying", "both", "due", "grouped", "waiting", "lost", "left", "overlapping", "late")
    found = (flying, both, due, grouped, waiting, lost, left, overlapping, late)
    return dict(zip(names, found, strict=True))


def second_half(story: Story, told: dict[str, int]) -> None:
    """Tell how the one goes on, and the other catches up."""
    late = told["late"]
    story.history.row("msg_persisted", msg=late)
    story.row("pub_acked", PUBLISHER, msg=late, pid=1, pub_qos=1)
    story.row("pub_acked", PUBLISHER, msg=told["both"], pid=1, pub_qos=2)  # said once more
    story.row("pub_completed", PUBLISHER, pid=1)
    story.row("unsubscribed", DONE, conn=1, tfilter="d/#")
    story.ack(DONE, told["left"], pid=7)
    story.exchange(DONE, told["overlapping"], late)
    story.resume(DONE, position=story.offset)
    newer = story.publish("a/1", "a/#")
    story.exchange(DONE, newer, conn=2)
    story.exchange(OTHER, told["waiting"], share="g")
    story.resume(BEHIND, position=0)
    story.deliver(BEHIND, told["flying"], conn=2, attempt=2, dup=True)
    story.ack(BEHIND, told["flying"], conn=2)
    story.deliver(BEHIND, told["both"], pid=2, conn=2, qos=2)
    story.ack(BEHIND, told["both"], pid=2, conn=2, qos=2)
    story.row("msg_completed", BEHIND, msg=told["both"], pid=2, conn=2, qos=2)
    story.row("msg_expired", BEHIND, wait=100.0, msg=told["due"])
    rest = (told["grouped"], told["waiting"], told["lost"], late)
    story.exchange(BEHIND, *rest, conn=2)


def audited(
    spark: SparkSession, folder: Path, pieces: Sequence[list[Row]]
) -> tuple[list[Row], list[Row]]:
    """Return the verdicts, and all rows of the table of deliveries, in the order of batches."""
    history, out = folder / "history", folder / "out"
    verdicts, rows = [], []
    for batch, piece in enumerate(pieces):
        part = History()
        part.rows = piece
        part.write(history)
        verdict = run(spark, str(history), str(out), progress=lambda _: None, parts=PARTS)
        verdicts.append(verdict.document)
        rows += pq.read_table(out / "tables" / "deliveries" / f"batch={batch}").to_pylist()
    return verdicts, rows


def facts(verdicts: list[Row]) -> Counter[str]:
    """Return the sums of what was counted, and what is open in the end."""
    found: Counter[str] = Counter()
    for verdict in verdicts:
        told = verdict["invariants"]["L1"]["facts"] | verdict["invariants"]["L2"]["facts"]
        found.update({name: told[name] for name in ADDED_UP})
        found["open"] = told["open"]
    return found


def by_pair(rows: list[Row]) -> dict[tuple[object, ...], Row]:
    """Return the newest row of each session, or group, and message; only open ones come again."""
    newest: dict[tuple[object, ...], Row] = {}
    for row in rows:
        key = (row["session"], row["share"], row["msg"])
        assert (key in newest) == row["carried"]
        assert key not in newest or newest[key]["outcome"] == "open"
        newest[key] = {name: value for name, value in row.items() if name != "carried"}
    return newest


@pytest.mark.slow  # three runs
def test_two_batches_judge_like_one(spark: SparkSession, tmp_path: Path, history: History) -> None:
    """One session is done with messages that another is owed, then its position goes on."""
    story = Story(history)
    told = first_half(story)
    cut = len(history.rows)
    second_half(story, told)
    whole, whole_rows = audited(spark, tmp_path / "whole", [history.rows])
    pieces = [history.rows[:cut], history.rows[cut:]]
    halves, halves_rows = audited(spark, tmp_path / "halves", pieces)
    assert halves[-1]["totals"] == whole[-1]["totals"]
    totals = halves[-1]["totals"]
    accused = {name: total["violated"] for name, total in totals.items() if total["violated"]}
    assert accused == {"L2": 1}
    assert {total["unknown"] for total in totals.values()} == {0}
    assert [w["msg"] for w in halves[0]["invariants"]["L2"]["witnesses"]] == [told["lost"]]
    assert facts(halves) == facts(whole)
    newest = by_pair(halves_rows)
    # A group has a row while none of its members was sent the message; then the member has it.
    assert newest.pop((None, "g", told["waiting"]))["outcome"] == "open"
    assert newest == by_pair(whole_rows)


def test_a_packet_identifier_of_an_earlier_batch_may_be_used_again(
    spark: SparkSession, tmp_path: Path, history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message of its first exchange is still owed, which says nothing of its publisher.

    Small joins are not broadcast here, as those of a large history are not.
    """
    monkeypatch.setattr(kept_rows, "BROADCAST_ROWS_MAX", 0)
    story = Story(history)
    story.connect(DONE)
    story.subscribe(DONE, "a/#")
    for pid in (1, 2):
        story.publish("a/1", "a/#", pub_qos=2, pid=pid)
    story.row("pub_completed", PUBLISHER, pid=1)
    cut = len(history.rows)
    for pid in (1, 2):  # the exchange of the second one goes on: that is a fault
        story.publish("a/1", "a/#", pub_qos=2, pid=pid)
    verdicts, _ = audited(spark, tmp_path, [history.rows[:cut], history.rows[cut:]])
    found = [verdict["invariants"]["D1"] for verdict in verdicts]
    assert [outcome["violated"] for outcome in found] == [0, 1]
    assert [witness["pid"] for witness in found[1]["witnesses"]] == [2]
    assert not list((tmp_path / "out" / "state" / "work").glob("*"))


@pytest.mark.slow  # three runs
def test_what_a_crash_cut_off_is_counted_once(
    spark: SparkSession, tmp_path: Path, history: History
) -> None:
    """The message is still owed in all three batches; the crash is in the second one."""
    story = Story(history)
    story.connect(DONE)
    story.subscribe(DONE, "a/#")
    story.publish("a/1", "a/#", acked=False)
    first = len(history.rows)
    history.boot(count=history.seq)
    second = len(history.rows)
    history.row("gc_run", wait=1.0)
    pieces = [history.rows[:first], history.rows[first:second], history.rows[second:]]
    verdicts, _ = audited(spark, tmp_path, pieces)
    told = [verdict["invariants"]["L1"]["facts"]["cut_off"] for verdict in verdicts]
    assert told == [0, 1, 0]

"""Histories written by hand, and what the audit says of their messages: all of it through Spark.

Single cases of one session are in test_judge_session.py, where they cost nothing.
"""

from pathlib import Path

from audit.checks import delivery_checks, open_rows
from audit.checks import publish_checks as messages
from audit.checks.packed_rows import UNSTORED
from audit.checks.verdict import Outcome
from audit.input import events, kept_rows
from audit.input.batch_view import View, build
from audit.input.frame_cache import Shelf
from audit.input.kept_rows import Kept
from tests.audit.conftest import History, Views
from tests.audit.story import PUBLISHER, Story


def judged(view: View) -> dict[str, Outcome]:
    return {
        found.invariant: found for found in [*messages.check(view), *delivery_checks.check(view)]
    }


def tell_faults(story: Story) -> dict[str, list[tuple[str, int]]]:
    """Tell one fault of every kind, and beside each its innocent twin; what has to be found."""
    for session, name in enumerate(("lost", "order", "expiry", "window", "held", "own"), 1):
        story.connect(session, rmax=2)
        story.subscribe(session, f"{name}/#", no_local=name == "own")
    story.subscribe(1, "+/here")  # overlaps
    story.subscribe(5, "held/+")
    first, passed, last = (story.publish("lost/here", "lost/#", "+/here") for _ in range(3))
    story.exchange(1, first, last)

    here = [story.publish("order/1", "order/#") for _ in range(2)]
    there = story.publish("order/2", "order/#")
    other = story.publish("order/1", "order/#", pub=8)
    story.exchange(2, there, here[1], here[0], other)  # only one topic of one publisher counts

    late, early, due = (story.publish("expiry/x", "expiry/#", expiry_s=60) for _ in range(3))
    story.row("msg_expired", 3, wait=10, msg=early)
    story.deliver(3, late, wait=90)
    story.row("msg_expired", 3, msg=due)
    story.ack(3, late)
    forever = story.publish("expiry/x", "expiry/#", expiry_s=0xFFFFFFFF)
    story.exchange(3, forever)

    many = [story.publish("window/x", "window/#") for _ in range(4)]
    for pid, msg in enumerate(many[:3], 1):
        story.deliver(4, msg, pid)
    for pid, msg in enumerate(many[:3], 1):
        story.ack(4, msg, pid)
    story.deliver(4, many[3], 5)
    story.row("retained_sent", 4, topic="window/r", pid=5, qos=1, conn=1, dup=False)
    story.ack(4, None, 5)

    unheard = story.publish("held/x", "held/#")  # and not into held/+
    story.exchange(5, unheard)
    story.row("unsubscribed", 5, conn=1, tfilter="held/+")
    story.exchange(5, story.publish("held/x", "held/#"), story.publish("held/x/y", "held/#"))
    story.publish("own/x", pub=6)  # nobody but its publisher holds that stream, with No Local
    story.say_it_was_the_will_of(6, story.publish("own/w", "own/#", pub=6))
    story.exchange(6, story.publish("own/y", "own/#"))  # it was not passed over before
    story.publish("held/x", pub_qos=0)

    rash = story.publish("nobody", acked=False)
    story.row("pub_acked", PUBLISHER, msg=rash, pid=1, pub_qos=1)
    story.history.row("msg_persisted", msg=rash)
    story.row("pub_acked", PUBLISHER, msg=UNSTORED | 1 << 40 | 1, pid=1, pub_qos=1)
    story.publish("nobody", pub_qos=2, pid=7)
    twice = story.publish("nobody", pub_qos=2, pid=7)
    story.row("pub_completed", PUBLISHER, pid=7)
    story.publish("nobody", pub_qos=2, pid=7)
    return {
        "L1": [("persisted_late", rash)],
        "L2": [("passed_over", passed)],
        "L3": [("not_in_stream", unheard)],
        "D1": [("accepted_twice", twice)],
        "D2": [],
        "D3": [("in_use_twice", -1)],
        "F1": [("receive_maximum_exceeded", many[2])],
        "O1": [("after_a_later_one", here[0])],
        "E1": [("delivered_after_expiry", late), ("expired_early", early)],
    }


def named(outcome: Outcome) -> list[tuple[str, int]]:
    return sorted((str(w["what"]), int(str(w.get("msg", -1)))) for w in outcome.witnesses)


def test_every_fault_is_found_and_nobody_else_is_accused(history: History, view: Views) -> None:
    expected = tell_faults(Story(history))
    made = view(history)
    found = judged(made)
    assert {name: named(outcome) for name, outcome in found.items()} == expected
    assert {name: outcome.violated for name, outcome in found.items()} == {
        name: len(faults) for name, faults in expected.items()
    }
    assert {outcome.unknown for outcome in found.values()} == {0}
    (witness,) = found["L2"].witnesses
    assert (witness["client_id"], witness["node"]) == ("c1", "n1")
    rows = delivery_checks.table(made).where("session = 1").orderBy("msg").collect()
    assert [(row.owed, row.outcome, row.attempts) for row in rows] == [
        (True, "acked", 1),
        (True, "lost", 0),
        (True, "acked", 1),
    ]
    assert rows[0].queued_us > 0
    assert rows[0].acked_us == 1000
    facts = found["L1"].facts | found["L2"].facts
    accepted = sum(row["ev"] == "msg_accepted" for row in history.rows)
    sent = sum(row["ev"] == "msg_delivered" for row in history.rows)
    assert facts == {
        "accepted": accepted,
        "acknowledged": accepted + 1,  # one was accepted before this history began
        "cut_off": 0,
        "delivered": sent,
        "redelivered": 0,
        "duplicated": 0,
        "duplicated_qos2": 0,
        "open": 1,
        "lost": 1,
    }


def test_a_gap_turns_accusations_into_doubts(history: History, view: Views) -> None:
    """The same faults where rows are missing between any two of them."""
    story = Story(history)
    expected = tell_faults(story)
    for row in history.rows:  # holes everywhere: every second number is missing
        assert isinstance(row["seq"], int)
        row["seq"] = 2 * row["seq"] - 1
    made = view(history)
    found = judged(made)
    assert {name: outcome.violated for name, outcome in found.items()} == dict.fromkeys(expected, 0)
    assert {name: outcome.unknown for name, outcome in found.items() if expected[name]} == {
        name: len(faults) for name, faults in expected.items() if faults
    }
    lost = delivery_checks.table(made).where("outcome IN ('lost', 'unknown')").collect()
    assert [row.outcome for row in lost] == ["unknown"]


def test_a_disk_that_forgot_and_a_crash_that_cut_off(history: History, view: Views) -> None:
    """What is lost by the disk is named; what a crash may take is not.

    After the crash the broker gives the lost number to another message. A shared group loses a
    message, and another one waits for the member that comes back.
    """
    story = Story(history)
    story.connect(1)
    story.subscribe(1, "a/#")
    for session in (2, 3):
        story.connect(session)
        story.subscribe(session, "$share/g/b/#", share="g")
    kept = story.publish("a/1", "a/#")
    story.deliver(1, kept)
    both = [story.publish("b/1", "$share/g/b/#") for _ in range(4)]
    story.exchange(2, both[0], share="g")
    story.deliver(3, both[2], share="g")
    story.row("msg_moved", 3, msg=both[2], share="g")
    story.exchange(2, both[2], share="g")
    unsure = story.publish("nobody", acked=False, pub_qos=2)
    promised = story.history.seq
    gone = story.publish("a/2", "a/#")
    story.history.boot(count=promised)
    story.connect(1, sp=True)
    story.deliver(1, kept, pid=2)  # as new: its progress at QoS 1 had not reached the disk
    story.ack(1, kept, pid=2)
    story.row("pub_acked", PUBLISHER, msg=unsure, pid=1, pub_qos=2)
    story.offset = gone - 1
    again = story.publish("a/3", "a/#")
    story.exchange(1, again)
    story.history.row("gc_run", wait=1000.0)
    made = view(history)
    found = judged(made)
    assert named(found["L2"]) == [("lost_by_the_disk", gone), ("passed_over", both[1])]
    clean = {name for name, outcome in found.items() if outcome.status == "ok"}
    assert clean == set(found) - {"L2"}
    facts = found["L1"].facts | found["L2"].facts
    assert (facts["duplicated"], facts["cut_off"], facts["acknowledged"]) == (1, 1, 8)
    rows = delivery_checks.table(made).where("share = 'g'").orderBy("msg").collect()
    assert [(row.msg, row.session, row.outcome) for row in rows] == [
        (both[1], None, "lost"),
        (both[3], None, "open"),
    ]
    moved = delivery_checks.table(made).where(f"session = 3 AND msg = {both[2]}").collect()
    assert [row.outcome for row in moved] == ["moved"]


def test_what_is_open_is_judged_with_what_comes_later(
    history: History, view: Views, tmp_path: Path
) -> None:
    """In one batch a message waits, one is in flight and one exchange is open; then they go on."""
    story = Story(history)
    story.connect(1)
    story.subscribe(1, "a/#")
    flying, waiting = story.publish("a/x", "a/#"), story.publish("a/x", "a/#")
    done = story.publish("a/x", "a/#", pub_qos=2)
    story.deliver(1, flying)
    first = view(history)
    assert {outcome.violated for outcome in judged(first).values()} == {0}
    sessions = Kept((first.sessions,))  # what the checks of sessions keep
    kept = kept_rows.rows(first, [open_rows.carry(first), sessions])
    kept.write.parquet(str(tmp_path / "kept"))
    seen, history.rows = len(history.rows), []
    story.deliver(1, flying, attempt=2, dup=True)
    story.ack(1, flying)
    story.exchange(1, done)
    story.publish("b/x", pub_qos=2)
    carried = events.carried(view.spark, str(tmp_path / "kept"))
    rows = view(history).events.unionByName(carried)
    before = {"boots_before": first.boots, "gaps_before": first.gaps}
    second = build(view.spark, rows, shelf=Shelf(view.spark, str(tmp_path / "second")), **before)
    found = judged(second)
    assert named(found["L2"]) == [("passed_over", waiting)]
    assert named(found["D2"]) == [("without_reconnect", flying)]
    assert named(found["D1"]) == [("accepted_twice", done + 1)]
    facts = found["L1"].facts | found["L2"].facts
    assert (facts["accepted"], facts["delivered"], facts["redelivered"]) == (1, 1, 1)
    assert carried.where("ev NOT LIKE '#%'").count() < seen

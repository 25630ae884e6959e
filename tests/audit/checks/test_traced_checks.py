"""A traced client is judged as at `full`, though little is recorded of the others."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from audit.checks import (
    delivery_checks,
    publish_checks,
    retained_checks,
    session_checks,
    traced_checks,
)
from audit.checks.log_checks import check as log
from audit.checks.verdict import Outcome
from audit.input.batch_view import View
from audit.run import Part, run
from tests.audit.conftest import History, Views
from tests.audit.story import PUBLISHER, Story

TRACED, OTHER = 1, 2


class Lowered:
    """A story at a level below `full`, with a traced subscriber and another one."""

    def __init__(self, detail: str = "books", client: str = "c1") -> None:
        self.history = History()
        self.story = Story(self.history)
        self.history.rows[0]["detail"] = detail
        self.detail, self.client = detail, client
        for session in (TRACED, OTHER):
            self.story.connect(session)
            self.story.subscribe(session, "a")

    def begin(self) -> None:
        """Begin the trace."""
        self.mark("trace_began", f"{self.detail}, anna")

    def end(self) -> None:
        """End the trace."""
        self.mark("trace_ended", f"{self.detail}, its time is over")

    def mark(self, ev: str, detail: str) -> None:
        self.history.row(ev, client_id=self.client, tenant="", detail=detail)

    def publish(self, **columns: object) -> int:
        """Store a message as a trace of the subscriber tells it: without the PUBACK."""
        msg = self.story.publish("a", "a", acked=False, **columns)
        self.history.row("msg_persisted", msg=msg)
        return msg

    def unrecorded(self) -> int:
        """Store a message of which nothing is recorded."""
        self.story.offset += 1
        return self.story.offset


def guilty(outcomes: list[Outcome]) -> dict[str, list[tuple[object, object, object]]]:
    """Return what is violated: the words, the client and the message of each witness."""
    return {
        outcome.invariant: [
            (each["what"], each.get("client_id"), each.get("msg")) for each in outcome.witnesses
        ]
        for outcome in outcomes
        if outcome.violated
    }


def untraced(view: View) -> list[Outcome]:
    """Return what the audit says beside the traces."""
    return [
        *publish_checks.check(view), *delivery_checks.check(view), *retained_checks.check(view)
    ]  # fmt: skip


@pytest.mark.parametrize("detail", ["books", "sampled:1/3"])
def test_a_message_that_a_traced_session_was_passed_over_with_is_lost(
    view: Views, detail: str
) -> None:
    told = Lowered(detail)
    told.begin()
    first, lost, last = told.publish(), told.publish(), told.publish()
    told.story.exchange(TRACED, first, last)
    told.end()
    made = view(told.history)
    assert guilty(traced_checks.check(made)) == {"L2": [("passed_over", "c1", lost)]}
    (trace,) = traced_checks.told(made)
    assert (trace["client_id"], trace["judged"], trace["not_judged"]) == ("c1", 1, 0)


@pytest.mark.parametrize("detail", ["books", "sampled:1/2"])
def test_what_crosses_an_end_of_the_trace_wrongs_nobody(view: Views, detail: str) -> None:
    """Sent before and again inside; owed inside and sent behind; other sessions are not told of."""
    told = Lowered(detail)
    old = told.unrecorded()
    told.begin()
    told.story.ack(TRACED, old, pid=7)
    told.story.resume(TRACED, position=0)
    told.story.deliver(TRACED, told.unrecorded(), pid=3, dup=True, attempt=2, conn=2)
    sent, waits = told.publish(), told.publish()
    told.story.exchange(TRACED, sent, conn=2)
    told.end()
    told.story.resume(TRACED, conn=3, position=waits)
    told.history.row("gc_run", wait=1000)
    made = view(told.history)
    assert guilty(traced_checks.check(made)) == {}
    assert guilty(untraced(made)) == {}


def test_what_a_trace_adds_changes_nothing_of_what_is_said_of_all(view: Views) -> None:
    """At `books` no single message counts, whatever a trace has recorded of some."""
    told = Lowered()
    told.begin()
    told.story.exchange(TRACED, told.publish(), told.publish())
    told.end()
    made = view(told.history)
    checked = {each.invariant: each.checked for each in untraced(made)}
    assert set(checked.values()) == {0}
    found = {each.invariant: each.checked for each in traced_checks.check(made)}
    assert (found["L2"], found["D2"], found["L3"]) == (2, 2, 2)


def test_what_a_traced_publisher_was_promised_must_be_on_disk(view: Views) -> None:
    told = Lowered(client=f"c{PUBLISHER}")
    told.story.connect(PUBLISHER, conn=99)
    told.begin()
    kept = told.story.publish("a", "a")
    told.story.publish("a", "a", acked=False)
    told.story.row("pub_acked", PUBLISHER, msg=kept + 1, pid=1, pub_qos=1)
    told.story.publish("a")
    told.end()
    made = view(told.history)
    found = guilty(traced_checks.check(made))
    assert found == {
        "L1": [("never_persisted", None, kept + 1)],
        "L3": [("not_in_stream", f"c{PUBLISHER}", kept + 2)],
    }


def test_a_kill_closes_the_trace_and_the_next_boot_is_not_told_in_full(view: Views) -> None:
    told = Lowered()
    told.begin()
    told.story.deliver(TRACED, told.publish(), pid=1)
    told.history.boot(detail="books")
    told.story.row("session_disconnected", TRACED, conn=0, reason=1002)
    told.story.connect(TRACED, 2, sp=True, position=9)
    told.history.row("gc_run", wait=1000)
    made = view(told.history)
    (trace,) = made.traces
    assert not trace.is_open and trace.to_gseq == made.boots[0].last_gseq
    assert guilty(traced_checks.check(made)) == {}


def test_a_message_that_waits_too_long_within_the_trace_is_lost(view: Views) -> None:
    told = Lowered()
    told.begin()
    waits = told.publish()
    told.history.row("gc_run", wait=400)
    told.end()
    made = view(told.history)
    assert guilty(traced_checks.check(made)) == {"L2": [("stuck", "c1", waits)]}


def test_an_order_that_a_sending_before_the_trace_explains_wrongs_nobody(view: Views) -> None:
    """The publisher was traced before: the acceptance is known, the first sending is not."""
    told = Lowered(client=f"c{PUBLISHER}")
    told.story.connect(PUBLISHER, conn=99)
    told.begin()
    early = told.publish()
    told.end()
    told.client = "c1"
    told.begin()
    late = told.publish()
    told.story.deliver(TRACED, late, pid=2)
    told.story.resume(TRACED)
    told.story.deliver(TRACED, early, pid=1, dup=True, attempt=2, conn=2)
    told.story.deliver(TRACED, late, pid=2, dup=True, attempt=2, conn=2)
    told.end()
    made = view(told.history)
    assert guilty(traced_checks.check(made)) == {}


def test_only_so_many_sessions_are_judged_and_the_others_are_named(view: Views) -> None:
    """One more was there before the trace."""
    told = Lowered()
    told.begin()
    for session in range(10, 10 + traced_checks.SESSIONS_MAX + 1):
        told.story.row("session_created", session, client_id="c1", conn=session, rmax=1)
    told.end()
    (trace,) = traced_checks.told(view(told.history))
    assert (trace["judged"], trace["not_judged"]) == (traced_checks.SESSIONS_MAX, 2)


def test_without_a_trace_nothing_is_computed(view: Views) -> None:
    told = Lowered()
    made = view(told.history)
    assert made.traced is None
    assert traced_checks.check(made) == [] and traced_checks.told(made) == []
    assert traced_checks.carry(made).places == ()


def test_a_trace_that_goes_on_is_judged_in_the_next_batch_too(
    spark: SparkSession, tmp_path: Path
) -> None:
    """The row of its beginning is kept; what was open between two batches is not judged."""
    told = Lowered()
    told.begin()
    waits = told.publish()
    rows = len(told.history.rows)
    told.story.exchange(TRACED, waits)
    first, lost, last = told.publish(), told.publish(), told.publish()
    told.story.exchange(TRACED, first, last)
    told.end()
    told.history.row("gc_run", wait=1000)
    parts = (
        Part("the log", log),
        Part("sessions", lambda view: [], session_checks.carry),
        Part("traces", traced_checks.check, traced_checks.carry),
    )
    later = told.history.rows[rows:]
    source, out = tmp_path / "history", str(tmp_path / "out")
    verdicts = []
    for part in (told.history.rows[:rows], later):
        told.history.rows = part
        told.history.write(source)
        verdict = run(spark, str(source), out, progress=lambda line: None, parts=parts).document
        verdicts.append(
            (
                [(each["msg"], each["what"]) for each in verdict["invariants"]["L2"]["witnesses"]],
                [each["judged"] for each in verdict["traces"]],
            )
        )
    assert verdicts == [([], [1]), ([(lost, "passed_over")], [1])]

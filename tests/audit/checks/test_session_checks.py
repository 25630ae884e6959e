"""S1 to S5, W1 and G1 through Spark: in one batch and in four, with the same result."""

import shutil
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from audit.checks import log_checks, session_checks
from audit.checks.session_checks import check
from audit.run import Part, run

SESSIONS = (
    Part("the log", log_checks.check, log_checks.carry),
    Part("sessions", session_checks.check, session_checks.carry, session_checks.tables),
)


def _quiet(_line: str) -> None:
    """Nobody watches."""


def _send(player, msg: int, qos: int = 1, **columns: object) -> None:
    player.row("msg_delivered", msg=msg, pid=msg, qos=qos, attempt=1, dup=False, **columns)


def _story(history) -> None:
    """Two boots in which one of each goes wrong, beside what goes right."""
    history.boot()
    good, lost, liar, counted, waits, late, forgot = (
        history.session(name, number) for number, name in enumerate("abcdefg", 1)
    )
    for player in (good, lost, liar, counted, waits, late, forgot):
        player.create()
        player.subscribe("x/#")
    for msg in range(1, 7):
        _send(good, msg, qos=1 + msg % 2)
    good.row("msg_acked", msg=2, pid=2, qos=1)
    good.row("msg_acked", msg=1, pid=1, qos=2)
    good.row("msg_completed", msg=1, pid=1, qos=2)
    _send(good, 20, qos=2)
    good.row("msg_acked", msg=20, pid=20, qos=2, reason=0x80)  # refused: its id is free
    good.inflight = 4
    waits.row("will_armed", topic="w", qos=1, expiry_s=50)
    waits.leave(1001)
    waits.row("will_delayed", topic="w", at=history.time(history.now + 50))
    _send(counted, 1)
    kept = {"topic": "x/r", "at": history.time(0)}
    history.row("retained_set", msg=8, **kept)
    counted.row("retained_sent", pid=9, qos=1, dup=False, **kept)
    counted.inflight = 1  # and not 2
    counted.leave()
    good.leave()
    lost.leave()
    liar.leave()
    liar.resume(wait=8, sp=False)
    good.resume()
    _send(good, 7)
    good.inflight = 5
    for player in (late, forgot):
        _send(player, 8, qos=2)
        player.row("msg_acked", msg=8, pid=8, qos=2, reason=0)
    forgot.row("msg_completed", msg=8, pid=8, qos=2)
    history.row("gc_run", wait=200, count=-1)
    late.row("msg_completed", msg=8, pid=8, qos=2)  # the disk still has PUBREL as owed
    died = history.time(history.now)
    history.boot()
    good.leave(1002, at=died, inflight=4)  # msg 7 was sent too late to be on disk
    good.sized("session_restored", inflight=4)
    liar.leave(1002, at=died)
    liar.sized("session_restored")
    counted.sized("session_restored")
    waits.sized("session_restored")
    late.leave(1002, at=died, inflight=1)
    late.sized("session_restored", inflight=1)
    forgot.leave(1002, at=died, inflight=1)  # its PUBCOMP was on disk long ago
    forgot.sized("session_restored", inflight=1)
    history.row("recovered", count=6)
    history.row("gc_run", wait=100, count=0)


EXPECTED = {
    ("S1", "a session was resumed, but its client was told of none"),
    ("S2", "the number in flight is not what was sent and not acknowledged"),
    ("S5", "it was there before the boot, and not after it"),
    ("S5", "the number in flight is not what was sent and not acknowledged"),
    ("W1", "never published"),
    ("G1", "a garbage collection with a negative count"),
}


def test_what_is_wrong_is_found_in_one_batch_as_in_four(
    spark: SparkSession, tmp_path: Path, history
) -> None:
    _story(history)
    source = tmp_path / "history"
    segments = history.write(source, segments=2)
    whole = run(spark, str(source), str(tmp_path / "out"), progress=_quiet, parts=SESSIONS).document
    found = {
        (name, witness["what"])
        for name, outcome in whole["invariants"].items()
        for witness in outcome["witnesses"]
    }
    assert found == EXPECTED
    accused = whole["invariants"]["S5"]["witnesses"]
    assert {witness["client_id"] for witness in accused} == {"b", "g"}
    assert {w["client_id"] for w in whole["invariants"]["S2"]["witnesses"]} == {"d"}

    grown = tmp_path / "grown"
    witnesses = []
    for segment in segments:
        target = grown / segment.relative_to(source)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(segment, target)
        part = run(
            spark, str(grown), str(tmp_path / "parts"), progress=_quiet, parts=SESSIONS
        ).document
        for name, outcome in part["invariants"].items():
            witnesses += [(name, witness) for witness in outcome["witnesses"]]
    assert part["batch"] == 3
    assert part["totals"] == whole["totals"]
    assert sorted(map(repr, witnesses)) == sorted(
        repr((name, witness))
        for name, outcome in whole["invariants"].items()
        for witness in outcome["witnesses"]
    )

    sessions = spark.read.parquet(str(tmp_path / "out" / "tables" / "sessions"))
    states = {row.client_id: (row.state, row.subs) for row in sessions.collect()}
    assert states["a"] == ("offline", 1)
    assert sessions.where(F.col("created_at").isNotNull()).count() == 7


def test_at_the_level_books_nothing_in_flight_is_compared(history, view) -> None:
    history.boot(detail="books")
    player = history.session()
    player.create()
    player.inflight = 3
    player.leave()
    by_name = {outcome.invariant: outcome for outcome in check(view(history))}
    assert by_name["S2"].status == "ok"
    assert by_name["S4"].status == "ok"

"""B1 in Spark: the same verdict at once and in batches, and what it cannot tell."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from audit.checks import backend_checks
from audit.checks.backend_checks import check
from audit.run import Part, Verdict, run
from tests.audit.checks.mirrored import FAULTS, Mirrored
from tests.audit.conftest import History, Views

PARTS = (Part("external stores", backend_checks.check, backend_checks.carry),)


def audited(spark: SparkSession, history: History, tmp_path: Path, segments: int) -> list[Verdict]:
    """Return the verdicts of batches of one segment each."""
    files = sorted(history.write(tmp_path / "history", segments), key=lambda path: path.name)
    return [
        run(
            spark, str(tmp_path / "history"), str(tmp_path / "out"),
            progress=lambda text: None, only=[path.name], parts=PARTS,
        )
        for path in files
    ]  # fmt: skip


def test_a_sound_history_balances(view: Views) -> None:
    (outcome,) = check(view(Mirrored(1).play()))
    assert (outcome.status, outcome.violated) == ("ok", 0)
    assert outcome.checked and outcome.facts["told_again"]
    waiting = outcome.facts["waiting"]
    assert isinstance(waiting, dict) and list(waiting) == ["n1 s0", "n1 s1"]


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found(view: Views, fault: str) -> None:
    history = Mirrored(4).play()
    row = FAULTS[fault](history)
    (outcome,) = check(view(history))
    assert outcome.status == "violated"
    assert {witness["backend"] for witness in outcome.witnesses} == {row["backend"]}


def test_without_stores_there_is_nothing_to_check(view: Views) -> None:
    history = History()
    history.boot()
    history.row("msg_accepted", msg=1, topic="a", pub_qos=1)
    (outcome,) = check(view(history))
    assert (outcome.status, outcome.checked) == ("ok", 0)


@pytest.mark.parametrize("detail", ["books", "sampled:1/2"])
def test_without_every_message_it_cannot_be_told(view: Views, detail: str) -> None:
    history = Mirrored(1).play()
    for row in history.rows:
        if row["ev"] == "boot":
            row["detail"] = detail
        elif row["ev"] == "msg_accepted" and (detail == "books" or int(str(row["msg"])) % 2):
            row["ev"] = "gc_run"
    (outcome,) = check(view(history))
    assert outcome.status == "unknown" and not outcome.violated


def test_two_brokers_have_offsets_of_their_own(view: Views) -> None:
    history = Mirrored(1).play()
    history.rows += Mirrored(2, node="n2").play().rows
    (outcome,) = check(view(history))
    assert (outcome.status, outcome.violated) == ("ok", 0)


def test_batches_find_what_one_run_finds_and_nothing_twice(
    spark: SparkSession, tmp_path: Path
) -> None:
    history = Mirrored(9).play(60)
    row = FAULTS["message_is_missing"](history)
    verdicts = audited(spark, history, tmp_path, 3)
    found = [verdict.document["invariants"]["B1"] for verdict in verdicts]
    witnesses = [witness for each in found for witness in each["witnesses"]]
    assert len(verdicts) > 2 and sum(each["violated"] for each in found) == 1
    assert [(each["backend"], each["first_message"]) for each in witnesses] == [
        (row["backend"], row["msg"])
    ]
    assert sum(each["unknown"] for each in found) == 0

"""The table of deceptions in docs/audit-proof.md is what the audit says of each attack."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.audit.deceptions.matrix import (
    ATTACKS,
    BEGIN,
    DOCUMENT,
    END,
    HONEST,
    MISSED,
    accusations,
    judge,
    named_by,
    replaced,
    rows,
    untested,
    write_all,
    written,
)
from tests.audit.deceptions.tale import tell

ATTACKS_MIN = 60


def test_a_true_history_is_told_the_same_each_time_and_copies_are_apart() -> None:
    first, second = tell(), tell()
    assert first.rows == second.rows
    first.rows[5]["client_id"] = "changed"
    assert tell().rows == second.rows


def test_each_attack_has_a_node_of_its_own_and_changes_something_or_says_why_not() -> None:
    assert len({attack.node for attack in ATTACKS}) == len(ATTACKS) >= ATTACKS_MIN
    for attack in ATTACKS:
        tale = tell()
        attack.do(tale)
        assert tale.rows != tell().rows or tale.on_files or attack.needs, attack.node
        assert bool(attack.needs) == bool(attack.why), attack.node


def test_a_table_is_put_between_its_marks_and_found_there() -> None:
    text = f"before\n\n{BEGIN}\n| old |\n{END}\nafter\n"
    table = ["| new |", "| --- |"]
    changed = replaced(text, table)
    assert written(changed) == table and replaced(changed, table) == changed
    assert changed.startswith("before\n") and changed.endswith("\nafter\n")


@pytest.mark.ci
def test_the_document_says_of_each_attack_what_the_audit_says(
    spark: SparkSession, tmp_path: Path
) -> None:
    write_all(tmp_path / "history")
    document = judge(spark, tmp_path / "history", tmp_path / "out")
    assert accusations(document, HONEST) == {} and untested(document, HONEST) == set()
    assert written(DOCUMENT.read_text()) == list(rows(document))
    for attack in ATTACKS:
        assert attack.needs or named_by(document, attack) != MISSED, attack.what

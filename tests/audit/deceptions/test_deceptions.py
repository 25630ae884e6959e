"""Attacks and their table; tests/audit/test_many_nodes.py has the audit judge them."""

from tests.audit.deceptions.matrix import (
    ATTACKS,
    BEGIN,
    END,
    replaced,
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

"""Two nodes, or two folders of results, side by side."""

import json
from pathlib import Path
from typing import Any

import pytest

from audit.lookup import diff
from audit.lookup.diff import Side
from audit.lookup.history import History, LookupFailed


def results(
    folder: Path, *statuses: str, delivered: int = 200, accepted: int = 100, more: str = ""
) -> str:
    """Write the results of a run for each status of L2; return their folder."""
    for batch, status in enumerate(statuses):
        events = {"msg_accepted": accepted, "msg_delivered": delivered}
        if more:
            events[more] = 30
        document: dict[str, Any] = {
            "status": status, "batch": batch, "from": "2026-01-01", "to": "2026-01-02",
            "facts": {"events": events},
            "invariants": {"L2": {"status": status}, "H1": {"status": "ok"}},
            "totals": {"L2": {"checked": 9, "violated": 3, "unknown": 0},
                       "H1": {"checked": 1, "violated": 0, "unknown": 0}},
            "boots": [{"node": "n1", "level": "full", "level_now": ""}],
            "settings": {"horizon_s": 300},
        }  # fmt: skip
        place = folder / "verdicts" / f"batch-{batch:08}.json"
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(json.dumps(document))
        (folder / "verdict.json").write_text(json.dumps(document))
    return str(folder)


def compare(a: str, b: str) -> tuple[str, int]:
    """Return the table as text, and how many rows differ."""
    lines, different = diff.compare(diff.results(a), diff.results(b))
    return "\n".join(lines), different


def test_the_same_does_not_differ_however_much_there_is_of_it(tmp_path: Path) -> None:
    before = results(tmp_path / "a", "ok")
    after = results(tmp_path / "b", "ok", "ok", delivered=2000, accepted=1000)
    table, different = compare(before, after)
    assert different == 0
    assert "200 (2.000 a message)" in table and "4,000 (2.000 a message)" in table


def test_a_verdict_that_became_another_differs_with_its_count(tmp_path: Path) -> None:
    before = results(tmp_path / "a", "ok")
    after = results(tmp_path / "b", "violated", "ok")  # in any of its runs
    table, different = compare(before, after)
    assert different == 1
    (line,) = [line for line in table.splitlines() if line.startswith("L2 ")]
    assert line.split() == ["L2", "ok", "violated", "(3)", "differs"]


def test_more_deliveries_a_message_than_tolerated_differ(tmp_path: Path) -> None:
    before = results(tmp_path / "a", "ok")
    table, different = compare(before, results(tmp_path / "b", "ok", delivered=204))
    assert different == 0, table
    table, different = compare(before, results(tmp_path / "c", "ok", delivered=230))
    assert (different, "differs by 13%" in table) == (1, True)
    sides = diff.results(before), diff.results(str(tmp_path / "c"))
    assert diff.compare(*sides, 0.5)[1] == 0


def test_an_event_of_one_side_only_differs(tmp_path: Path) -> None:
    table, different = compare(
        results(tmp_path / "a", "ok"), results(tmp_path / "b", "ok", more="msg_expired")
    )
    assert (different, "differs: only one has it" in table) == (1, True)


def test_few_rows_say_nothing_about_a_share() -> None:
    sides = [Side(n, {"msg_accepted": 19, "gc_run": n_rows}, {}, {}, {}, {})
             for n, n_rows in (("a", 1), ("b", 3))]  # fmt: skip
    assert diff.compare(*sides)[1] == 0


def test_two_nodes_of_a_history_are_compared_with_their_clients(tmp_path: Path, history) -> None:
    for node, names in (("n1", ("both", "one")), ("n2", ("both",))):
        history.node = node
        history.boot()
        for number, name in enumerate(names, 1):
            history.session(name, number).create()
    history.write(tmp_path)
    found = History(str(tmp_path))
    lines, different = diff.compare(diff.of_node(found, "n1"), diff.of_node(found, "n2"))
    assert different == 1
    assert lines[-2].split() == ["clients", "2", "1"]
    assert lines[-1].split() == ["only", "here", "1", "0", "differs"]
    with pytest.raises(LookupFailed, match="n3: no such node"):
        diff.of_node(found, "n3")


@pytest.mark.parametrize("text", ["[]", "{", '{"invariants": 3}'])
def test_what_are_no_results_is_one_line(tmp_path: Path, text: str) -> None:
    with pytest.raises(LookupFailed, match="no results of an audit"):
        diff.results(str(tmp_path))
    (tmp_path / "verdict.json").write_text(text)
    with pytest.raises(LookupFailed) as problem:
        diff.results(str(tmp_path))
    assert str(tmp_path) in str(problem.value) and "\n" not in str(problem.value)

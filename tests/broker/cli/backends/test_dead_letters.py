"""`holdfast backend dead`: how letters are shown, and what is no request."""

from pathlib import Path

import pytest

from broker.cli.backends.dead_letters import _lines
from tests.broker.cli.commands import Run, complaint


def test_a_letter_is_three_lines() -> None:
    letter = {"id": 3, "rule": "1", "why": "WRONGTYPE", "tries": 2, "age_seconds": 60}
    row = {"kind": "message", "topic": "t", "payload": "x"}
    assert list(_lines([{**letter, "retrying": True, "row": row}])) == [
        "3: rule 1, refused 2 times, first 60 s ago, being sent again",
        "  why: WRONGTYPE",
        "  row: message topic='t' payload='x'",
    ]
    unknown = {**letter, "tries": 1, "age_seconds": None, "retrying": False, "row": None}
    assert list(_lines([unknown])) == [
        "3: rule 1, refused once, first age unknown",
        "  why: WRONGTYPE",
        "  row: not kept",
    ]


@pytest.mark.full
def test_what_cannot_be_asked_is_one_line(run: Run, tmp_path: Path) -> None:
    for words in (("list",), ("retry", "--all"), ("drop", "--id", "3")):
        result = run("backend", "dead", *words, "cache", "--data-dir", str(tmp_path / "absent"))
        assert "no broker runs on data directory" in complaint(result, 2)
    for words in (("retry", "cache"), ("drop", "cache", "--id", "x"), ("list", "--limit", "0")):
        assert run("backend", "dead", *words).returncode == 2

"""The verdict that an audit has left, whatever is in its file."""

import json
from pathlib import Path

import pytest

from broker.admin.sources import verdicts
from broker.admin.sources.verdicts import FOLDER, NAME


def left(directory: Path, text: str) -> Path:
    (directory / FOLDER).mkdir()
    (directory / FOLDER / NAME).write_text(text)
    return directory


def test_without_a_file_there_is_none(tmp_path: Path) -> None:
    assert verdicts.newest(tmp_path) is None


def test_what_does_not_hold_is_named(tmp_path: Path) -> None:
    invariants = {
        "D1": {"status": "violated", "title": "none is lost", "violated": 1200},
        "D2": {"status": "unknown", "title": "none is twice", "violated": 0},
        "D3": {"status": "ok", "title": "in order", "violated": 0},
    }
    document = {"status": "violated", "invariants": invariants}
    found = verdicts.newest(left(tmp_path, json.dumps(document)))
    assert found is not None and found.status == "violated" and found.at
    assert found.lines == [
        "D1, none is lost: violated 1,200 times",
        "D2, none is twice: not known",
        "1 of 3 invariants hold",
    ]


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"status": [], "invariants": {}}',
     '{"status": "fine", "invariants": {}}', '{"status": "ok", "invariants": 5}',
     '{"status": "ok", "invariants": {"D1": []}}', "[" * 100_000],
)  # fmt: skip
def test_what_is_no_verdict_is_told(tmp_path: Path, text: str) -> None:
    found = verdicts.newest(left(tmp_path, text))
    assert found is not None and found.status == "unknown"
    assert found.lines[0].endswith("not a verdict of this version")

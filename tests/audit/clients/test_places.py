"""The files with logs are found by name and by glob, or one line says which is missing."""

from pathlib import Path

import pytest

from audit.clients.places import LogError, files


def test_files_are_found_by_name_and_by_glob_and_must_be_there(tmp_path: Path) -> None:
    for name in ("b.jsonl", "a.jsonl"):
        (tmp_path / name).touch()
    one, two = (str(tmp_path / name) for name in ("a.jsonl", "b.jsonl"))
    assert files([f"{tmp_path}/*.jsonl", one, "s3a://bucket/*.jsonl"]) == [
        one,
        two,
        "s3a://bucket/*.jsonl",
    ]
    with pytest.raises(LogError, match=r"none\.jsonl: expected a file with the log of a client"):
        files([f"{tmp_path}/none.jsonl"])

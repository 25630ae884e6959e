"""What a backup says of itself, and what is not believed."""

import json
from typing import Any

import pytest

from broker.operations.backups.contents import BackupError, Contents, decode

DIGEST = "0" * 64


def made() -> Contents:
    contents = Contents("2026-11-27T10:00:00Z", "0.1.0", {"sessions": 2, "retained": 1, "meta": 4})
    contents.files = {"watermark": (8192, DIGEST), "db/CURRENT": (16, DIGEST)}
    return contents


def changed(**changes: Any) -> bytes:
    return json.dumps({**json.loads(made().encode()), **changes}).encode()


def test_what_is_written_is_read() -> None:
    found = decode(made().encode())
    assert vars(found) == vars(made())
    assert found.line() == (
        "made at 2026-11-27T10:00:00Z by Holdfast 0.1.0: 2 sessions, 1 retained messages, 7 rows, "
        "8208 bytes in 2 files"
    )


FILES = {name: {"bytes": 1, "blake2b": DIGEST} for name in ("watermark", "db/CURRENT")}


@pytest.mark.parametrize(
    "name",
    ["../x", "/etc/passwd", "db/../../x", "db/a/b", "db/..", "db/.x", "db/", "lock", "db/a\n"],
)
def test_a_file_outside_of_the_database_is_refused(name: str) -> None:
    files = {**FILES, name: {"bytes": 1, "blake2b": DIGEST}}
    with pytest.raises(BackupError, match="expected one of a database"):
        decode(changed(files=files))


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "damaged"),
        (b"[1]", "damaged"),
        (b"[" * 100_000, "damaged"),
        (b"\xff", "damaged"),
        (changed(format=2), "format 2: expected 1"),
        (changed(made_at="x\x1b[2J"), "damaged"),
        (changed(version=5), "damaged"),
        (changed(rows={"sessions": -1}), "damaged"),
        (changed(rows={"sessions": True}), "damaged"),
        (changed(rows=[1]), "damaged"),
        (changed(files={**FILES, "watermark": {"bytes": 1, "blake2b": "xyz"}}), "damaged"),
        (changed(files={**FILES, "watermark": {"bytes": 1, "blake2b": None}}), "damaged"),
        (changed(files={}), "names no watermark"),
    ],
)
def test_what_is_no_list_of_a_backup_is_refused(data: bytes, words: str) -> None:
    with pytest.raises(BackupError, match=words):
        decode(data)

"""A private file: for its owner alone, whole at any moment, read anew when it has changed."""

import os
import threading
from pathlib import Path

import pytest

from broker.admin.access.private_file import BYTES_MAX, AccessFileError, PrivateFile


def add(file: PrivateFile, name: str) -> None:
    with file.change() as entries:
        entries.append({"name": name})


def names(file: PrivateFile) -> list[str]:
    return [entry["name"] for entry in file.entries()]


def test_it_is_for_its_owner_alone_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        add(PrivateFile(tmp_path, "file.json"), "ann")
    finally:
        os.umask(before)
    assert {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {
        "file.json": 0o600,
        "admin.lock": 0o600,
    }


def test_a_change_is_seen_by_who_has_read_it_before(tmp_path: Path) -> None:
    reader, writer = PrivateFile(tmp_path, "file.json"), PrivateFile(tmp_path, "file.json")
    assert names(reader) == []
    add(writer, "ann")
    assert names(reader) == ["ann"]
    add(writer, "bob")
    assert names(reader) == ["ann", "bob"]
    (tmp_path / "file.json").unlink()
    assert names(reader) == []


def test_a_change_that_fails_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    file = PrivateFile(tmp_path, "file.json")
    add(file, "ann")
    before = (tmp_path / "file.json").read_bytes()
    with pytest.raises(AccessFileError, match="no such"), file.change() as entries:
        entries.clear()
        raise AccessFileError("no such entry")
    with pytest.raises(AccessFileError, match="too many entries"), file.change() as entries:
        entries.append({"name": "x" * BYTES_MAX})
    assert (tmp_path / "file.json").read_bytes() == before


def test_what_a_crash_left_half_written_does_not_matter(tmp_path: Path) -> None:
    file = PrivateFile(tmp_path, "file.json")
    add(file, "ann")
    (tmp_path / "file.json.new").write_text('{"format": 1, "ent')
    assert names(PrivateFile(tmp_path, "file.json")) == ["ann"]
    add(file, "bob")
    assert names(PrivateFile(tmp_path, "file.json")) == ["ann", "bob"]


def test_changes_at_the_same_time_are_all_made(tmp_path: Path) -> None:
    def work(number: int) -> None:
        for turn in range(10):
            add(PrivateFile(tmp_path, "file.json"), f"{number}-{turn}")

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(names(PrivateFile(tmp_path, "file.json")))) == 40


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{", '{"format": 2, "entries": []}', '{"format": 1, "entries": [{}]}', "[" * 10_000],
)
def test_a_file_that_is_none_of_ours_is_named_and_never_overwritten(
    tmp_path: Path, text: str
) -> None:
    path = tmp_path / "file.json"
    path.write_text(text)
    file = PrivateFile(tmp_path, "file.json")
    with pytest.raises(AccessFileError, match=r"file\.json: it cannot be read"):
        file.entries()
    with pytest.raises(AccessFileError, match=r"file\.json: it cannot be read"):
        add(file, "ann")
    assert path.read_text() == text


def test_a_directory_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(AccessFileError, match="No such file"):
        add(PrivateFile(tmp_path / "absent", "file.json"), "ann")

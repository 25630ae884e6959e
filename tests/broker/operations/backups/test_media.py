"""A backup is there as a whole or not at all, and what is read of it is what was written."""

import contextlib
import io
import tarfile
from pathlib import Path

import pytest

from broker.operations.backups import media
from broker.operations.backups.contents import NAME, BackupError, Contents
from broker.operations.backups.media import Reading

TARGETS = ("backup", "backup.tar", "backup.tar.gz", "backup.tgz")
FILES = {"watermark": b"mark" * 100, "db/CURRENT": b"MANIFEST-1\n", "db/1.sst": b"rows" * 500_000}


def make(path: Path, *, publishes: bool = True) -> None:
    """Make a backup of a few files."""
    contents = Contents("2026-11-27T10:00:00Z", "0.1.0", {})
    medium = media.new(path)
    for name, data in FILES.items():
        source = path.parent / "source"
        source.write_bytes(data)
        contents.files[name] = medium.add(name, source)
    medium.end(contents.encode())
    if publishes:
        medium.publish()


def check(path: Path) -> None:
    with contextlib.ExitStack() as stack:
        Reading(path, stack).check()


@pytest.mark.parametrize("name", TARGETS)
def test_what_is_written_is_read(tmp_path: Path, name: str) -> None:
    make(tmp_path / name)
    with contextlib.ExitStack() as stack:
        reading = Reading(tmp_path / name, stack)
        found = {name: b"".join(reading.pieces(name)) for name in reading.contents.files}
    assert found == FILES
    assert sorted(path.name for path in tmp_path.iterdir()) == [name, "source"]


@pytest.mark.parametrize("name", TARGETS)
def test_a_backup_has_its_name_only_when_it_is_whole(tmp_path: Path, name: str) -> None:
    make(tmp_path / name, publishes=False)
    assert not (tmp_path / name).exists()
    with pytest.raises(BackupError, match="left by a backup that did not end"):
        media.new(tmp_path / name)


@pytest.mark.parametrize("name", TARGETS)
def test_a_backup_that_fails_leaves_nothing(tmp_path: Path, name: str) -> None:
    medium = media.new(tmp_path / name)
    with pytest.raises(FileNotFoundError):
        medium.add("watermark", tmp_path / "absent")
    medium.abandon()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", TARGETS)
def test_a_backup_replaces_nothing(tmp_path: Path, name: str) -> None:
    make(tmp_path / name)
    with pytest.raises(BackupError, match="a backup replaces nothing"):
        media.new(tmp_path / name)
    (tmp_path / "link.tar").symlink_to("nowhere")
    with pytest.raises(BackupError, match="a backup replaces nothing"):
        media.new(tmp_path / "link.tar")


@pytest.mark.parametrize("name", TARGETS)
def test_a_name_that_is_taken_meanwhile_is_not_replaced(tmp_path: Path, name: str) -> None:
    medium = media.new(tmp_path / name)
    medium.end(b"{}")
    if name == "backup":
        (tmp_path / name).mkdir()
        (tmp_path / name / "mine").write_bytes(b"mine")
    else:
        (tmp_path / name).write_bytes(b"mine")
    with pytest.raises(OSError):
        medium.publish()
    medium.abandon()
    mine = tmp_path / name / "mine" if name == "backup" else tmp_path / name
    assert mine.read_bytes() == b"mine"


def test_an_empty_directory_may_be_filled(tmp_path: Path) -> None:
    (tmp_path / "backup").mkdir()
    make(tmp_path / "backup")
    check(tmp_path / "backup")


@pytest.mark.parametrize("name", ["a.zip", "a.tar.zst", "a.gz"])
def test_other_archives_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(BackupError, match=r"ends in \.tar or \.tar\.gz"):
        media.new(tmp_path / name)


@pytest.mark.parametrize("name", ["watermark", "db/1.sst", "db/CURRENT"])
@pytest.mark.parametrize("harm", ["flip", "cut", "grow", "delete"])
def test_damage_in_a_directory_is_found(tmp_path: Path, name: str, harm: str) -> None:
    make(tmp_path / "backup")
    file = tmp_path / "backup" / name
    data = file.read_bytes()
    if harm == "delete":
        file.unlink()
    else:
        flipped = data[:-1] + bytes([data[-1] ^ 1])
        file.write_bytes({"flip": flipped, "cut": data[:-1], "grow": data + b"x"}[harm])
    with pytest.raises(BackupError, match=f"backup: {name}"):
        check(tmp_path / "backup")


@pytest.mark.parametrize("name", ["backup.tar", "backup.tar.gz"])
def test_any_flipped_or_missing_byte_of_an_archive_is_found_or_harmless(
    tmp_path: Path, name: str
) -> None:
    make(tmp_path / name)
    whole = (tmp_path / name).read_bytes()
    refused = 0
    places = [len(whole) * step // 40 for step in range(40)]
    for place in places:
        for harmed in (
            whole[:place],
            whole[:place] + bytes([whole[place] ^ 0x41]) + whole[place + 1 :],
        ):
            (tmp_path / name).write_bytes(harmed)
            try:
                check(tmp_path / name)
            except BackupError as problem:
                assert str(problem).startswith(f"{tmp_path / name}: ")
                refused += 1
    # Only bytes between the members of a plain archive, which say nothing, may be another.
    assert refused >= len(places) * 2 - 2


def test_what_is_no_backup_is_said(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "text.tar").write_text("no archive")
    other = tmp_path / "other.tar"
    with tarfile.open(other, "w") as tar:
        tar.addfile(tarfile.TarInfo("x"), io.BytesIO())
    link = tmp_path / "link.tar"
    with tarfile.open(link, "w") as tar:
        member = tarfile.TarInfo(NAME)
        member.type, member.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(member)
    for place in (tmp_path / "absent", tmp_path / "empty", tmp_path / "text.tar", other, link):
        with pytest.raises(BackupError, match=str(place)) as caught:
            check(place)
        assert len(str(caught.value).splitlines()) == 1

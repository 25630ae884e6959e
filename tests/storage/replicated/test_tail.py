"""Does the tail keep every record that was synced, or say in one line which one is gone?"""

import errno
import os
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from storage.errors import Recoverable, Unrecoverable
from storage.local import slot_file
from storage.local.slot_file import encode as encode_slot
from storage.replicated import tail as module
from storage.replicated.tail import (
    GROWTH_BYTES,
    MARK,
    MARK_FILE,
    MARK_MAGIC,
    READ_BYTES,
    RECORD_START,
    SEGMENT_START,
    Tail,
    encode_record_head,
    encode_segment_head,
)
from tests.stand_in import replace_in
from tests.storage.log_cases import golden

Patch = pytest.MonkeyPatch
SMALL = 2000  # a file that is read in no time


@pytest.fixture(autouse=True)
def _quick(monkeypatch: Patch) -> None:
    """Nothing here loses what was not synced, so no test need wait for a disk."""
    for user in (module, slot_file):
        replace_in(monkeypatch, user, "os", fsync=_nothing, fdatasync=_nothing)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "tail"


def _nothing(_: int) -> None:
    pass


def _fails(number: int, times: int = 1) -> Callable[..., Any]:
    """Return a call that fails `times` times."""
    left = [times]

    def call(*arguments: Any) -> Any:
        if left[0]:
            left[0] -= 1
            raise OSError(number, os.strerror(number))
        return None

    return call


def _data(index: int) -> bytes:
    return b"record %d" % index * (1 + index % 3)


def _fill(tail: Tail, *indexes: int) -> None:
    for index in indexes:
        tail.append(index, _data(index))


def _written(path: Path, *indexes: int, synced: bool = False, **settings: int) -> None:
    """Write records, as a process does that is killed then."""
    tail = Tail(path, **settings)
    _fill(tail, *indexes)
    if synced:
        tail.sync()
        tail.mark()
    tail.close()


def _kept(tail: Tail, index: int = 0) -> list[int]:
    found = list(tail.read_from(index))
    assert all(data == _data(number) for number, data in found)
    return [number for number, _ in found]


def _reopened(path: Path, **settings: int) -> list[int]:
    tail = Tail(path, **settings)
    kept = _kept(tail)
    assert tail.last == tail.synced == (kept[-1] if kept else 0)
    tail.close()
    return kept


def _files(path: Path) -> list[str]:
    return sorted(each.name for each in path.iterdir() if each.name != MARK_FILE)


def _only(path: Path) -> Path:
    (name,) = _files(path)
    return path / name


# --- the format ---


def test_the_bytes_are_what_is_on_disk(path: Path) -> None:
    tail = Tail(path)
    tail.append(258, b"\0first")
    tail.sync()
    tail.append(259, b"")
    tail.append(300, b"last\xff")
    tail.close()
    cases = golden("tail-v1.hex")
    assert _files(path) == ["00000000000000000258.records"]
    data = _only(path).read_bytes()
    assert data.rstrip(b"\0") == cases["file"].rstrip(b"\0")
    assert len(data) == SEGMENT_START + GROWTH_BYTES, "it grows in large steps"
    assert encode_slot(MARK, MARK_MAGIC, 258)[:20] == cases["mark"]


def test_files_of_this_version_are_read(path: Path) -> None:
    path.mkdir()
    (path / "00000000000000000258.records").write_bytes(golden("tail-v1.hex")["file"])
    tail = Tail(path)
    assert list(tail.read_from(0)) == [(258, b"\0first"), (259, b""), (300, b"last\xff")]
    tail.close()


# --- keeping ---


def test_a_new_tail_is_empty(path: Path) -> None:
    assert _reopened(path) == []
    assert path.stat().st_mode & 0o777 == 0o700


def test_records_are_read_from_any_index_on(path: Path) -> None:
    tail = Tail(path, segment_bytes=200)
    _fill(tail, 5, 6, 7, 9, 10, 11)
    assert len(_files(path)) > 1
    for index in range(13):
        assert _kept(tail, index) == [each for each in (5, 6, 7, 9, 10, 11) if each >= index]
    tail.close()
    assert _reopened(path) == [5, 6, 7, 9, 10, 11]


def test_a_record_may_be_larger_than_a_file_is_meant_to_be(path: Path) -> None:
    tail = Tail(path, segment_bytes=100)
    for index in (1, 2):
        tail.append(index, bytes([index]) * 5000)
    tail.close()
    tail = Tail(path, segment_bytes=100)
    assert [len(data) for _, data in tail.read_from(1)] == [5000, 5000]
    assert len(_files(path)) == 2
    tail.close()


def test_a_sync_covers_what_was_appended_before_it_began(path: Path) -> None:
    tail = Tail(path, segment_bytes=150)
    assert tail.sync_begin() is None
    _fill(tail, 1, 2, 3, 4)
    sync = tail.sync_begin()
    assert sync is not None and len(sync.files) == len(_files(path)) > 1
    _fill(tail, 5)
    tail.sync_run(sync)
    assert tail.synced == 0
    assert tail.sync_end(sync) == tail.synced == 4
    assert tail.sync() == 5
    assert tail.sync_begin() is None
    tail.close()


def test_the_mark_says_how_far_it_is_synced(path: Path) -> None:
    tail = Tail(path)
    _fill(tail, 1, 2)
    tail.sync()
    assert not tail.is_marked
    tail.mark()
    assert tail.is_marked
    _fill(tail, 3)
    tail.mark()
    tail.close()
    _only(path).unlink()
    with pytest.raises(Unrecoverable, match=r"tail: byte 0: no file.*synced up to record 2"):
        Tail(path)


def test_a_closed_tail_says_so(path: Path) -> None:
    tail = Tail(path)
    tail.close()
    tail.close()
    for call in (lambda: tail.append(1, b""), lambda: tail.drop_from(1), tail.sync, tail.mark):
        with pytest.raises(Unrecoverable, match="is closed"):
            call()


# --- crashes and damage ---


@pytest.mark.parametrize("filled", [False, True], ids=["shorter", "zeros"])
def test_a_cut_at_any_byte_costs_what_is_behind_it(path: Path, filled: bool) -> None:
    _written(path, 1, 2, 3, segment_bytes=SMALL)
    file = _only(path)
    whole = file.read_bytes().rstrip(b"\0")
    ends = [whole.index(_data(index), SEGMENT_START) + len(_data(index)) for index in (1, 2, 3)]
    for length in range(len(whole) + 1):
        (path / MARK_FILE).unlink(missing_ok=True)
        file.write_bytes(whole[:length] + bytes(filled * 300))
        kept = [index for index, end in enumerate(ends, 1) if end <= length]
        assert _reopened(path, segment_bytes=SMALL) == kept
        tail = Tail(path, segment_bytes=SMALL)
        _fill(tail, 4)
        tail.close()
        assert _reopened(path, segment_bytes=SMALL) == [*kept, 4]
        for name in _files(path):
            (path / name).unlink()


@pytest.mark.parametrize("filled", [False, True], ids=["shorter", "zeros"])
def test_a_cut_through_what_was_synced_is_refused(path: Path, filled: bool) -> None:
    _written(path, 1, 2, synced=True, segment_bytes=SMALL)
    tail = Tail(path, segment_bytes=SMALL)
    _fill(tail, 3)
    tail.close()
    file = _only(path)
    whole = file.read_bytes().rstrip(b"\0")
    begin = whole.index(_data(1))
    ends = [begin + len(_data(1)), whole.index(_data(2)) + len(_data(2))]
    for length in range(len(whole)):
        file.write_bytes(whole[:length] + bytes(filled * 300))
        if length >= ends[1]:
            assert _reopened(path, segment_bytes=SMALL) == [1, 2]
            continue
        place = 0 if length < SEGMENT_START else SEGMENT_START if length < ends[0] else ends[0]
        with pytest.raises(Unrecoverable, match="tail was synced up to record 2") as caught:
            Tail(path, segment_bytes=SMALL)
        assert str(caught.value).startswith(f"{file}: byte {place}: ")
        assert "\n" not in str(caught.value)


def test_a_flipped_byte_is_a_torn_end_if_nothing_shows_that_it_was_synced(path: Path) -> None:
    _written(path, 1, 2, 3, segment_bytes=SMALL)
    (path / MARK_FILE).unlink()
    file = _only(path)
    whole = file.read_bytes().rstrip(b"\0")
    second, third = (whole.index(_data(index)) for index in (2, 3))
    for place in range(second - RECORD_START, len(whole)):
        damaged = bytearray(whole)
        damaged[place] ^= 0x40
        (path / MARK_FILE).unlink(missing_ok=True)
        file.write_bytes(damaged)
        assert _reopened(path, segment_bytes=SMALL) == (
            [1, 2] if place >= third - RECORD_START else [1]
        )
        assert _reopened(path, segment_bytes=SMALL) == (
            [1, 2] if place >= third - RECORD_START else [1]
        )


def test_a_flipped_byte_is_damage_if_a_record_behind_it_shows_that_it_was_synced(
    path: Path,
) -> None:
    tail = Tail(path, segment_bytes=SMALL)
    _fill(tail, 1, 2)
    tail.sync()
    _fill(tail, 3)
    tail.close()
    file = _only(path)
    whole = file.read_bytes().rstrip(b"\0")
    third = whole.index(_data(3)) - RECORD_START
    for place in range(third):
        damaged = bytearray(whole)
        damaged[place] ^= 0x40
        file.write_bytes(damaged)
        with pytest.raises(Unrecoverable, match=rf"{file}: byte \d+: .*up to record 2"):
            Tail(path, segment_bytes=SMALL)
        assert file.read_bytes() == damaged, "nothing is touched"


def test_damage_in_an_old_file_is_told_when_it_is_read(path: Path) -> None:
    _written(path, *range(1, 12), synced=True, segment_bytes=150)
    file = path / _files(path)[1]
    damaged = bytearray(file.read_bytes())
    damaged[-3] ^= 1
    file.write_bytes(damaged)
    tail = Tail(path, segment_bytes=150)
    with pytest.raises(Unrecoverable, match=rf"{file}: byte \d+: .*wrong checksum"):
        _kept(tail)
    assert _kept(tail, 11) == [11]
    tail.close()


def test_a_lost_file_is_told(path: Path) -> None:
    _written(path, *range(1, 12), synced=True, segment_bytes=150)
    (path / _files(path)[1]).unlink()
    tail = Tail(path, segment_bytes=150)
    with pytest.raises(Unrecoverable, match="byte 0: expected record"):
        _kept(tail)
    tail.close()


def test_a_lost_file_that_was_not_synced_ends_the_tail(path: Path) -> None:
    _written(path, *range(1, 12), segment_bytes=150)
    (path / MARK_FILE).unlink()
    names = _files(path)
    (path / names[1]).unlink()
    kept = _reopened(path, segment_bytes=150)
    assert kept == list(range(1, int(names[1].partition(".")[0])))
    assert _files(path) == names[:1]


def test_a_new_file_may_be_torn_in_its_head(path: Path) -> None:
    _written(path, 1, 2, synced=True)
    (path / "00000000000000000003.records").write_bytes(encode_segment_head(3, 2)[:-1])
    assert _reopened(path) == [1, 2]
    (path / "00000000000000000003.records").write_bytes(encode_segment_head(3, 2))
    assert _reopened(path) == [1, 2]
    assert _files(path) == ["00000000000000000001.records"]


def test_a_record_that_goes_back_is_none(path: Path) -> None:
    _written(path, 5)
    file = _only(path)
    whole = file.read_bytes().rstrip(b"\0")
    file.write_bytes(whole + encode_record_head(5, 0, b"x") + b"x")
    assert _reopened(path) == [5]


def test_a_place_that_the_disk_does_not_read_is_named(path: Path, monkeypatch: Patch) -> None:
    _written(path, 1, 2)
    file = _only(path)

    def pread(descriptor: int, size: int, place: int) -> bytes:
        if size > SEGMENT_START and place >= READ_BYTES:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return os.pread(descriptor, size, place)

    replace_in(monkeypatch, module, "os", pread=pread)
    with pytest.raises(Unrecoverable, match=rf"{file}: byte {READ_BYTES}: Input/output error"):
        Tail(path)


def test_what_a_failed_sync_may_have_left_is_written_again(path: Path, monkeypatch: Patch) -> None:
    _written(path, 1, 2, synced=True)
    tail = Tail(path)
    _fill(tail, 3)
    tail.close()
    places: list[int] = []

    def pwrite(file: int, data: bytes, place: int) -> int:
        places.append(place)
        assert data.endswith(_data(3))
        return os.pwrite(file, data, place)

    replace_in(monkeypatch, module, "os", pwrite=pwrite)
    assert _reopened(path) == [1, 2, 3]
    whole = _only(path).read_bytes()
    assert places == [whole.index(_data(3)) - RECORD_START], "what the mark covers is not"


# --- a full and a failing disk ---


def test_a_full_disk_refuses_a_record_and_changes_nothing(path: Path, monkeypatch: Patch) -> None:
    tail = Tail(path)
    _fill(tail, 1)
    calls = 0

    def pwrite(file: int, data: bytes, place: int) -> int:
        nonlocal calls
        calls += 1
        if calls == 1:
            return os.pwrite(file, data[:10], place)
        raise OSError(errno.ENOSPC, "No space left on device")

    replace_in(monkeypatch, module, "os", pwrite=pwrite)
    with pytest.raises(Recoverable, match="No space left on device"):
        _fill(tail, 2)
    assert calls == 2
    monkeypatch.undo()
    assert (tail.last, _kept(tail)) == (1, [1])
    assert _only(path).read_bytes().endswith(_data(1)), "nothing is left of it"
    tail.append(2, b"other")
    assert tail.sync() == 2
    assert list(tail.read_from(2)) == [(2, b"other")]
    tail.close()


@pytest.mark.parametrize("call", ["posix_fallocate", "pwrite", "open"])
def test_a_full_disk_refuses_a_new_file(path: Path, monkeypatch: Patch, call: str) -> None:
    tail = Tail(path, segment_bytes=60)
    _fill(tail, 1)
    with pytest.MonkeyPatch.context() as patch:
        replace_in(patch, module, "os", **{call: _fails(errno.ENOSPC)})
        with pytest.raises(Recoverable, match="No space left on device"):
            _fill(tail, 2)
    assert _kept(tail) == [1]
    tail.sync()
    _fill(tail, 2, 3)
    tail.sync()
    tail.mark()
    tail.close()
    assert _reopened(path, segment_bytes=60) == [1, 2, 3]


def test_a_record_that_was_refused_may_be_replaced_by_an_earlier_one(
    path: Path, monkeypatch: Patch
) -> None:
    tail = Tail(path, segment_bytes=60)
    _fill(tail, 1, 2)
    with pytest.MonkeyPatch.context() as patch:
        replace_in(patch, module, "os", posix_fallocate=_fails(errno.ENOSPC))
        with pytest.raises(Recoverable):
            _fill(tail, 3)
    tail.drop_from(2)
    _fill(tail, 2, 3)
    tail.close()
    assert _reopened(path, segment_bytes=60) == [1, 2, 3]


def test_a_file_system_that_cannot_grow_files_ahead_is_no_error(
    path: Path, monkeypatch: Patch
) -> None:
    replace_in(monkeypatch, module, "os", posix_fallocate=_fails(errno.EOPNOTSUPP))
    _written(path, 1, 2)
    assert _only(path).stat().st_size < 200
    assert _reopened(path) == [1, 2]


@pytest.mark.parametrize(
    ("call", "act"),
    [
        ("pwrite", lambda tail: _fill(tail, 3)),
        ("fdatasync", lambda tail: tail.sync()),
        ("dup", lambda tail: tail.sync()),
        ("ftruncate", lambda tail: tail.drop_from(2)),
        ("fsync", lambda tail: tail.drop_from(2)),
    ],
)
def test_after_an_error_of_the_disk_nothing_is_reported(
    path: Path, call: str, act: Callable[[Tail], object]
) -> None:
    tail = Tail(path)
    _fill(tail, 1)
    tail.sync()
    _fill(tail, 2)
    with pytest.MonkeyPatch.context() as patch:
        replace_in(patch, module, "os", **{call: _fails(errno.EIO)})
        with pytest.raises(Unrecoverable, match="records: Input/output error"):
            act(tail)
    for again in (act, lambda tail: tail.sync(), lambda tail: tail.mark()):
        with pytest.raises(Unrecoverable, match="Input/output error"):
            again(tail)
    assert tail.synced == 1
    tail.close()


def test_a_sync_that_failed_beside_another_one_ends_both(path: Path) -> None:
    tail = Tail(path)
    _fill(tail, 1)
    first = tail.sync_begin()
    _fill(tail, 2)
    second = tail.sync_begin()
    assert first is not None and second is not None
    tail.sync_run(first)
    with pytest.MonkeyPatch.context() as patch:
        replace_in(patch, module, "os", fdatasync=_fails(errno.EIO))
        with pytest.raises(Unrecoverable):
            tail.sync_run(second)
    with pytest.raises(Unrecoverable):
        tail.sync_end(first)
    assert tail.synced == 0
    tail.close()


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC])
def test_a_mark_that_cannot_be_written(path: Path, number: int) -> None:
    tail = Tail(path)
    _fill(tail, 1)
    tail.sync()
    with pytest.MonkeyPatch.context() as patch:
        replace_in(patch, slot_file, "os", pwrite=_fails(number))
        if number == errno.EIO:
            with pytest.raises(Unrecoverable, match="Input/output error"):
                tail.mark()
        else:
            tail.mark()  # a full disk: later
            assert not tail.is_marked
    if number == errno.ENOSPC:
        tail.mark()
        assert tail.is_marked
    tail.close()


def test_a_full_or_failing_disk_does_not_open(path: Path, monkeypatch: Patch) -> None:
    _written(path, 1)
    for number, kind in ((errno.ENOSPC, Recoverable), (errno.EIO, Unrecoverable)):
        with pytest.MonkeyPatch.context() as patch:
            replace_in(patch, module, "os", fsync=_fails(number))
            with pytest.raises(kind, match=os.strerror(number)):
                Tail(path)
    assert _reopened(path) == [1]


# --- replacing and deleting ---


@pytest.mark.parametrize("index", range(1, 14))
def test_records_from_an_index_on_are_dropped(path: Path, index: int) -> None:
    _written(path, *range(2, 6), 8, *range(9, 12), synced=True, segment_bytes=150)
    tail = Tail(path, segment_bytes=150)
    _fill(tail, 12)
    tail.drop_from(index)
    kept = [each for each in (2, 3, 4, 5, 8, 9, 10, 11, 12) if each < index]
    assert _kept(tail) == kept
    assert tail.last == (kept[-1] if kept else 0) >= tail.synced
    tail.close()
    assert _reopened(path, segment_bytes=150) == kept
    tail = Tail(path, segment_bytes=150)
    _fill(tail, index, index + 1) if index > tail.last else None
    tail.close()
    assert _reopened(path, segment_bytes=150) == (
        [*kept, index, index + 1] if index < 13 else [*kept, 13, 14]
    )


def test_appending_what_there_is_replaces_it_and_all_behind(path: Path) -> None:
    tail = Tail(path)
    _fill(tail, 1, 2, 3)
    tail.append(2, b"other")
    assert list(tail.read_from(2)) == [(2, b"other")]
    tail.close()
    tail = Tail(path)
    assert list(tail.read_from(2)) == [(2, b"other")]
    tail.close()


def test_a_sync_in_flight_does_not_cover_what_replaces_its_records(path: Path) -> None:
    tail = Tail(path)
    _fill(tail, 1, 2)
    sync = tail.sync_begin()
    assert sync is not None
    tail.drop_from(2)
    _fill(tail, 2, 3)
    tail.sync_run(sync)
    assert tail.sync_end(sync) == 1
    assert tail.sync() == 3
    tail.close()


def test_a_synced_record_that_is_dropped_is_not_missed(path: Path) -> None:
    _written(path, 1, 2, 3, synced=True)
    tail = Tail(path)
    tail.drop_from(2)
    assert tail.synced == 1
    tail.close()
    assert _reopened(path) == [1]
    tail = Tail(path)
    tail.drop_from(0)
    tail.close()
    assert _reopened(path) == []


def test_files_whose_records_nobody_needs_are_deleted(path: Path) -> None:
    tail = Tail(path, segment_bytes=150)
    _fill(tail, *range(1, 12))
    names = _files(path)
    firsts = [int(name.partition(".")[0]) for name in names]
    for index in range(14):
        tail.truncate_before(index)
        kept = max(number for number, first in enumerate(firsts) if first <= max(index, 1))
        assert _files(path) == names[kept:]
        assert _kept(tail, index) == list(range(max(index, 1), 12))
    tail.close()
    assert _reopened(path) == list(range(firsts[-1], 12))


def test_a_file_is_not_deleted_because_the_next_one_is_damaged(path: Path) -> None:
    _written(path, *range(1, 12), synced=True, segment_bytes=150)
    names = _files(path)
    second = path / names[1]
    second.write_bytes(b"x" + second.read_bytes()[1:])
    tail = Tail(path, segment_bytes=150)
    tail.truncate_before(int(names[1].partition(".")[0]) - 1)
    assert _files(path) == names
    with pytest.raises(Unrecoverable, match=f"{second}: byte 0"):
        _kept(tail)
    tail.close()


def test_files_may_be_deleted_while_they_are_read(path: Path) -> None:
    tail = Tail(path, segment_bytes=150)
    _fill(tail, *range(1, 12))
    firsts = [int(name.partition(".")[0]) for name in _files(path)]
    reading = tail.read_from(1)
    assert next(reading)[0] == 1
    tail.truncate_before(firsts[2])
    expected = [*range(2, firsts[1]), *range(firsts[2], 12)]
    assert [index for index, _ in reading] == expected
    tail.close()


def test_records_appended_meanwhile_are_not_read_half(path: Path) -> None:
    tail = Tail(path)
    _fill(tail, 1, 2)
    reading = tail.read_from(1)
    assert next(reading)[0] == 1
    _fill(tail, 3)
    assert [index for index, _ in reading] == [2]
    assert _kept(tail) == [1, 2, 3]
    tail.close()


# --- all of it ---


@pytest.mark.parametrize("seed", range(30))
def test_whatever_happens_the_tail_is_what_was_kept_and_the_end_may_be_torn(
    path: Path, seed: int
) -> None:
    random = Random(seed)
    tail = Tail(path, segment_bytes=300)
    kept: list[int] = []
    for _ in range(60):
        last = kept[-1] if kept else tail.last
        what = random.random()
        if what < 0.6:
            index = last + random.choice((1, 1, 1, 4))
            _fill(tail, index)
            kept.append(index)
        elif what < 0.7:
            assert tail.sync() == (kept[-1] if kept else tail.synced)
        elif what < 0.75:
            tail.mark()
        elif what < 0.82 and kept:
            index = max(1, last - random.randint(0, 5))
            tail.drop_from(index)
            kept = [each for each in kept if each < index]
        elif what < 0.88 and kept:
            index = random.choice(kept)
            tail.truncate_before(index)
            first = _kept(tail)[0]
            assert first <= index
            kept = [each for each in kept if each >= first]
        elif what < 0.94:
            tail.close()
            tail = Tail(path, segment_bytes=300)
        else:
            synced = tail.synced
            tail.close()
            _tear(path, random, synced)
            tail = Tail(path, segment_bytes=300)
            found = _kept(tail)
            assert found == kept[: len(found)]
            assert not kept or synced < kept[0] or synced in found or synced == 0
            kept = found
        assert _kept(tail) == kept
        assert tail.last == (kept[-1] if kept else tail.last)
    tail.close()


def _tear(path: Path, random: Random, synced: int) -> None:
    """Take some of what is behind record `synced` in the last file, as a power cut may."""
    names = _files(path)
    if not names:
        return
    file = path / names[-1]
    data = bytearray(file.read_bytes().rstrip(b"\0"))
    frames = module.walk(bytes(data)).frames
    safe = max((frame.end for frame in frames if frame.number <= synced), default=SEGMENT_START)
    place = random.randint(min(safe, len(data)), len(data))
    if random.random() < 0.5:
        del data[place:]
    else:
        data[place : place + 8] = bytes(len(data[place : place + 8]))
    file.write_bytes(data + bytes(random.choice((0, 500))))

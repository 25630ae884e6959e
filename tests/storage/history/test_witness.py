"""Does the witness keep what it was told, and accuse only with what it knows?"""

import contextlib
import errno
import json
import struct
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

from storage.history import witness as witness_module
from storage.history.segment_names import SegmentName
from storage.history.segments import examine, survey, verify
from storage.history.witness import (
    MARKS_MAX,
    SLOT_BYTES,
    Difference,
    Mark,
    Witness,
    WitnessError,
    WitnessFile,
    compare,
    compare_pieces,
    encode,
    lost,
    read,
)
from tests.stand_in import replace_in
from tests.storage.history.forging import edit, in_order, rechain, unchain
from tests.storage.history.test_chain import NODE, drop, history, lie, move

ONE = Mark(1, 9, 6, "ab" * 32, 1_763_711_111_111)
TWO = Mark(2, 3, 0)


def keep(path: Path, *marks: Mark, node: str = NODE) -> None:
    """Leave a witness that has these."""
    with contextlib.closing(WitnessFile(path, node)) as file:
        file.write(marks)


# The file


def test_what_was_written_is_read_by_everybody(tmp_path: Path) -> None:
    path = tmp_path / "witness"
    file = WitnessFile(path, NODE)
    assert (file.witness, file.damage) == (Witness(str(path), NODE), "")
    with pytest.raises(WitnessError, match="witness: no broker has written to it yet"):
        read(path)
    file.write([ONE])
    file.write([ONE, TWO])
    file.close()
    file.close()
    assert read(path) == Witness(str(path), NODE, (ONE, TWO))
    again = WitnessFile(path, NODE)
    assert again.witness.newest == TWO
    again.write([TWO])
    again.close()
    assert read(path).marks == (TWO,)
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_slot_is_written_down_here() -> None:
    """A change is a new version of the file."""
    slot = encode(7, Witness("", "edge", (Mark(1, 9, 6, "ab", 5),)))
    body = b'{"node":"edge","marks":[[1,9,6,"ab",5]]}'
    assert len(slot) == SLOT_BYTES
    assert slot.rstrip(b"\0") == (
        b"HFWITN01" + bytes(7) + b"\7" + b"\0\0\0" + bytes([len(body)]) + slot[20:24] + body
    )
    assert slot[20:24].hex() == "0016e383"


def test_the_last_starts_of_the_longest_name_fit(tmp_path: Path) -> None:
    biggest = (1 << 63) - 1
    marks = [Mark(boot, biggest, biggest, "f" * 64, biggest) for boot in range(MARKS_MAX + 5)]
    file = WitnessFile(tmp_path / "witness", "n" * 64)
    file.write(marks)
    assert list(read(tmp_path / "witness").marks) == marks[5:]


@pytest.mark.parametrize("torn", [0, 1])
def test_a_torn_write_leaves_what_was_there_before(tmp_path: Path, torn: int) -> None:
    path = tmp_path / "witness"
    file = WitnessFile(path, NODE)
    for mark in (ONE, TWO, ONE)[torn:]:
        file.write([mark])
    data = bytearray(path.read_bytes())
    at = SLOT_BYTES * (file._count % 2)
    data[at + 40 : at + 200] = bytes(160)
    path.write_bytes(bytes(data))
    (mark,) = read(path).marks
    assert mark == TWO
    file.close()
    again = WitnessFile(path, NODE)
    assert (again.witness.marks, again.damage) == ((TWO,), "")
    again.write([ONE])
    assert read(path).marks == (ONE,)
    again.close()


def rubbish(body: bytes) -> bytes:
    """Return a file whose checksum is right and whose contents are not."""
    slot = encode(1, Witness("", NODE))
    good = slot.rstrip(b"\0")[24:]
    assert len(body) <= len(good)
    body = body.ljust(len(good))
    crc = zlib.crc32((1).to_bytes(8, "big") + body)
    return (slot[:20] + struct.pack(">I", crc) + body).ljust(2 * SLOT_BYTES, b"\0")


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"x",
        b"x" * 2 * SLOT_BYTES,
        bytes(SLOT_BYTES),
        encode(1, Witness("", NODE, (ONE,)))[:100],
        encode(1, Witness("", NODE, (ONE,))).replace(b"[1,9", b"[1,8") * 2,
        rubbish(b"[]"),
        rubbish(b'{"marks":[[1]]}'),
        rubbish(b'{"marks":[]}'),
        rubbish(b"\xff"),
    ],
)
def test_a_damaged_file_is_one_line_and_begins_anew(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "witness"
    path.write_bytes(content)
    with pytest.raises(WitnessError) as raised:
        read(path)
    assert str(raised.value) == f"{path}: damaged, or not a witness of a history"
    file = WitnessFile(path, NODE)
    assert file.damage == ("" if content == b"" else str(raised.value))
    assert file.witness.marks == ()
    file.write([ONE])
    assert read(path).marks == (ONE,)


@pytest.mark.parametrize("mark", [[-1, 1, 0, "", 0], [1, 1 << 63, 0, "", 0], [1, 1, 0, 5, 0],
                                  [True, 1, 0, "", 0], ["1", 1, 0, "", 0]])  # fmt: skip
def test_numbers_that_no_broker_writes_are_damage(tmp_path: Path, mark: list[object]) -> None:
    path = tmp_path / "witness"
    path.write_bytes(encode(1, Witness("", NODE, (Mark(*mark),))) * 2)  # type: ignore[arg-type]
    with pytest.raises(WitnessError, match="damaged"):
        read(path)


def test_another_nodes_witness_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "witness"
    keep(path, ONE, node="other")
    before = path.read_bytes()
    with pytest.raises(WitnessError, match="witness: the witness of node 'other', expected 'edge'"):
        WitnessFile(path, NODE)
    assert path.read_bytes() == before


def test_a_file_that_another_broker_writes_is_refused_even_under_the_same_name(
    tmp_path: Path,
) -> None:
    path = tmp_path / "witness"
    file = WitnessFile(path, NODE)
    with pytest.raises(WitnessError, match="another broker writes it"):
        WitnessFile(path, NODE)
    file.write([ONE])
    assert read(path).marks == (ONE,)  # who only reads needs no lock
    file.close()
    WitnessFile(path, NODE).close()


def test_a_file_system_without_locks_is_no_reason_to_refuse(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_locks(file: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, "no locks available")

    replace_in(monkeypatch, witness_module, "fcntl", flock=no_locks)
    WitnessFile(tmp_path / "witness", NODE).close()


def test_a_file_that_cannot_be_opened_or_written_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(WitnessError, match="none/witness: No such file or directory"):
        WitnessFile(tmp_path / "none" / "witness", NODE)
    with pytest.raises(WitnessError, match="none/witness: No such file or directory"):
        read(tmp_path / "none" / "witness")
    file = WitnessFile(tmp_path / "witness", NODE)
    file.close()
    with pytest.raises(WitnessError, match="witness: Bad file descriptor"):
        file.write([ONE])
    assert file.witness.marks == ()


# A database at the start of its broker


@pytest.mark.parametrize(
    ("boot", "seq", "found"),
    [
        (2, 3, []),
        (2, 50, []),
        (7, 1, []),  # without this witness
        (2, 1, [(2, 2, 3)]),
        (1, 9, [(2, 1, 3)]),
        (1, 5, [(1, 6, 9), (2, 1, 3)]),
        (0, 0, [(1, 1, 9), (2, 1, 3)]),
    ],
)
def test_what_a_database_lacks_is_named(
    boot: int, seq: int, found: list[tuple[int, int, int]]
) -> None:
    missing = lost(Witness("w", NODE, (ONE, TWO)), boot, seq)
    assert [(each.boot, each.from_seq, each.to_seq) for each in missing] == found


# An exported history


def witness_of(segments: list[SegmentName], *, ahead: int = 0) -> Witness:
    """Return the witness of a broker that has just exported these, `ahead` events before."""
    marks: dict[int, Mark] = {}
    for segment in segments:
        seq, head = segment.last_seq, examine(segment)[1].head
        marks[segment.boot] = Mark(segment.boot, seq, seq, head)
    last = max(marks)
    marks[last] = Mark(last, marks[last].seq + ahead, marks[last].exported, marks[last].head)
    return Witness("w", NODE, tuple(marks.values()))


def found(directory: Path, witness: Witness) -> list[tuple[int, int, int, str]]:
    """Return what the witness proves."""
    pieces = survey(directory, thorough=True).pieces
    return [
        (each.boot, each.from_seq, each.to_seq, each.what.split(",")[0])
        for each in compare_pieces(witness, pieces)
        if each.is_proven
    ]


def write_anew(segments: list[SegmentName]) -> None:
    edit(segments[1], lie)
    rechain(segments[0].path.parents[2])


def write_anew_with_a_row_less(segments: list[SegmentName]) -> None:
    edit(segments[1], drop)
    edit(segments[2], move(-1))
    rechain(segments[0].path.parents[2])


def remove_the_last_boot(segments: list[SegmentName]) -> None:
    for segment in segments[5:]:
        segment.path.unlink()


def remove_the_last_file(segments: list[SegmentName]) -> None:
    segments[-1].path.unlink()


def unchain_all(segments: list[SegmentName]) -> None:
    for segment in segments:
        unchain(segment)


CHAIN = "the chain that ends there is not the one that the witness knows"
GONE = "they were exported"


@pytest.mark.parametrize(
    ("attack", "named"),
    [
        (write_anew, [(1, 7, 9, CHAIN), (2, 4, 6, CHAIN), (3, 4, 6, CHAIN)]),
        (
            write_anew_with_a_row_less,
            [(1, 9, 9, GONE), (2, 4, 6, CHAIN), (3, 4, 6, CHAIN)],
        ),
        (remove_the_last_boot, [(3, 1, 6, GONE)]),
        (remove_the_last_file, [(3, 4, 6, GONE)]),
        (unchain_all, [(1, 7, 9, CHAIN), (2, 4, 6, CHAIN), (3, 4, 6, CHAIN)]),
    ],
)
def test_what_a_chain_cannot_show_is_named(
    attack: Callable[[list[SegmentName]], None],
    named: list[tuple[int, int, int, str]],
    tmp_path: Path,
) -> None:
    segments = history(tmp_path)
    witness = witness_of(segments)
    assert found(tmp_path, witness) == []
    attack(segments)
    assert verify(tmp_path, thorough=True) == []
    assert found(tmp_path, witness) == named


def test_other_ends_of_segments_are_another_chain(tmp_path: Path) -> None:
    segments = history(tmp_path)
    witness = witness_of(segments[:2])
    assert edit(segments[1], lambda rows: rows[:2]).last_seq == 5
    edit(segments[2], lambda rows: [{**rows[0], "seq": 6}, *rows])
    rechain(tmp_path)
    assert verify(tmp_path, thorough=True) == []
    assert found(tmp_path, witness) == [(1, 6, 6, CHAIN)]


def test_nothing_that_honest_brokers_leave_is_accused(tmp_path: Path) -> None:
    segments = history(tmp_path)
    for witness in (
        Witness("w", NODE),
        witness_of(segments[:1]),  # older than the history
        witness_of(segments[:4]),
        witness_of(segments, ahead=100),  # killed before the export: the rows are in the database
        Witness("w", NODE, (Mark(4, 7), Mark(5, 2))),  # starts that exported nothing yet
    ):
        assert found(tmp_path, witness) == []
    for segment in segments[:4]:  # the retention
        segment.path.unlink()
    assert found(tmp_path, witness_of(in_order(tmp_path))) == []


def test_the_retention_is_no_loss_and_what_comes_after_it_is(tmp_path: Path) -> None:
    segments = history(tmp_path)
    witness = witness_of(segments)
    for segment in segments[:6]:
        segment.path.unlink()
    assert found(tmp_path, witness) == []
    segments[6].path.unlink()
    assert found(tmp_path, witness) == [(1, 1, 9, GONE), (2, 1, 6, GONE), (3, 1, 6, GONE)]


def test_a_later_start_shows_that_durable_events_are_lost() -> None:
    """A disk that lies: the database and its history agree, and both lack the end."""
    witness = Witness("w", NODE, (Mark(1, 20, 6, "h"),))
    heads = {(1, 6): "h"}
    (ahead,) = compare(witness, {1: (1, 6)}, heads, ())
    assert (ahead.from_seq, ahead.to_seq, ahead.is_proven) == (7, 20, False)
    (missing,) = compare(witness, {1: (1, 9), 2: (1, 3)}, heads, ())
    assert missing == Difference(
        1, 10, 20, "they were durable, and a later start has begun without them"
    )


def test_a_damaged_segment_or_a_copy_in_its_place_proves_nothing(tmp_path: Path) -> None:
    segments = history(tmp_path)
    witness = witness_of(segments)
    segments[-1].path.write_bytes(segments[-1].path.read_bytes()[:-50])
    pieces = survey(tmp_path).pieces
    (unproven,) = compare_pieces(witness, pieces)
    assert (unproven.boot, unproven.from_seq, unproven.is_proven) == (3, 4, False)


def test_a_place_that_nobody_looked_at_proves_nothing() -> None:
    """An earlier run has read it."""
    witness = Witness("w", NODE, (Mark(1, 6, 6, "h"),))
    assert compare(witness, {1: (1, 9)}, {}, ()) == []
    assert compare(Witness("w", NODE, (Mark(1, 6),)), {1: (1, 9)}, {(1, 3): "x"}, ()) == []


def test_the_contents_can_be_read_by_people(tmp_path: Path) -> None:
    path = tmp_path / "witness"
    keep(path, TWO)
    text = path.read_bytes()[SLOT_BYTES + 24 :].rstrip(b"\0")
    assert json.loads(text) == {"node": NODE, "marks": [[2, 3, 0, "", 0]]}


def test_a_write_that_fails_leaves_the_marks_from_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    path = tmp_path / "witness"
    file = WitnessFile(path, NODE)
    file.write([ONE])
    replace_in(monkeypatch, witness_module, "os", pwrite=fail)
    with pytest.raises(WitnessError, match="No space left"):
        file.write([TWO])
    assert file.witness.marks == read(path).marks == (ONE,)

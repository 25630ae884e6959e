"""Is the record of a backend read back exactly, or not at all?"""

import pytest

from session.state.backend_record import (
    PRESENCE,
    RETAINED,
    BackendRecord,
    Fill,
    decode_backend,
    encode_backend,
)
from tests.session.state.cases import golden


def full() -> BackendRecord:
    """Return a record that has something of everything."""
    record = BackendRecord("0123456789abcdef", (2**40, 70_000))
    record.floor = (2**39, 258)
    record.dead_letters = 3
    record.last_dead_letter = 2**33
    record.filters = {"täg/#": 2**40, "+/b": 0}
    return record


def retrying() -> BackendRecord:
    """Return a record of a backend that gets dead letters again."""
    record = full()
    record.retries = {70_001: 2**33, 70_007: 1}
    return record


def filling() -> BackendRecord:
    """Return a record of a backend in the middle of a backfill."""
    record = retrying()
    record.fill = Fill(RETAINED | PRESENCE, 2**41)
    record.fill.rows = 2**34
    record.fill.after = b"a\0b\0"
    return record


def giving_up() -> BackendRecord:
    """Return a record of a backend for which too much waited."""
    record = retrying()
    record.given_up = (2**41, 80_000)
    record.given_up_message = 2**40 + 3
    record.given_up_event = 70_001
    return record


def telling() -> BackendRecord:
    """Return a record in the middle of a minute, behind a gap."""
    record = full()
    told = record.told
    told.upto, told.counted, told.minute_ms = 2**40 - 5, 2**40, 2**41
    for at, tally in enumerate((told.confirmed, told.dead, told.refused, told.again)):
        tally[:] = [at + 1, 2**60 + at, 2**59 + at]
    told.again_first, told.again_last = 2**39, 2**39 + 9
    told.gaps.extend([(2**40 + 7, 2**40 + 8), (2**40 + 11, 2**41)])
    return record


RECORDS = {
    "new": BackendRecord("i", (0, 0)),
    "full": full(),
    "retrying": retrying(),
    "filling": filling(),
    "giving up": giving_up(),
    "telling": telling(),
}


def fields(record: BackendRecord) -> tuple[object, ...]:
    """Return everything of a record."""
    dead = (record.dead_letters, record.last_dead_letter)
    it = record.told
    told = [it.upto, it.counted, it.minute_ms, it.confirmed, it.dead, it.refused, it.gaps]
    told += [it.again, it.again_first, it.again_last]
    fill = record.fill
    return (
        fill and (fill.parts, fill.rows, fill.begun_ms, fill.ended_ms, fill.after),
        told,
        record.instance,
        record.cursor,
        record.floor,
        dead,
        (record.given_up, record.given_up_message, record.given_up_event),
        [
            *record.filters.items(),
            *record.retries.items(),
        ],
    )


@pytest.mark.parametrize("case", RECORDS)
def test_a_row_gives_the_record_back(case: str) -> None:
    assert fields(decode_backend(encode_backend(RECORDS[case]))) == fields(RECORDS[case])


@pytest.mark.parametrize("case", RECORDS)
def test_the_format_is_the_one_on_disk(case: str) -> None:
    expected = golden("backend-record-v3.hex")[case]
    assert encode_backend(RECORDS[case]).hex() == expected.hex()
    assert fields(decode_backend(expected)) == fields(RECORDS[case])


@pytest.mark.parametrize("case", ["new", "full"])
def test_version_1_is_read(case: str) -> None:
    assert fields(decode_backend(golden("backend-record-v1.hex")[case])) == fields(RECORDS[case])


@pytest.mark.parametrize("case", ["new", "full", "retrying"])
def test_version_2_is_read(case: str) -> None:
    assert fields(decode_backend(golden("backend-record-v2.hex")[case])) == fields(RECORDS[case])


@pytest.mark.parametrize("case", RECORDS)
def test_every_truncation_and_every_extension_is_noticed(case: str) -> None:
    value = encode_backend(RECORDS[case])
    for size in range(len(value)):
        with pytest.raises(ValueError):
            decode_backend(value[:size])
    with pytest.raises(ValueError, match="left over"):
        decode_backend(value + b"\0")


def test_another_version_is_refused() -> None:
    with pytest.raises(ValueError, match="version 04"):
        decode_backend(b"\x04" + encode_backend(full())[1:])

"""How rows become segments: where they are cut, and what is written only once."""

import io
import json

from broker.history.segment_process import Segmenter, serve
from broker.history.segment_process_link import FRAME, ROW, SEAL
from storage.history import events
from storage.history import packed_rows as rows
from storage.history.packed_rows import Row
from storage.tables.tables import seal
from tests.storage.history.history_cases import NOW_MS, Tick

HOUR_MS = 3_600_000
START_MS = NOW_MS - NOW_MS % HOUR_MS


def packed(first_seq: int, count: int = 1, now_ms: int = START_MS) -> bytes:
    """Return a row of `count` events as the database holds it."""
    tick = Tick()
    for _ in range(count):
        tick.record(events.GC_RUN, rows.HAS_COUNT, words={9: 1})
    return seal(tick.pack(first_seq, now_ms))


class Written:
    """Segments on no disk."""

    def __init__(self, exported: dict[int, int] | None = None, events_max: int = 1000) -> None:
        self.segments: list[tuple[int, int, int]] = []  # boot, first, last
        self.asked: list[int] = []
        self.exported = exported or {}
        self.segmenter = Segmenter(self.write, self.newest, self.end, events_max=events_max)

    def write(self, boot: int, rows: list[Row]) -> str:
        last = rows[-1].first_seq + rows[-1].events - 1
        self.segments.append((boot, rows[0].first_seq, last))
        return f"head {len(self.segments)}"

    def end(self) -> tuple[int, int, str] | None:
        boot = max(self.exported, default=0)
        return (boot, self.exported[boot], "head on the disk") if boot else None

    def newest(self, boot: int) -> int:
        self.asked.append(boot)
        return self.exported.get(boot, 0)


def answer(segments: int, count: int, chain: tuple[int, int, str] | None) -> dict[str, object]:
    """Return the answer to a seal without damage."""
    return {"segments": segments, "events": count, "damaged": [], "chain": chain}


def test_rows_are_one_segment_until_it_is_sealed() -> None:
    written = Written()
    written.segmenter.add(3, 1, packed(1, 4))
    written.segmenter.add(3, 5, packed(5))
    assert written.segments == []
    assert written.segmenter.seal() == answer(1, 5, (3, 5, "head 1"))
    assert written.segments == [(3, 1, 5)]
    assert written.segmenter.seal() == answer(0, 0, None)


def test_rows_that_are_in_a_segment_are_answered_with_where_it_ends() -> None:
    written = Written({3: 5})
    written.segmenter.add(3, 1, packed(1, 4))
    written.segmenter.add(3, 5, packed(5))
    assert written.segmenter.seal() == answer(0, 0, (3, 5, "head on the disk"))
    assert written.segmenter.seal() == answer(0, 0, None)


def test_a_segment_ends_with_its_boot_its_hour_its_size_and_where_events_are_missing() -> None:
    written = Written(events_max=4)
    add = written.segmenter.add
    add(1, 1, packed(1))
    add(2, 1, packed(1))
    add(2, 2, packed(2, now_ms=START_MS + HOUR_MS))
    add(2, 3, packed(3, 3, START_MS + HOUR_MS))
    add(2, 6, packed(6, 9, START_MS + HOUR_MS))  # a row is never divided
    add(2, 20, packed(20, now_ms=START_MS + HOUR_MS))
    sealed = written.segmenter.seal()
    assert written.segments == [(1, 1, 1), (2, 1, 1), (2, 2, 5), (2, 6, 14), (2, 20, 20)]
    assert sealed == answer(5, 16, (2, 20, "head 5"))


def test_what_a_segment_has_is_not_written_again() -> None:
    written = Written({1: 9})
    for first_seq in (5, 9, 10):
        written.segmenter.add(1, first_seq, packed(first_seq))
    assert written.segmenter.seal() == answer(1, 1, (1, 10, "head 1"))
    written.segmenter.add(1, 10, packed(10))
    assert written.segmenter.seal() == answer(0, 0, (1, 9, "head on the disk"))
    assert written.segments == [(1, 10, 10)]
    assert written.asked == [1]


def test_a_damaged_row_is_named_and_left_out() -> None:
    written = Written()
    written.segmenter.add(1, 1, packed(1))
    written.segmenter.add(1, 2, packed(2)[:-1])
    written.segmenter.add(1, 3, packed(4))  # another row's value
    written.segmenter.add(1, 4, packed(4))
    damaged = written.segmenter.seal()["damaged"]
    assert written.segments == [(1, 1, 1), (1, 4, 4)]
    assert isinstance(damaged, list)
    assert [line.partition(":")[0] for line in damaged] == [
        "boot 1, from event 2 on",
        "boot 1, from event 3 on",
    ]


def frame(boot: int, first_seq: int, value: bytes) -> bytes:
    return FRAME.pack(ROW, boot, first_seq, len(value)) + value


def test_every_seal_is_answered_with_what_could_not_be_tidied() -> None:
    written = Written()
    seal_frame = FRAME.pack(SEAL, 0, 0, 0)
    source = frame(1, 1, packed(1)) + seal_frame + frame(1, 2, packed(2)) + seal_frame
    answers = io.StringIO()
    serve(written.segmenter, io.BytesIO(source), answers, tidy=lambda: "no right")
    lines = [json.loads(line) for line in answers.getvalue().splitlines()]
    assert [line.pop("chain") for line in lines] == [[1, 1, "head 1"], [1, 2, "head 2"]]
    assert lines == 2 * [{"segments": 1, "events": 1, "damaged": [], "problem": "no right"}]


def test_what_was_not_sealed_is_forgotten_wherever_the_broker_died() -> None:
    source = frame(1, 1, packed(1))
    for length in range(len(source) + 1):
        written = Written()
        serve(written.segmenter, io.BytesIO(source[:length]), io.StringIO())
        assert written.segments == []

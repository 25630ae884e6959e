"""Are stored messages counted for the ranges whose filters they match, and only for these?"""

from collections.abc import Sequence

import pyarrow as pa

from audit.checks.backend_counting import Counting, Wanted
from audit.checks.backend_story import Stored, Story
from audit.input.events import gseq
from tests.audit.checks.mirrored import Mirrored, sums


def batch(rows: Sequence[tuple[str, int, int, str | None]]) -> pa.RecordBatch:
    """Return messages as Spark's workers get them: node, place, offset, topic."""
    columns = list(zip(*rows, strict=True)) or [(), (), (), ()]
    kinds = (pa.string(), pa.int64(), pa.int64(), pa.string())
    arrays = [pa.array(column, kind) for column, kind in zip(columns, kinds, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, names=["node", "gseq", "msg", "topic"])


def count(history: Mirrored, told: Sequence[Story]) -> dict[tuple[int, int], Stored]:
    """Return what each range of each story should have, as two workers count it."""
    wanted = [
        Wanted(
            story.node,
            [(part.first, part.last, part.statement) for part in story.ranges],
            story.gaps,
            [story.wants(number) for number in range(len(story.statements))],
        )
        for story in told
    ]
    rows = [
        (history.node, gseq(int(str(row["boot"])), int(str(row["seq"]))), int(str(row["msg"])),
         str(row["topic"]))
        for row in history.rows
        if row["ev"] == "msg_accepted"
    ]  # fmt: skip
    found: dict[tuple[int, int], Stored] = {}
    for part in (rows[::2], rows[1::2]):
        counting = Counting(wanted)
        counting.add(batch(part))
        for row in counting.table().to_pylist():
            there = found.setdefault((row["story"], row["range"]), Stored())
            there.count += row["count"]
            there.check1 += row["check1"]
            there.check2 += row["check2"]
            there.doubtful += row["doubtful"]
            there.low = min(there.low, row["low"])
            there.high = max(there.high, row["high"])
    return found


def tallies(wanted: Wanted, *rows: tuple[str, int, int, str | None]) -> dict[int, tuple[int, int]]:
    """Return count and first checksum by range."""
    counting = Counting([wanted])
    counting.add(batch(rows))
    return {
        row["range"]: (row["count"], row["check1"])
        for row in counting.table().to_pylist()
        if row["count"]
    }


def test_a_message_counts_once_however_many_filters_match() -> None:
    wanted = Wanted("n", [(1, 9, 0)], [], [{"#": 0, "a/+": 0}])
    assert tallies(wanted, ("n", 1, 5, "a/b")) == {0: (1, 5)}


def test_a_filter_reads_what_is_behind_its_beginning() -> None:
    wanted = Wanted("n", [(1, 9, 0)], [], [{"a": 5}])
    assert tallies(wanted, ("n", 1, 5, "a"), ("n", 2, 6, "a")) == {0: (1, 6)}


def test_each_range_has_the_filters_that_were_in_force() -> None:
    wanted = Wanted("n", [(1, 4, 0), (5, 9, 1)], [], [{"a": 0}, {"b": 0}])
    rows = [("n", at, at, "ab"[at % 2]) for at in range(1, 11)]
    found = tallies(wanted, *rows)
    assert found == {0: (2, 2 + 4), 1: (3, 5 + 7 + 9)}  # 10 is an "a", which nobody wants now


def test_gaps_other_nodes_and_reserved_topics_do_not_count() -> None:
    wanted = Wanted("n", [(1, 9, 0)], [(3, 4)], [{"#": 0}])
    rows = [("n", 1, 2, "a"), ("n", 2, 3, "a"), ("m", 1, 5, "a"), ("n", 3, 6, "$SYS/a")]
    assert tallies(wanted, *rows) == {0: (1, 2)}


def test_a_shortened_topic_is_doubtful() -> None:
    counting = Counting([Wanted("n", [(1, 9, 0)], [], [{"a/#": 0}])])
    counting.add(batch([("n", 1, 2, "x" * 256 + "..." + "0" * 32)]))
    (row,) = counting.table().to_pylist()
    assert (row["count"], row["doubtful"]) == (0, 1)


def test_checksums_of_large_offsets_do_not_overflow() -> None:
    offsets = [2**61 - 1 - at for at in range(1000)]
    counting = Counting([Wanted("n", [(1, 2**61, 0)], [], [{"#": 0}])])
    counting.add(batch([("n", at, offset, "a") for at, offset in enumerate(offsets)]))
    (row,) = counting.table().to_pylist()
    assert {name: row[name] for name in ("count", "check1", "check2")} == sums(offsets)


def test_what_was_not_told_yet_is_found_for_the_next_batch() -> None:
    counting = Counting([Wanted("n", [(1, 4, 0)], [(6, 6)], [{"a": 0}])])
    rows = [("n", 100 + at, at, "a" if at != 7 else "b") for at in range(1, 9)]
    found = counting.waiting(batch([*rows, ("m", 1, 9, "a")])).to_pylist()
    assert [row["gseq"] for row in found] == [105, 108]


def test_the_places_of_all_messages_of_a_range_are_known() -> None:
    counting = Counting([Wanted("n", [(3, 4, 0)], [], [{"none": 0}])])
    counting.add(batch([("n", 10 + at, at, "a") for at in range(1, 7)]))
    found = {row["range"]: (row["low"], row["high"]) for row in counting.table().to_pylist()}
    assert found == {-1: (11, 12), 0: (13, 14), 1: (15, 16)}

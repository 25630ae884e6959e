"""Does the table say what the rows say, event for event?"""

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage.history import events, packed_rows
from storage.history.columns import ARROW_SCHEMA, expand_table
from storage.history.packed_rows import Row
from tests.storage.history.history_cases import (
    BOOT,
    NODE,
    NOW_MS,
    Tick,
    everything_else,
    run_of_messages,
    ticks,
)


def as_expanded(table: pa.Table) -> list[dict[str, object]]:
    """Return the rows of a table with times as numbers, as `rows.expand` has them."""
    for index, field in enumerate(table.schema):
        if pa.types.is_timestamp(field.type):
            table = table.set_column(index, field.name, table.column(index).cast(pa.int64()))
    found: list[dict[str, object]] = table.to_pylist()
    return found


def in_turn(made: list[Tick]) -> list[Row]:
    """Return ticks as the rows of one boot, one after the other."""
    seq, now_ms, found = 1, NOW_MS, []
    for tick in made:
        found.append(tick.row(seq, now_ms))
        seq += found[-1].events
        now_ms += 7
    return found


def agree(made: list[Tick]) -> bool:
    """Tell whether the table of some ticks is what they expand to, one by one."""
    found = in_turn(made)
    table = expand_table(found, NODE, BOOT)
    table.validate(full=True)
    assert table.schema == ARROW_SCHEMA
    return as_expanded(table) == [
        flat for row in found for flat in packed_rows.expand(row, NODE, BOOT)
    ]


@settings(derandomize=True, deadline=None, max_examples=60)
@given(st.lists(ticks(), max_size=3))
def test_the_table_is_what_the_rows_expand_to(made: list[Tick]) -> None:
    assert agree(made)


@pytest.mark.parametrize(
    "made",
    [
        [],
        [Tick()],
        [run_of_messages()],
        [everything_else()],
        [everything_else(), Tick(), run_of_messages(), everything_else()],
    ],
)
def test_the_table_of_known_ticks_is_what_they_expand_to(made: list[Tick]) -> None:
    assert agree(made)


@pytest.mark.parametrize("ev", sorted(events.EVENTS))
@settings(derandomize=True, deadline=None, max_examples=8)
@given(data=st.data())
def test_every_event_is_the_same_in_the_table(ev: int, data: st.DataObject) -> None:
    assert agree([data.draw(ticks(records_max=3, ev=ev))])


def test_a_long_run_keeps_its_packet_ids_in_range() -> None:
    tick = Tick()
    tick.record(events.MSG_DELIVERED, packed_rows.HAS_PID, n=140_000, words={1: 7, 6: 65_000})
    pid = expand_table([tick.row()], NODE, BOOT).column("pid").to_numpy()
    assert (pid.min(), pid.max()) == (1, packed_rows.PID_MAX)
    assert pid[535:537].tolist() == [65_535, 1]


def test_names_that_are_as_long_as_they_can_be_are_not_repeated_for_every_event() -> None:
    """Does one client id of 65,535 bytes in every event of a segment take 3 GB?"""
    tick = Tick()
    who, topic = "c" * 65_535, "t" * 65_535
    has = packed_rows.HAS_MSG | packed_rows.HAS_PUB_QOS
    tick.record(events.MSG_ACCEPTED, has, who=f"{who}\0", text=topic, n=50_000, words={4: 1})
    tick.record(events.GC_RUN)
    table = expand_table([tick.row()], NODE, BOOT)
    assert table.nbytes < 20_000_000
    assert table.column("topic")[49_999].as_py() == topic
    assert table.slice(50_000).to_pylist()[0]["client_id"] is None
    assert table.column("topic").chunk(0).dictionary.to_pylist() == [topic]


def test_the_schema_has_the_columns_of_the_vocabulary_and_times_that_spark_reads() -> None:
    assert ARROW_SCHEMA.names == [name for name, _ in events.COLUMNS]
    assert {str(ARROW_SCHEMA.field(n).type) for n, kind in events.COLUMNS if kind == "time"} == {
        "timestamp[us, tz=UTC]"
    }

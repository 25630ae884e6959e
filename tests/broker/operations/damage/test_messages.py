"""Are the holes of a generation found, and is its index rid of them?"""

import pytest

from broker.operations.damage.messages import Messages, Range
from storage.log.generations import Generation
from storage.log.layouts.block_format import decode_index, index_key
from storage.log.layouts.message_rows import OFFSET_MAX
from tests.broker.operations.damage.databases import fleet


def with_offsets(*offsets: int, layout: str = "filters", last: int = 20) -> Messages:
    messages = Messages(Generation(1, layout, 1, last, 0, True), is_newest=False)
    (_, record), *_ = fleet("filters").rows("msg.1")
    for offset in offsets:
        messages.read_row(offset.to_bytes(8), record)
    messages.end()
    return messages


def test_what_is_between_the_messages_is_a_hole() -> None:
    messages = with_offsets(1, 2, 5, 6, 9)
    assert list(messages.holes()) == [(3, 4), (7, 8), (10, 20)]
    assert list(messages.holes(3, 7)) == [(4, 4), (7, 7)]
    assert [offset for offset in range(1, 22) if messages.is_lost(offset)] == [
        3, 4, 7, 8, *range(10, 21),
    ]  # fmt: skip
    assert messages.written_end == 9 and messages.count == 5


def test_the_newest_generation_ends_in_a_hole() -> None:
    messages = Messages(Generation(1, "blocks", 1, 66, 0, False), is_newest=True)
    for key, value in fleet().rows("msg.1"):
        messages.read_row(key, value)
    messages.end()
    assert list(messages.holes()) == [(67, OFFSET_MAX)]


def test_a_row_out_of_place_is_damage() -> None:
    (_, record), *_ = fleet("filters").rows("msg.1")
    messages = Messages(Generation(1, "filters", 5, 9, 0, True), is_newest=False)
    for key in (b"", (4).to_bytes(8), (10).to_bytes(8)):
        with pytest.raises(ValueError):
            messages.read_row(key, record)
    messages.read_row((5).to_bytes(8), record)
    with pytest.raises(ValueError, match="expected 6 to 9"):
        messages.read_row((5).to_bytes(8), record)


@pytest.mark.parametrize(
    ("ranges", "left"),
    [
        ([(1, 2, 2)], [(1, 2, 2)]),
        ([(1, 9, 12)], [(1, 2, 12), (5, 6, 12), (9, 9, 12)]),
        ([(3, 4, 4), (7, 8, 8)], []),
        ([(1, 1, 2), (4, 5, 6)], [(1, 1, 2), (5, 5, 6)]),
    ],
)
def test_an_index_row_keeps_what_can_be_read(ranges: list[Range], left: list[Range]) -> None:
    messages = Messages(Generation(1, "blocks", 1, 20, 0, True), is_newest=False)
    messages._firsts[:], messages._lasts[:] = [3, 7, 10], [4, 8, 20]
    assert messages.without_holes(ranges) == left
    if left:
        key, value = messages.encode(77, left)
        assert messages.ranges(key, value) == (77, left)
        entries: list[int] = []
        decode_index(key, value, 0, 100, entries)
        assert len(entries) == sum(last - first + 1 for first, last, _ in left)
        assert key == index_key(77, left[-1][1], left[-1][2] - left[-1][1])

"""Do rows come out of the pipe as they went in, or not at all?"""

import io

import pytest

from broker.backends.process import read_frame
from broker.backends.rows import (
    BATCH,
    START,
    RowBatch,
    Start,
    decode_batch,
    decode_start,
    decode_wire_rows,
    encode_batch,
    encode_start,
    encode_wire_row,
    frame,
)
from mqtt.message import Message
from storage.errors import CorruptRecord
from storage.tables.feed_rows import CONNECTED, RETAINED, FeedEvent, encode_event
from storage.tables.message_record import encode_message
from tests.broker.backends.told_rows import event, message

ROWS = [
    message(2**40, "täg/a", b"\0\xff", qos=2, retain=True, properties=b"\x03\x00\x01x"),
    event(CONNECTED, "clïent", seq=2**33, username="ann"),
    event(RETAINED, "", "t", seq=9, body=bytes(1000)),
]


def fields(row: Message | FeedEvent) -> list[object]:
    """Return everything of a row."""
    if isinstance(row, Message):
        return [encode_message(row), row.offset]
    return [encode_event(row), row.seq]


def test_a_batch_comes_back_whole() -> None:
    sent = RowBatch(7, (1, 2), (2**40, 2**33), ROWS)
    framed = read_frame(io.BytesIO(encode_batch(sent)))
    assert framed is not None and framed[0] == BATCH
    found = decode_batch(framed[1])
    assert (found.run, found.after, found.upto) == (7, (1, 2), (2**40, 2**33))
    assert [fields(row) for row in found.rows] == [fields(row) for row in ROWS]


@pytest.mark.parametrize("is_rewind", [True, False])
def test_a_start_comes_back(is_rewind: bool) -> None:
    framed = read_frame(io.BytesIO(encode_start(Start(3, (4, 5), is_rewind=is_rewind))))
    assert framed is not None and framed[0] == START
    found = decode_start(framed[1])
    assert (found.run, found.cursor, found.is_rewind) == (3, (4, 5), is_rewind)


def test_every_truncation_is_noticed() -> None:
    body = b"".join(map(encode_wire_row, ROWS))
    ends = {0, len(encode_wire_row(ROWS[0])), len(body) - len(encode_wire_row(ROWS[2])), len(body)}
    for size in set(range(0, len(body), 7)) - ends:
        with pytest.raises(CorruptRecord):
            list(decode_wire_rows(body[:size]))
    for wrong in (bytes(5), bytes(100)):
        with pytest.raises(CorruptRecord):
            decode_start(wrong)
    with pytest.raises(CorruptRecord):
        decode_batch(bytes(10))


def test_half_a_frame_is_the_end() -> None:
    whole = frame(BATCH, b"body")
    for size in range(len(whole)):
        assert read_frame(io.BytesIO(whole[:size])) is None

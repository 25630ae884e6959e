"""Is a block of messages read back exactly, or not at all? And an index row?"""

import zlib

import pytest

from mqtt.message import NEVER, Message
from storage.errors import CorruptRecord
from storage.log.layouts.block_format import (
    BACK_BITS,
    RANGES_MAX,
    Block,
    decode_index,
    decode_single,
    encode_block,
    encode_index,
    encode_one,
    encode_run,
    index_key,
    index_start,
)
from storage.tables.message_record import encode_username
from tests.storage.log_cases import fields, golden, stored

TIME = 1_763_711_111_111
HEADER = Message("täg/☃", b"", 2, True, b"\x01\x01\x03\x00\x04text", "clïent", TIME, TIME + 60_000)
LARGEST = Message("t" * 65_535, b"", 2, False, b"\x26" * 70_000, "c" * 65_535, 2**63, 2**64 - 1)
LARGEST_NAMED = Message("t", b"", 0, False, b"", "c" * 65_535, 0, NEVER, username="u" * 65_535)
PLAIN = Message("site/7/temperature", b"21.5", 1, False, b"", "sensor-7", TIME, NEVER)
EMPTY = Message("t", b"", 0, False, b"", "", 0, NEVER)
NAMED = Message("t", b"21", 1, False, b"\x01\x01", "c", TIME, NEVER, username="änna")

# Each case: runs of a message and the payloads of those that follow it, None = it is alone.
Runs = list[tuple[Message, list[bytes] | None]]
CASES: dict[str, Runs] = {
    "one message": [(PLAIN, None)],
    "a run of one size": [(PLAIN, [b"21.5", b"21.6", b"21.7"])],
    "a run of many sizes": [(PLAIN, [b"", b"2", b"21"])],
    "several runs": [(EMPTY, None), (HEADER, [b"\x00\xff", b""]), (PLAIN, [b"", b""])],
}
# With user names, in version 2.
CASES_NAMED: dict[str, Runs] = {
    "one message with a user name": [(NAMED, None)],
    "runs of one size and of many": [(NAMED, [b"21", b"22"]), (NAMED, [b"", b"2", b"21"])],
    "with and without a user name": [(NAMED, [b"21", b"22"]), (EMPTY, None), (NAMED, None)],
}
CASES_ALL = {**CASES, **CASES_NAMED}
UNPINNED: dict[str, Runs] = {
    "largest names": [(LARGEST, [b"p", b"qq"])],
    "large payloads": [(PLAIN, [bytes(70_000), b"x" * 70_001])],
    "largest user name": [(LARGEST_NAMED, [b"p", b"qq"])],
}
INDEX = {
    "one offset": [9, 9, 9],
    "one range": [5, 9, 11],
    "ranges in two blocks": [2**48 - 1, 2**48, 2**48, 2**48 + 2, 2**48 + 2, 2**48 + 4],
}


def encoded(runs: Runs) -> tuple[bytes, list[Message]]:
    """Return the block of `runs` from offset 1 on, and its messages."""
    pieces: list[bytes] = []
    places: list[int] = []
    messages: list[Message] = []
    for first, payloads in runs:
        publisher, topic = first.publisher.encode(), first.topic.encode()
        named = encode_username(first.username) if first.username else b""
        places += (len(messages), sum(map(len, pieces)))
        if payloads is None:
            encode_one(first, publisher, topic, named, pieces)
        else:
            size = sum(map(len, pieces))
            added = encode_run(first, publisher, topic, named, payloads, pieces)
            assert added == sum(map(len, pieces)) - size
        for payload in payloads if payloads is not None else [first.payload]:
            values = fields(first)
            one = Message(values[0], payload, *values[2:])  # type: ignore[arg-type]
            messages.append(stored(one, len(messages) + 1))
    is_named = any(message.username for message in messages)
    size = sum(map(len, pieces))
    return encode_block(len(messages), places, pieces, size, is_named=is_named), messages


@pytest.mark.parametrize("case", [*CASES_ALL, *UNPINNED])
def test_a_block_gives_its_messages_back(case: str) -> None:
    data, messages = encoded({**CASES_ALL, **UNPINNED}[case])
    block = Block(data, len(messages))
    assert (block.first, block.last, block.count) == (1, len(messages), len(messages))
    for message in reversed(messages):
        found = block.get(message.offset)
        assert found is not None
        assert fields(found) == fields(message)
        assert block.get(message.offset) is found
    assert block.get(0) is None
    assert block.get(len(messages) + 1) is None


def test_a_block_says_where_its_runs_end() -> None:
    block = Block(encoded(CASES["several runs"])[0], 5)
    assert [block.run_end(offset) for offset in range(1, 6)] == [1, 3, 3, 5, 5]


@pytest.mark.parametrize("case", CASES)
def test_blocks_are_as_documented(case: str) -> None:
    assert encoded(CASES[case])[0] == golden("block-v1.hex")[case]


@pytest.mark.parametrize("case", CASES_NAMED)
def test_blocks_with_user_names_are_as_documented(case: str) -> None:
    assert encoded(CASES_NAMED[case])[0] == golden("block-v2.hex")[case]


@pytest.mark.parametrize("case", CASES_ALL)
def test_every_truncation_extension_and_bit_flip_is_noticed(case: str) -> None:
    data, messages = encoded(CASES_ALL[case])
    last = len(messages)
    for size in range(len(data)):
        with pytest.raises(CorruptRecord):
            Block(data[:size], last)
    with pytest.raises(CorruptRecord, match=f"messages to {last}: checksum"):
        Block(data + b"\0", last)
    for bit in range(8 * len(data)):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CorruptRecord):
            Block(bytes(flipped), last)


def resealed(data: bytes, at: int, value: int) -> bytes:
    """Return the block with another byte and the checksum for that: what only a program does."""
    body = bytearray(data[:-4])
    body[at] = value
    return bytes(body) + zlib.crc32(body).to_bytes(4, "little")


@pytest.mark.parametrize("case", CASES_ALL)
def test_no_byte_that_is_wrong_by_a_sound_checksum_is_read_beyond_its_end(case: str) -> None:
    data, messages = encoded(CASES_ALL[case])
    last = len(messages)
    for at in range(len(data) - 4):
        for value in (0, 1, 0x80, 0xFF):
            try:
                block = Block(resealed(data, at, value), last)
                found = [block.get(offset) for offset in range(block.first, last + 1)]
            except CorruptRecord:
                continue
            assert all(message is not None for message in found)


def test_what_a_sound_checksum_does_not_excuse() -> None:
    data, _ = encoded(CASES["a run of many sizes"])
    run = 5 + 4
    refused = {
        (0, 3): "messages 1 to 3: block version 3, expected 1 or 2",
        (0, 0): "messages 1 to 3: block version 0, expected 1 or 2",
        (2, 0): "messages 4 to 3: 1 runs in",
        (2, 4): "messages 0 to 3: a run of 3 messages",
        (4, 0): "messages 1 to 3: 0 runs in",
        (4, 119): "messages 1 to 3: 119 runs in",
        (4, 100): "messages 1 to 3: 100 runs in",
        (4, 2): "messages 1 to .*: their run is not where it can be",
        (6, 1): "messages 1 to 3: the first is in no run",
        (8, 1): "messages 1 to 3: a run of",
        (8, 99): "messages 1 to 3: their run is not where it can be",
        (run, 0x19): "messages 1 to 3: a run of 3 messages, flags 0x19",
        (run, 0x0B): "messages 1 to 3: a run of 3 messages, flags 0x0b",
        (run + 26, 2): "messages 1 to 3: a run of 2 messages",
        (run + 30, 4): "messages 1 to 3: a run of 3 messages",
        (run + 31, 0xFF): "messages 1 to 3: a name in it is not UTF-8",
        (len(data) - 8, 9): "messages 1 to 3: payloads of other sizes than 3 bytes",
    }
    for (at, value), what in refused.items():
        with pytest.raises(CorruptRecord, match=what):
            Block(resealed(data, at, value), 3).get(2)


def test_what_a_sound_checksum_does_not_excuse_in_a_user_name() -> None:
    data, _ = encoded(CASES_NAMED["one message with a user name"])
    run = 5 + 4
    size_at = run + 31 + len("c") + len("t") + len(b"\x01\x01")
    refused = {
        (0, 1): "flags 0x11",
        (size_at + 1, 0): "a run of 1 messages",
        (size_at + 1, 4): "a run of 1 messages",
        (size_at + 1, 0xFF): "a run of 1 messages",
        (size_at, 0xFF): "a run of 1 messages",
        (size_at + 2, 0xFF): "a name in it is not UTF-8",
    }
    for (at, value), what in refused.items():
        changed = resealed(data, at, value)
        assert decode_single(changed, 1, 1) is None
        with pytest.raises(CorruptRecord, match=what):
            Block(changed, 1).get(1)


ALONE: Runs = [(EMPTY, None), (HEADER, None), (PLAIN, None)]
SINGLE = {**CASES_ALL, **UNPINNED, "alone": ALONE}


@pytest.mark.parametrize("case", SINGLE)
def test_a_single_message_is_read_without_the_others(case: str) -> None:
    data, messages = encoded(SINGLE[case])
    last = len(messages)
    for message in messages:
        found = decode_single(data, last, message.offset)
        assert found is not None
        assert fields(found) == fields(message)
    assert decode_single(data, last, 0) is None
    assert decode_single(data, last, last + 1) is None


@pytest.mark.parametrize("case", [*CASES_ALL, "alone"])
def test_nothing_is_read_of_a_block_that_is_cut_or_changed(case: str) -> None:
    data, messages = encoded(SINGLE[case])
    last = len(messages)
    for size in range(len(data)):
        assert decode_single(data[:size], last, 1) is None
    for bit in range(8 * len(data)):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        assert decode_single(bytes(flipped), last, 1) is None


@pytest.mark.parametrize("case", [*CASES_ALL, "alone"])
def test_a_single_message_is_what_the_block_says_whatever_the_program_wrote(case: str) -> None:
    data, messages = encoded(SINGLE[case])
    last = len(messages)
    for at in range(len(data) - 4):
        for value in (0, 1, 2, 0x80, 0xFF):
            changed = resealed(data, at, value)
            for offset in range(1, last + 1):
                single = decode_single(changed, last, offset)
                try:
                    found = Block(changed, last).get(offset)
                except CorruptRecord:
                    continue  # also for what is wrong with other messages' places
                if single is not None:
                    assert found is not None
                    assert fields(found) == fields(single)


def entries(filter_id: int, ranges: list[int], after: int = 0, count: int = 99) -> list[int]:
    """Return what a row with `ranges` names after an offset."""
    last = ranges[-2]
    key = index_key(filter_id, last, ranges[-1] - last)
    found: list[int] = []
    decode_index(key, encode_index(ranges, 0, len(ranges)), after, count, found)
    return found


@pytest.mark.parametrize("case", INDEX)
def test_an_index_row_gives_its_offsets_and_their_blocks_back(case: str) -> None:
    ranges = INDEX[case]
    expected = [
        offset << BACK_BITS | (block - offset)
        for first, last, block in zip(ranges[::3], ranges[1::3], ranges[2::3], strict=True)
        for offset in range(first, last + 1)
    ]
    assert entries(1, ranges) == expected
    for after in range(ranges[0] - 1, ranges[-2] + 1):
        rest = [entry for entry in expected if entry >> BACK_BITS > after]
        assert entries(1, ranges, after) == rest
        assert entries(1, ranges, after, 2) == rest[:2]


def test_index_rows_are_as_documented() -> None:
    cases = golden("index-v1.hex")
    for case, ranges in INDEX.items():
        last = ranges[-2]
        assert index_key(1, last, ranges[-1] - last) == cases[f"key of {case}"]
        assert encode_index(ranges, 0, len(ranges)) == cases[f"value of {case}"]
    assert index_start(1, 9) < index_key(1, 9, 0) < index_key(1, 9, 1) < index_start(1, 10)


def test_every_damage_of_an_index_row_is_noticed() -> None:
    ranges = INDEX["ranges in two blocks"]
    key = index_key(1, ranges[-2], ranges[-1] - ranges[-2])
    value = encode_index(ranges, 0, len(ranges))
    for size in range(1, len(value)):
        with pytest.raises(CorruptRecord, match="index of filter 1 to message 281474976710658"):
            decode_index(key, value[:size], 0, 99, [])
    for bit in range(8 * len(value)):
        flipped = bytearray(value)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CorruptRecord):
            decode_index(key, bytes(flipped), 0, 99, [])
    for ranges in ([5, 6, 6, 6, 7, 7], [5, 4, 4, 6, 7, 7]):
        with pytest.raises(CorruptRecord, match="not in order"):
            decode_index(index_key(1, 7, 0), encode_index(ranges, 0, 6), 0, 99, [])
    with pytest.raises(CorruptRecord, match="ranges end at 8, not at 9"):
        value = encode_index([5, 6, 7], 0, 3)
        decode_index(index_key(1, 9, 0), resealed(value, 4, 1), 0, 99, [])


def test_a_full_index_row_comes_back() -> None:
    ranges = [number for n in range(RANGES_MAX) for number in (4 * n + 1, 4 * n + 2, 4 * n + 3)]
    assert [entry >> BACK_BITS for entry in entries(7, ranges, count=999)] == [
        offset for n in range(RANGES_MAX) for offset in (4 * n + 1, 4 * n + 2)
    ]

"""Does a tick become few rows, bounded ones, and lose nothing?"""

from mqtt.message import Message
from storage.api import Batch
from storage.log.layouts.block_format import (
    BACK_BITS,
    BACK_MASK,
    BLOCK_BYTES,
    RANGES_MAX,
    SPAN_MAX,
    Block,
    decode_index,
)
from storage.log.layouts.block_writer import Sealing
from tests.storage.log_cases import message, stored

Run = tuple[str, list[bytes], list[int]]


def sealed(runs: list[Run], first: int = 1) -> tuple[list[Block], dict[int, list[int]], Batch]:
    """Return the blocks, what the index names per filter, and the rows of these runs."""
    messages: list[Message] = []
    ids: list[list[int]] = []
    lists: list[list[bytes] | None] = []
    for topic, payloads, filter_ids in runs:
        messages.append(stored(message(topic, payloads[0]), first))
        ids.append(filter_ids)
        lists.append(payloads if len(payloads) > 1 else None)
        first += len(payloads)
    batch: Batch = []
    sealing = Sealing(batch, "msg.1", "idx.1")
    sealing.add(messages, list(ids), lists)
    assert sealing.size == sum(len(key) + len(value or b"") for _, key, value in batch)
    blocks: list[Block] = []
    index: dict[int, list[int]] = {}
    for family, key, value in batch:
        assert value is not None
        if family == "msg.1":
            blocks.append(Block(value, int.from_bytes(key, "big")))
        else:
            decode_index(
                key, value, 0, 1 << 20, index.setdefault(int.from_bytes(key[:8], "big"), [])
            )
    lasts = {block.last: block for block in blocks}
    for entries in index.values():
        for entry in entries:
            offset = entry >> BACK_BITS
            assert lasts[offset + (entry & BACK_MASK)].get(offset) is not None
    return blocks, {f: [e >> BACK_BITS for e in entries] for f, entries in index.items()}, batch


def payloads_of(blocks: list[Block]) -> list[tuple[int, str, bytes]]:
    """Return offset, topic and payload of every message, in order."""
    found: list[tuple[int, str, bytes]] = []
    for block in blocks:
        for offset in range(block.first, block.last + 1):
            one = block.get(offset)
            assert one is not None
            found.append((one.offset, one.topic, one.payload))
    return found


def test_a_long_run_is_a_row_per_4_kib_and_one_of_the_index() -> None:
    payloads = [bytes([n]) * 100 for n in range(200)]
    blocks, index, batch = sealed([("a", payloads, [1])])
    assert payloads_of(blocks) == [(n + 1, "a", payload) for n, payload in enumerate(payloads)]
    assert len(blocks) == 200 * 104 // BLOCK_BYTES + 1
    assert all(block.size <= BLOCK_BYTES + 64 for block in blocks)
    assert index == {1: list(range(1, 201))}
    assert len(batch) == len(blocks) + 1


def test_runs_share_blocks_and_a_filter_has_one_row_whatever_it_got() -> None:
    runs: list[Run] = []
    for n in range(60):
        runs.append((f"t/{n % 3}", [b"x" * n, b"y"] if n % 2 else [b"x"], [n % 3 + 1, 9]))
    blocks, index, batch = sealed(runs, 1000)
    expected = [(topic, payload) for topic, payloads, _ in runs for payload in payloads]
    assert payloads_of(blocks) == [(1000 + n, *one) for n, one in enumerate(expected)]
    assert sorted(index) == [1, 2, 3, 9]
    assert index[9] == list(range(1000, 1090))
    for number in range(3):
        named = [n + 1000 for n, (topic, _) in enumerate(expected) if topic == f"t/{number}"]
        assert index[number + 1] == named
    assert len(batch) == len(blocks) + 4


def test_a_message_larger_than_a_block_is_a_block_of_its_own() -> None:
    large = b"L" * (BLOCK_BYTES + 1)
    for runs in (
        [("a", [b"1"], [1]), ("a", [large], [1]), ("a", [b"2"], [1])],
        [("a", [b"1", large, large, b"2"], [1])],
        [("a", [b"1", large], [1]), ("a", [large], [1]), ("a", [b"2", b"3"], [1])],
    ):
        blocks, index, _ = sealed(runs)
        expected = [payload for _, payloads, _ in runs for payload in payloads]
        assert [payload for _, _, payload in payloads_of(blocks)] == expected
        for block in blocks:
            assert block.count == 1 or block.size < BLOCK_BYTES
        assert index == {1: list(range(1, len(expected) + 1))}


def test_empty_messages_are_bounded_in_number_per_block() -> None:
    blocks, _, _ = sealed([("a", [b""] * 5000, [])])
    assert max(block.count for block in blocks) <= 1024
    assert sum(block.count for block in blocks) == 5000


def test_a_scattered_filter_gets_rows_of_bounded_size() -> None:
    runs: list[Run] = [("ab"[n % 2], [b""], [n % 2 + 1]) for n in range(600)]
    _, index, batch = sealed(runs)
    assert index == {1: list(range(1, 601, 2)), 2: list(range(2, 601, 2))}
    rows = [value or b"" for family, _, value in batch if family == "idx.1"]
    assert len(rows) == 2 * (300 // RANGES_MAX + 1)
    assert max(len(row) for row in rows) <= 5 + 6 * RANGES_MAX


def test_a_row_of_the_index_spans_what_16_bits_can_say() -> None:
    gap = [b""] * SPAN_MAX
    runs: list[Run] = [("a", [b""], [1]), ("b", gap, [2]), ("a", [b"", b""], [1])]
    _, index, batch = sealed(runs)
    assert index[1] == [1, SPAN_MAX + 2, SPAN_MAX + 3]
    assert index[2] == list(range(2, SPAN_MAX + 2))
    assert sum(1 for family, key, _ in batch if family == "idx.1" and key[7] == 1) == 2

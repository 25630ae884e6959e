"""Is an iterator that was kept the same iterator when it comes back?"""

import pytest

from storage.log.iterators import StreamIterator
from tests.storage.log_cases import (
    golden,
)


def test_iterators_are_as_documented() -> None:
    kept = golden("stream-iterator-v1.hex")
    whole = StreamIterator(0, 1, 0, "#", 0, 0)
    one = StreamIterator(3, 7, 2**33, "täg/+/x", 2**40, 1_763_711_111_111)
    assert whole.to_bytes() == kept["whole shard"]
    assert StreamIterator.from_bytes(kept["one filter"]) == one
    assert one != whole
    assert repr(one) == "StreamIterator(shard 3, generation 7, filter 8589934592 'täg/+/x', " + (
        f"at {2**40})"
    )


def test_damaged_iterators_are_refused() -> None:
    kept = golden("stream-iterator-v1.hex")["one filter"]
    for size in range(len(kept)):
        with pytest.raises(ValueError, match="iterator"):
            StreamIterator.from_bytes(kept[:size])
    for bit in range(8 * len(kept)):
        damaged = bytearray(kept)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(ValueError, match="iterator"):
            StreamIterator.from_bytes(bytes(damaged))

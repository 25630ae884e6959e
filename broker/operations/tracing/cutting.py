"""Cuts the bytes of one direction of a connection into packets, for a trace.

Must never judge: the broker's own decoder does that. Of a long packet only the beginning is kept,
so a trace needs little memory whatever clients send. Read next:
`broker.operations.tracing.packets`.
"""

from typing import Final

# Of a packet: room for a topic of full length, a property block and the beginning of a payload.
KEPT_BYTES_MAX: Final = 80 << 10
HEADER_BYTES_MAX: Final = 5


class Cut:
    """One packet: its bytes, or the beginning of them, and its size on the wire."""

    __slots__ = ("body", "data", "size")

    def __init__(self, data: bytes, body: int, size: int) -> None:
        self.data: bytes = data  # from the first byte on
        self.body: int = body  # where the variable header begins
        self.size: int = size

    @property
    def is_whole(self) -> bool:
        """Whether all of the packet was kept."""
        return len(self.data) == self.size


class Cutter:
    """Takes bytes as they come, and returns the packets that they complete."""

    __slots__ = ("_kept", "_seen", "is_lost")

    def __init__(self) -> None:
        self._kept: bytearray = bytearray()  # the beginning of a packet that is not complete
        self._seen: int = 0  # bytes of that packet that have come
        self.is_lost: bool = False  # a length could not be read: nothing can be cut any more

    def feed(self, data: bytes) -> list[Cut]:
        """Take the next bytes; return what they complete, in order."""
        found: list[Cut] = []
        at = 0
        while at < len(data) and not self.is_lost:
            if self._seen:
                at = self._go_on(data, at, found)
                continue
            head = _header(data, at)
            if head is None:
                if len(data) - at >= HEADER_BYTES_MAX:
                    self.is_lost = True
                    break
                at = self._begin(data, at)
                continue
            body, size = head
            if at + size > len(data):
                at = self._begin(data, at)
                continue
            end = at + min(size, KEPT_BYTES_MAX)
            found.append(Cut(bytes(data[at:end]), body - at, size))
            at += size
        return found

    def _begin(self, data: bytes, at: int) -> int:
        """Keep the rest of the bytes: a packet that is not complete."""
        self._seen = len(data) - at
        self._kept += data[at : at + KEPT_BYTES_MAX]
        return len(data)

    def _go_on(self, data: bytes, at: int, found: list[Cut]) -> int:
        """Add to the packet that is not complete; return how far that goes."""
        kept = self._kept
        head = _header(kept, 0)
        if head is None:
            if len(kept) >= HEADER_BYTES_MAX:
                self.is_lost = True
                return len(data)
            kept.append(data[at])
            self._seen += 1
            at += 1
            head = _header(kept, 0)
            if head is None or self._seen < head[1]:
                return at
        body, size = head
        taken = min(size - self._seen, len(data) - at)
        room = max(0, KEPT_BYTES_MAX - len(kept))
        kept += data[at : at + min(taken, room)]
        self._seen += taken
        if self._seen == size:
            found.append(Cut(bytes(kept), body, size))
            self._kept = bytearray()
            self._seen = 0
        return at + taken


def _header(data: bytes | bytearray, at: int) -> tuple[int, int] | None:
    """Return where the body of the packet at `at` begins, and its size; None = not known yet.

    None also for a length of more than four bytes: five bytes without one are no packet.
    """
    length = shift = 0
    for place in range(at + 1, min(at + HEADER_BYTES_MAX, len(data))):
        byte = data[place]
        length |= (byte & 0x7F) << shift
        if byte < 0x80:
            return place + 1, place + 1 - at + length
        shift += 7
    return None

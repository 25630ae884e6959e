"""What a leader has written and not committed: it is sent, sent again, and released in order.

Pure. Read next: `storage.replicated.roles.acknowledgements`, `storage.replicated.replica`.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from storage.errors import Recoverable
from storage.replicated import batch_codec
from storage.replicated.batch_codec import Operation
from storage.replicated.record import BATCH, PART, Position, Record, after
from storage.replicated.roles.acknowledgements import Acknowledgements
from storage.replicated.roles.terms import Settings, Tail


@dataclass(slots=True)
class Sent:
    """A record that the leader has written and that is not committed."""

    position: Position  # of the chain behind it
    data: bytes
    ends_batch: bool
    place: int = -1  # in the log, -1 = not read back


class Writing:
    """The batches of a leader."""

    def __init__(
        self, settings: Settings, tail: Tail, acks: Acknowledgements, end: Position, now: int
    ) -> None:
        self.end: Position = end  # behind what was written, or began after
        self.pending: Final[deque[Sent]] = deque()
        self._settings: Final = settings
        self._tail: Final = tail
        self._acks: Final = acks
        self._counted: int = now  # when a record counted last, or was sent again
        # Longer each time: a slow log needs no repeats.
        self._resend_ms: int = settings.resend_ms

    def write(self, operations: Sequence[Operation]) -> list[Sent]:
        """Append a batch to tail and log; return its records. Raises `Recoverable`."""
        pieces = batch_codec.parts(batch_codec.encode(operations), self._settings.part_bytes)
        end, node, sent = self.end, self._settings.node, list[Sent]()
        for number, piece in enumerate(pieces, 1):
            kind = BATCH if number == len(pieces) else PART
            record = Record(kind, end.epoch, end.index + 1, end.digest, node, piece)
            data = record.encode()
            end = after(record, data)
            sent.append(Sent(end, data, kind == BATCH))
        self._keep(sent)
        for each in sent:
            self._acks.send(each.position.index, each.data)
        self.pending.extend(sent)
        self.end = end
        return sent

    def _keep(self, sent: Sequence[Sent]) -> None:
        """Put a batch into the own tail: all of it, or raise `Recoverable` and nothing."""
        try:
            for each in sent:
                self._tail.append(each.position.index, each.data)
        except Recoverable:
            self._tail.drop_from(sent[0].position.index)
            raise

    def send_again(self, index: int) -> None:
        """Append again what is pending from this index on."""
        self._acks.repeat_from(index)
        for sent in self.pending:
            if sent.position.index >= index:
                self._acks.send(sent.position.index, sent.data)

    def was_read(self, position: Position, place: int) -> bool:
        """Note where an own record is; return False if another one is at its index."""
        behind = position.index - self.pending[0].position.index if self.pending else -1
        if 0 <= behind < len(self.pending):
            if self.pending[behind].position != position:
                return False
            self.pending[behind].place = place
        return True

    def counted(self, now: int) -> None:
        """A record counted in the log: it goes on."""
        self._counted = now
        self._resend_ms = self._settings.resend_ms

    def is_overdue(self, log_end: Position, now: int, *, is_stalled: bool) -> bool:
        """Return whether what the log lacks should be sent again. What it has waits for others."""
        if self.end.index == log_end.index:
            self._counted = now
            return False
        if is_stalled or now - self._counted <= self._resend_ms:
            return False
        self._counted = now
        self._resend_ms *= 2
        return True

    def _place_of(self, index: int) -> int | None:
        """Return where a record is in the log, -1 = not read back; None = it is not pending."""
        behind = index - self.pending[0].position.index if self.pending else -1
        return self.pending[behind].place if 0 <= behind < len(self.pending) else None

    def commit(self, index: int) -> Iterator[Sent]:
        """Yield the last records of the batches up to an index that the log keeps."""
        self._acks.take_batches(self._place_of)
        while self.pending and self.pending[0].position.index <= index:
            if self.pending[0].place > self._acks.promised:
                return
            sent = self.pending.popleft()
            if sent.ends_batch:
                yield sent

"""Whether the store takes writes, and whether new durable state is refused.

A batch that the store refuses is kept and tried again: nothing is lost, and nothing is acknowledged
meanwhile. A stall only delays. While the disk is full or below its low-water mark, clients may add
nothing that has to be stored. Must never write anything itself. Read next: `session.tick_writer`,
which reports every batch here.
"""

from typing import Final

from storage.errors import Recoverable, WriteStalled

RETRY_MS: Final = 100  # how long after a refused write the same batch is tried again
STALL_RETRY_MS: Final = 10
NO_LIMIT: Final = 1 << 62  # bytes


class StoreHealth:
    """The store's answer to the last batch. Only the methods set the attributes."""

    def __init__(self) -> None:
        # Why the store refused the last batch, None if it took it. A shell may free space or reopen
        # the store then.
        self.refused_by: Recoverable | None = None
        self.retry_ms: int | None = None  # a batch was refused; when to try it again
        self.refuses_new: bool = False  # is new durable state refused?
        # Space above the low-water mark when the disk was looked at last.
        self.room_bytes: int = NO_LIMIT
        self._is_low = False

    def refused(self, refusal: Recoverable, now: int) -> None:
        """Note that the store has refused a batch; nothing of it was applied."""
        is_stall = isinstance(refusal, WriteStalled)
        self.retry_ms = now + (STALL_RETRY_MS if is_stall else RETRY_MS)
        self.refused_by = refusal
        self._judge()

    def recovered(self) -> None:
        """Note that the store has taken a batch again."""
        self.retry_ms = None
        self.refused_by = None
        self._judge()

    def note_disk_space(self, *, is_low: bool, room_bytes: int = NO_LIMIT) -> None:
        """Note whether the disk is below its low-water mark, and how much room is above that."""
        self._is_low = is_low
        self.room_bytes = room_bytes
        self._judge()

    def _judge(self) -> None:
        refusal = self.refused_by
        is_full = refusal is not None and not isinstance(refusal, WriteStalled)
        self.refuses_new = self._is_low or is_full

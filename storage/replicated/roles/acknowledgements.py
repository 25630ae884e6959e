"""What the log has promised to keep: which appends were acknowledged, and what they prove.

The log keeps everything up to a place that it has acknowledged. That says something of the records
that this node knows only if it has read so far since: records may have been lost, and others have
come in their place, before the acknowledged one was there. A record of the chain proves more: if it
was read at the place that is acknowledged, all before it is what was read. Pure. Read next:
`storage.replicated.log_port`.
"""

from collections import deque
from collections.abc import Callable
from typing import Final

from storage.replicated.log_port import ReplicatedLog

ASKED_MAX: Final = 16  # own words whose acknowledgement is awaited; older ones count no more


class Acknowledgements:
    """Appends whose outcome is awaited. `read` must be called with how far the log was read."""

    def __init__(self, log: ReplicatedLog, never: int) -> None:
        """`never` is a time so long ago that it proves nothing."""
        self.promised: int = -1  # the last place that was acknowledged and then read
        self.proved: int = never  # when the newest word was sent that was acknowledged and read
        self._log: Final = log
        self._never: Final = never
        self._token: int = 0
        self._tokens: dict[int, int] = {}  # of batches, the last attempt: token -> index
        self._asked: Final[dict[int, int]] = {}  # of own words: token -> when it was sent
        # What was acknowledged and not yet read: (place, when an own word was sent).
        self._acks: Final[deque[tuple[int, int]]] = deque()
        self._kept_at: dict[int, int] = {}  # where batches were acknowledged: index -> place

    def send(self, index: int, data: bytes) -> None:
        """Append a record of a batch."""
        self._token += 1
        self._tokens[self._token] = index
        self._log.append(data, self._token)

    def ask(self, data: bytes, now: int) -> None:
        """Append an own word, to learn what the log keeps."""
        self._token += 1
        self._asked[self._token] = now
        if len(self._asked) > ASKED_MAX:
            del self._asked[min(self._asked)]
        self._log.append(data, self._token)

    def index_of(self, token: int) -> int:
        """Return the index of a record whose outcome is awaited, 0 = it is not."""
        return self._tokens.get(token, 0)

    def give_up(self, token: int) -> None:
        """Await an outcome no more: it will never be known."""
        self._tokens.pop(token, None)

    def acknowledged(self, token: int, place: int) -> None:
        """Note that the log keeps whatever is at this place now, and all before it."""
        if token in self._asked:
            self._acks.append((place, self._asked.pop(token)))
        elif index := self._tokens.pop(token, 0):
            self._acks.append((place, self._never))
            self._kept_at[index] = place

    def take_batches(self, place_of: Callable[[int], int | None]) -> None:
        """Take those that were acknowledged where they were read.

        `place_of` an index is -1 if it was not read yet, None if nobody waits for it any more.
        """
        waiting: dict[int, int] = {}
        for index, place in self._kept_at.items():
            read_at = place_of(index)
            if read_at == place:
                self.promised = max(self.promised, place)
            elif read_at == -1:
                waiting[index] = place
        self._kept_at = waiting

    def read(self, end: int) -> None:
        """Take what was acknowledged before a place to which the log was read after that."""
        while self._acks and self._acks[0][0] < end:
            place, sent = self._acks.popleft()
            self.promised = max(self.promised, place)
            self.proved = max(self.proved, sent)

    def repeat_from(self, index: int) -> None:
        """Await no more what was sent from this index on: it is sent again."""
        self._tokens = {each: to for each, to in self._tokens.items() if to < index}
        self._kept_at = {each: at for each, at in self._kept_at.items() if each < index}

    def shrunk(self, end: int) -> None:
        """The log has lost what was from this place on."""
        self.promised = min(self.promised, end - 1)
        self._acks.clear()
        self._kept_at.clear()
        self._asked.clear()

"""Rows that a store has refused for good: kept, looked at, sent again, dropped.

A letter that is sent again goes through the feed as an event of its own, behind what waits. It
stays until the store has confirmed that event, and is deleted in the same batch as the cursor moves
behind it; if the store refuses it again, it stays with one try more. Read next:
`session.feed.outlet`, whose cursor decides.
"""

import struct
from collections.abc import Iterable, Sequence
from typing import Final

from session.feed.recorder import FeedRecorder
from session.live.damage import Damage
from session.live.tick import Tick
from session.state.backend_record import BackendRecord, Cursor
from storage.api import Store
from storage.errors import CorruptRecord, DamagedRows
from storage.tables.feed_rows import FeedEvent
from storage.tables.tables import (
    DEAD_LETTERS,
    client_prefix,
    prefix_end,
    scan_readable,
    seal,
    unseal,
)

RETRIES_MAX: Final = 256  # on their way to one store at once: they are in the backend's record
# Of the letters of one store: whoever may publish may be able to make rows that it refuses. Beyond
# it letters are kept without their rows, which are most of their bytes.
TOTAL_BYTES_MAX: Final = 64 << 20
SCAN_LETTERS: Final = 64  # read at once: 4 MiB
FULL: Final = f"{RETRIES_MAX} are on their way already; try again when they have arrived"

_VERSION: Final = 2
# version, cursor, when it was refused, tries, sizes of rule and reason; version 1 has neither time
# nor tries
_HEAD: Final = struct.Struct(">BQQQIHI")
_HEAD_1: Final = struct.Struct(">BQQHI")


class DeadLetter:
    """A row that a store has refused for good."""

    __slots__ = ("at", "at_ms", "row", "rule", "tries", "why")

    def __init__(
        self, at: Cursor, rule: str, why: str, row: bytes, at_ms: int = 0, tries: int = 1
    ) -> None:
        self.at: Final = at
        self.rule: Final = rule
        self.why: Final = why  # of the last try
        self.row: Final = row  # as in the frame to the process; b"" = it is not known
        self.at_ms: Final = at_ms  # of the first refusal, broker ms; 0 = not known
        self.tries: Final = tries

    def without_row(self) -> "DeadLetter":
        """Return the same letter, whose row is not known."""
        return DeadLetter(self.at, self.rule, self.why, b"", self.at_ms, self.tries)


class DeadLetters:
    """The dead letters of all backends."""

    def __init__(self, tick: Tick, store: Store, damage: Damage, recorder: FeedRecorder) -> None:
        self._tick: Final = tick
        self._store: Final = store
        self._damage: Final = damage
        self._recorder: Final = recorder
        # Deleted in a batch that is not written: they are still in the store.
        self._gone: Final[set[tuple[str, int]]] = set()
        self._bytes: Final[dict[str, int]] = {}  # of the letters of a backend that can be read

    def open(self, name: str, record: BackendRecord) -> None:
        """Find out how many bytes the letters of a backend have; they are 64 MiB or little more."""
        self._bytes[name] = 0
        prefix = client_prefix(name)
        start: bytes = prefix
        while record.dead_letters:
            found = scan_readable(
                self._store, DEAD_LETTERS, start, prefix_end(prefix), [], count=SCAN_LETTERS
            )
            self._bytes[name] += sum(len(value) for _, value in found)
            if len(found) < SCAN_LETTERS:
                return
            start = found[-1][0] + b"\0"

    def written(self) -> None:
        """Note that the batch is written: the store has what was changed."""
        self._gone.clear()

    def add(self, name: str, record: BackendRecord, letter: DeadLetter) -> None:
        """Keep a letter, without its row if the letters have too many bytes; the record changes."""
        record.last_dead_letter += 1
        record.dead_letters += 1
        kept = DeadLetter(
            letter.at, letter.rule, letter.why, letter.row, self._tick.now, letter.tries
        )
        value = encode_dead_letter(kept)
        if self._bytes[name] + len(value) > TOTAL_BYTES_MAX:
            value = encode_dead_letter(kept.without_row())
        self._put(name, record.last_dead_letter, value)

    def page(self, name: str, after: int, count: int) -> list[tuple[int, DeadLetter]]:
        """Return the next letters behind the number `after`; what cannot be read is left out."""
        prefix = client_prefix(name)
        damages: list[DamagedRows] = []
        start = dead_letter_key(name, after + 1)
        rows = scan_readable(
            self._store, DEAD_LETTERS, start, prefix_end(prefix), damages, count=count
        )
        self._damage.note_all("feed", damages)
        found: list[tuple[int, DeadLetter]] = []
        for key, value in rows:
            try:
                letter = decode_dead_letter(value)
            except CorruptRecord as problem:
                self._damage.note("feed", problem)
                continue
            number = int.from_bytes(key[len(prefix) :], "big")
            if (name, number) not in self._gone:
                found.append((number, letter))
        return found

    def retry(self, name: str, record: BackendRecord, number: int) -> str:
        """Send a letter again with the next batch; return why that cannot be, "" = it is done."""
        if self.is_under_way(name, record, number):
            return "it is on its way already"
        if len(record.retries) + len(self._recorder.again) >= RETRIES_MAX:
            return FULL
        letter = self._get(name, number)
        if letter is None:
            return "there is no such dead letter"
        if not letter.row:
            return "its row was not kept"
        self._recorder.retry(name, number, letter.rule, letter.row)
        return ""

    def drop(self, name: str, record: BackendRecord, number: int) -> str:
        """Delete a letter with the next batch; return why that cannot be, "" = it is done."""
        if self.is_under_way(name, record, number):
            return "it is on its way to the store"
        size = self._size_of(name, number)
        if size is None or (name, number) in self._gone:
            return "there is no such dead letter"
        self._delete(name, record, number, size)
        return ""

    def is_under_way(self, name: str, record: BackendRecord, number: int) -> bool:
        """Is a letter sent again, and not confirmed yet?"""
        if number in record.retries.values():
            return True
        return any(
            event.username == name and event.offset == number for event in self._recorder.again
        )

    def not_read(
        self, record: BackendRecord, after: int, stop: int, events: Iterable[FeedEvent]
    ) -> bool:
        """Keep letters whose events between two numbers cannot be read: they are on no way now.

        `events` are those that can be. Returns whether there are such letters.
        """
        found = {event.seq for event in events}
        lost = [seq for seq in record.retries if after < seq < stop and seq not in found]
        for seq in lost:
            del record.retries[seq]
        return bool(lost)

    def settle(
        self, name: str, record: BackendRecord, cursor: Cursor, dead: Sequence[DeadLetter]
    ) -> list[DeadLetter]:
        """Decide on letters that the store has got again; return the refusals of other rows."""
        retries = record.retries
        refused = {letter.at[1]: letter for letter in dead if letter.at[1] in retries}
        for seq in [each for each in retries if each <= cursor[1] or each in refused]:
            number = retries.pop(seq)
            again = refused.get(seq)
            if again is None:
                self._delete(name, record, number, self._size_of(name, number) or 0)
                continue
            kept = self._get(name, number) or again
            self._bytes[name] -= self._size_of(name, number) or 0
            letter = DeadLetter(kept.at, kept.rule, again.why, kept.row, kept.at_ms, kept.tries + 1)
            self._put(name, number, encode_dead_letter(letter))
        return [letter for letter in dead if letter.at[1] not in refused]

    def _put(self, name: str, number: int, value: bytes) -> None:
        self._bytes[name] += len(value)
        self._tick.batch.append((DEAD_LETTERS, dead_letter_key(name, number), value))

    def _delete(self, name: str, record: BackendRecord, number: int, size: int) -> None:
        record.dead_letters = max(0, record.dead_letters - 1)
        self._bytes[name] -= size
        self._gone.add((name, number))
        self._tick.batch.append((DEAD_LETTERS, dead_letter_key(name, number), None))

    def _size_of(self, name: str, number: int) -> int | None:
        """Return the bytes of a letter in the store, 0 = it cannot be read, None = it is not there.

        One that cannot be read can go all the same.
        """
        try:
            value = self._store.get(DEAD_LETTERS, dead_letter_key(name, number))
        except DamagedRows:
            return 0
        return None if value is None else len(value)

    def _get(self, name: str, number: int) -> DeadLetter | None:
        if (name, number) in self._gone:
            return None
        try:
            value = self._store.get(DEAD_LETTERS, dead_letter_key(name, number))
            return None if value is None else decode_dead_letter(value)
        except DamagedRows as problem:
            self._damage.note("feed", problem)
            return None


def dead_letter_key(name: str, number: int) -> bytes:
    """Return the key of a dead letter of a backend."""
    return client_prefix(name) + number.to_bytes(8, "big")


def encode_dead_letter(letter: DeadLetter) -> bytes:
    """Return the value of its row."""
    rule = letter.rule.encode()
    why = letter.why.encode()
    head = _HEAD.pack(_VERSION, *letter.at, letter.at_ms, letter.tries, len(rule), len(why))
    return seal(b"".join((head, rule, why, letter.row)))


def decode_dead_letter(value: bytes) -> DeadLetter:
    """Return the dead letter of a row. Raises `CorruptRecord`."""
    body = unseal(value, "dead letter")
    at_ms, tries = 0, 1
    if body[:1] == b"\x01" and len(body) >= _HEAD_1.size:
        at = _HEAD_1.size
        _, position, seq, rule_size, why_size = _HEAD_1.unpack_from(body)
    elif body[:1] == b"\x02" and len(body) >= _HEAD.size:
        at = _HEAD.size
        _, position, seq, at_ms, tries, rule_size, why_size = _HEAD.unpack_from(body)
    else:
        raise CorruptRecord(f"dead letter: version {body[:1].hex()} of {len(body)} bytes")
    rule_end = at + rule_size
    why_end = rule_end + why_size
    if why_end > len(body):
        raise CorruptRecord(f"dead letter: {len(body)} bytes, expected at least {why_end}")
    try:
        rule = body[at:rule_end].decode()
        why = body[rule_end:why_end].decode()
    except UnicodeDecodeError as error:
        raise CorruptRecord(f"dead letter: {error}") from None
    return DeadLetter((position, seq), rule, why, body[why_end:], at_ms, tries)

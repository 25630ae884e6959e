"""Retained messages: one per topic in the store, and those of `$SYS` in memory.

Keys keep all topics below a level together (`storage.tables.tables.retained_key`), so a search with
wildcards skips what cannot match. A search is done in slices: a subscription to `#` on a full store
does not stall the loop. Read next: `session.delivery.retained_replay`, which sends what is found.
"""

from typing import Final

from mqtt.message import Message
from mqtt.topics import matches
from session.history.history import History
from session.live.core import Core, Database
from storage.errors import DamagedRows
from storage.tables.message_record import decode_message, encode_message
from storage.tables.tables import RETAINED, retained_key, retained_topic, scan_readable
from storage.tables.timers import RETAINED as DUE_RETAINED

# Rows one slice of a search may read; about 200 microseconds.
EXAMINE_MAX: Final = 512
# Rows of a page: few after a skip, because the next may be near, more while all of them match.
PAGE_FIRST: Final = 4
PAGE_MAX: Final = 64
# Bytes that one slice may find, exceeded by one row at most: 64 rows may be 1 GiB.
FOUND_BYTES_MAX: Final = 1 << 20
SYSTEM_PREFIX: Final = "$SYS/"


class Retained:
    """The retained messages of one broker."""

    def __init__(self, core: Core, database: Database, history: History) -> None:
        self._tick: Final = core.tick
        self._store: Final = database.store
        self._due: Final = database.due
        self._totals: Final = database.totals
        self._settings: Final = core.settings
        self._damage: Final = core.damage
        self._session_events: Final = history.sessions
        self._system: dict[str, Message] = {}
        # What keys are set to in the unwritten batch, None = cleared.
        self._unwritten: dict[bytes, Message | None] = {}

    def exists(self, key: bytes) -> bool:
        """Return whether there is a retained message under `key`, with the unwritten batch.

        A damaged one counts: its row is there to be replaced or deleted.
        """
        if key in self._unwritten:
            return self._unwritten[key] is not None
        try:
            return self._store.get(RETAINED, key) is not None
        except DamagedRows as problem:
            self._damage.note("retained", problem, "", retained_topic(key))
            return True

    def is_full_for(self, topic: str) -> bool:
        """Return whether a retained message on this topic would exceed the limit."""
        limit = self._settings.retained_messages_max
        if not limit or self._totals.retained < limit:
            return False
        return not self.exists(retained_key(topic))

    def keep(self, message: Message) -> bool:
        """Set or clear the retained message of a topic in this batch [MQTT-3.3.1-5].

        An empty payload clears [MQTT-3.3.1-6]. Returns False if there was nothing to clear. The
        caller reports to the history: the message may not have its id there yet.
        """
        key = retained_key(message.topic)
        existed = self.exists(key)
        tick = self._tick
        if not message.payload:
            if not existed:
                return False
            tick.batch.append((RETAINED, key, None))
            self._totals.retained -= 1
            self._unwritten[key] = None
        else:
            tick.batch.append((RETAINED, key, encode_message(message)))
            self._unwritten[key] = message
            if not existed:
                self._totals.retained += 1
            if message.expires_at_ms:
                self._due.add(tick.batch, message.expires_at_ms, DUE_RETAINED, key)
        if bool(message.payload) is not existed:
            tick.totals_changed = True
        return True

    def newest(self, topic: str) -> Message | None:
        """Return the retained message of a topic, with the unwritten batch; None if it expired."""
        key = retained_key(topic)
        if key in self._unwritten:
            message = self._unwritten[key]
        else:
            value = self._load(key)
            message = None if value is None else self._decode(key, value)
        if message is None or 0 < message.expires_at_ms <= self._tick.now:
            return None
        return message

    def written(self) -> None:
        """Forget the changes of the batch, which is written now."""
        self._unwritten.clear()

    def expire(self, key: bytes, now: int) -> bool:
        """Remove the message under `key` if it is expired; return whether it was."""
        if key in self._unwritten:
            return False
        value = self._load(key)
        message = None if value is None else self._decode(key, value)
        if message is None:
            return False
        if not message.expires_at_ms or message.expires_at_ms > now:
            return False
        self._tick.batch.append((RETAINED, key, None))
        self._unwritten[key] = None
        self._totals.retained -= 1
        self._tick.totals_changed = True
        self._session_events.retained_expired(message.topic)
        return True

    def set_system(self, message: Message) -> None:
        """Keep a `$SYS` message in memory; these are never stored."""
        self._system[message.topic] = message

    def system(self, topic_filter: str) -> list[Message]:
        """Return the `$SYS` messages that match a topic filter."""
        if not topic_filter.startswith("$"):
            return []
        return [m for topic, m in self._system.items() if matches(topic_filter, topic)]

    def may_match(self, topic_filter: str) -> bool:
        """Return whether a stored message may match this filter, with the unwritten batch."""
        if not self._totals.retained:
            return False
        if "+" in topic_filter or "#" in topic_filter:
            return True
        return self.exists(retained_key(topic_filter))

    def read(self, topic_filter: str, start: bytes, count: int) -> tuple[list[Message], bytes, int]:
        """Return at most `count` matching messages from key `start`, the next start, and rows read.

        An empty next start means that there are no more. Does not see the unwritten batch.
        """
        if "+" not in topic_filter and "#" not in topic_filter:
            key = retained_key(topic_filter)
            value = self._load(key)
            message = None if value is None else self._decode(key, value)
            return ([] if message is None else [message]), b"", 1
        pattern = [level.encode() for level in topic_filter.split("/")]
        start = start or _first_key(pattern)
        found: list[Message] = []
        examined = 0
        size = 0
        page = PAGE_FIRST
        while examined < EXAMINE_MAX:
            damages: list[DamagedRows] = []
            rows = scan_readable(self._store, RETAINED, start, None, damages, count=page)
            if damages:
                self._damage.note_all("retained", damages)
            if not rows:
                return found, b"", examined
            examined += len(rows)
            is_large = sum(len(value) for _, value in rows) > FOUND_BYTES_MAX // 4
            page = PAGE_FIRST if is_large else min(4 * page, PAGE_MAX)
            following: bytes | None = None
            for key, value in rows:
                following = _seek(pattern, key)
                if following is None:
                    return found, b"", examined
                if following == b"":  # a match
                    message = self._decode(key, value)
                    if message is not None:
                        found.append(message)
                        size += len(value)
                    if len(found) >= count or size > FOUND_BYTES_MAX:
                        return found, key + b"\0", examined
                    following = key + b"\0"
                if following > key + b"\0":
                    page = PAGE_FIRST
                    break
            assert following is not None
            start = following
        return found, start, examined

    def _load(self, key: bytes) -> bytes | None:
        """Return the row under `key` in the store, None if there is none that can be read."""
        try:
            return self._store.get(RETAINED, key)
        except DamagedRows as problem:
            self._damage.note("retained", problem, "", retained_topic(key))
            return None

    def _decode(self, key: bytes, value: bytes) -> Message | None:
        """Return the message of a row, None if it is damaged."""
        try:
            return decode_message(value, 0)
        except DamagedRows as problem:
            self._damage.note("retained", problem, "", retained_topic(key))
            return None


def _first_key(pattern: list[bytes]) -> bytes:
    """Return the smallest key that a topic matching the pattern can have."""
    literal: list[bytes] = []
    for level in pattern:
        if level in (b"+", b"#"):
            break
        literal.append(level)
    return b"\0".join(literal)


def _seek(pattern: list[bytes], key: bytes) -> bytes | None:
    """Compare a topic's key with a filter's levels.

    Returns b"" if it matches, otherwise the smallest later key that could, or None if none can.
    """
    levels = key.split(b"\0")
    for depth, wanted in enumerate(pattern):
        if wanted == b"#":
            if depth == 0 and key.startswith(b"$"):
                return b"%"  # 0x25 follows '$' [MQTT-4.7.2-1]
            return b""
        if depth == len(levels):
            return key + b"\0"  # too short: its children are next
        level = levels[depth]
        if wanted == b"+":
            if depth == 0 and key.startswith(b"$"):
                return b"%"
            continue
        if level == wanted:
            continue
        if level < wanted:
            return b"\0".join([*levels[:depth], wanted])
        return _after_plus(pattern, levels, depth)
    if len(levels) == len(pattern):
        return b""
    # Too deep: skip everything below the last level of the filter.
    if pattern[-1] == b"+":
        return b"\0".join(levels[: len(pattern)]) + b"\x01"
    return _after_plus(pattern, levels, len(pattern))


def _after_plus(pattern: list[bytes], levels: list[bytes], depth: int) -> bytes | None:
    """Return the first key with the next value of the last '+' level above `depth`, or None."""
    for plus in range(depth - 1, -1, -1):
        if pattern[plus] == b"+":
            return b"\0".join(levels[: plus + 1]) + b"\x01"
    return None

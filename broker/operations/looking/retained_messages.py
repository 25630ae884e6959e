"""The retained messages of a store, by their topics.

Those of `$SYS` are in the memory of the broker alone. A message that has expired is left out, as
the broker does, and counted. Must never write. Read next:
`broker.operations.looking.retained_report`.
"""

from collections.abc import Iterator
from typing import Final

from broker.operations.looking.rows import Problems, readable_rows
from mqtt.message import Message
from mqtt.topics import matches
from storage.api import Store
from storage.errors import DamagedRows
from storage.tables.message_record import decode_message
from storage.tables.tables import RETAINED, prefix_end, retained_key, retained_topic


class RetainedMessages:
    """The retained messages of one store at the broker time `now_ms`."""

    def __init__(self, store: Store, now_ms: int, problems: Problems) -> None:
        self._store: Final = store
        self._now_ms: Final = now_ms
        self._problems: Final = problems
        self.expired_count: int = 0  # left out by `matching`: the broker sends them to nobody

    def matching(self, topic_filter: str | None, *, after: str | None = None) -> Iterator[Message]:
        """Yield the messages whose topics match a valid filter that is not shared; None is all.

        They come in the order of the store: a topic, then all below it; `after` is the topic behind
        which to begin. Damaged rows are noted and passed over. Raises `StorageError`.
        """
        start, stop = (b"", None) if topic_filter is None else _range(topic_filter)
        if after is not None:
            start = max(start, retained_key(after) + b"\0")
        for key, value in readable_rows(self._store, RETAINED, start, stop, self._problems):
            try:
                topic = retained_topic(key)
            except ValueError as problem:
                self._problems.note(f"retained message {key!r}", problem)
                continue
            if topic_filter is not None and not matches(topic_filter, topic):
                continue
            message = self._decode(topic, value)
            if message is None:
                continue
            if self.is_expired(message):
                self.expired_count += 1
            else:
                yield message

    def find(self, topic: str) -> Message | None:
        """Return the stored message of a topic, expired or not; None if there is none.

        One that cannot be read is noted, and None as well. Raises `StorageError`.
        """
        if RETAINED not in self._store.families():
            return None
        try:
            value = self._store.get(RETAINED, retained_key(topic))
        except DamagedRows as problem:
            self._problems.note(f"retained message of {topic!r}", problem)
            return None
        return None if value is None else self._decode(topic, value)

    def is_expired(self, message: Message) -> bool:
        """Return whether the broker sends the message to nobody any more."""
        return 0 < message.expires_at_ms <= self._now_ms

    def _decode(self, topic: str, value: bytes) -> Message | None:
        try:
            return decode_message(value, 0)
        except (DamagedRows, ValueError) as problem:
            # A record knows itself by its offset, which a retained one does not have.
            why = str(problem).removeprefix("message 0: ")
            self._problems.note(f"retained message of {topic!r}", why)
            return None


def _range(topic_filter: str) -> tuple[bytes, bytes | None]:
    """Return the keys between which all topics lie that match: those of its first levels."""
    literal = []
    for level in topic_filter.split("/"):
        if level in ("+", "#"):
            break
        literal.append(level)
    else:
        key = retained_key(topic_filter)
        return key, key + b"\0"
    prefix = retained_key("/".join(literal))
    return prefix, prefix_end(prefix) if prefix else None

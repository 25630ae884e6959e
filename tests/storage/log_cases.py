"""What the tests of the message log share: messages, both stores, and golden files."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mqtt.message import NEVER, Message
from mqtt.topics import matches
from storage.api import Batch, Store
from storage.local.memory import MemoryStore
from storage.local.rocks import RocksStore
from storage.log.generations import LAYOUTS
from storage.log.layouts.api import Reader, Slab, Stream
from storage.log.message_log import MessageLog
from storage.tables.tables import META

LAYOUT_NAMES = ("blocks", "filters", "timeline")
BACKENDS = ("memory", "rocks")
GOLDEN = Path(__file__).parent / "golden"

A = Stream(1, "a", 0)
B = Stream(2, "b", 0)
ANY = Stream(3, "#", 0)
IDS = {"a": [1], "b": [2]}  # the filters that `accept` says match a topic


def message(topic: str, payload: bytes = b"x", *, accepted_at_ms: int = 1000) -> Message:
    """Return a message that is not stored yet."""
    return Message(topic, payload, 1, False, b"", "publisher", accepted_at_ms, NEVER)


def stored(value: Message, offset: int) -> Message:
    """Return `value` with its place in the log."""
    value.offset = offset
    return value


def fields(value: Message) -> tuple[object, ...]:
    """Return everything a message consists of, for comparing."""
    return (
        value.topic,
        value.payload,
        value.qos,
        value.retain,
        value.properties,
        value.publisher,
        value.accepted_at_ms,
        value.expires_at_ms,
        value.offset,
        value.username,
    )


@contextmanager
def opened(backend: str, directory: Path) -> Iterator[Store]:
    """Open an empty store of the kind `backend` for the time of a test."""
    store = open_store(backend, directory)
    try:
        yield store
    finally:
        store.close()


def open_store(backend: str, directory: Path) -> Store:
    """Open the store in `directory`, or a new one in memory."""
    if backend == "memory":
        return MemoryStore([META])
    return RocksStore(directory / "db", families=[META])


def golden(name: str) -> dict[str, bytes]:
    """Return the cases of a golden file: lines of `case: hex`, `#` starts a comment line."""
    cases: dict[str, bytes] = {}
    for line in (GOLDEN / name).read_text().splitlines():
        if line and not line.startswith("#"):
            case, _, text = line.partition(":")
            cases[case.strip()] = bytes.fromhex(text)
    return cases


def start(store: Store, layout: str = "blocks", now_ms: int = 0) -> MessageLog:
    log = MessageLog(store, layout=layout)
    log.open(now_ms)
    return log


def accept(store: Store, log: MessageLog, topics: str, *, at_ms: int = 1000) -> None:
    """Append one message per letter of `topics` and write them as one batch."""
    batch: Batch = []
    for topic in topics:
        log.append(batch, message(topic, accepted_at_ms=at_ms), IDS.get(topic, []))
    write(store, log, batch)


def write(store: Store, log: MessageLog, batch: Batch) -> None:
    """Write `batch` with all that was appended, as the end of a tick does."""
    log.seal(batch)
    store.write(batch)


def rotate(store: Store, log: MessageLog, now_ms: int = 0, layout: str | None = None) -> int:
    batch: Batch = []
    number = log.add_generation(batch, now_ms, layout)
    store.write(batch)
    return number


def drop(store: Store, log: MessageLog, number: int) -> None:
    batch: Batch = []
    log.drop_generation(batch, number)
    store.write(batch)
    store.sync()


def read(log: MessageLog, streams: list[Stream], position: int = 0) -> list[int]:
    cursor = log.cursor(streams, position)
    offsets: list[int] = []
    while found := cursor.next(3):
        offsets += [m.offset for m in found]
    assert cursor.next(3) == []
    return offsets


def sound(log: MessageLog) -> None:
    assert list(log.invariants()) == []


def new_slab(store: Store, layout: str) -> Slab:
    made = LAYOUTS[layout](store, 1)
    for family in made.families:
        store.create_family(family)
    return made


def fill(
    store: Store, slab: Slab, topics: list[str], streams: list[Stream], payload: bytes = b"x"
) -> None:
    """Store one message per topic, offsets from 1, indexed for the streams that match."""
    batch: Batch = []
    for offset, topic in enumerate(topics, 1):
        ids = [s.filter_id for s in streams if matches(s.topic_filter, topic)]
        slab.append(batch, stored(message(topic, payload), offset), ids)
    slab.seal(batch)
    store.write(batch)


def drain(reader: Reader, upto: int, count: int = 3) -> list[int]:
    """Read to the end; every call but the last must make progress."""
    offsets: list[int] = []
    while True:
        found = [m.offset for m in reader.next(count, upto, 0)]
        assert len(found) <= count
        if not found:
            assert reader.position >= upto
            return offsets
        assert reader.position >= found[-1]
        offsets += found

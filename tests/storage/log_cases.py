"""What the tests of the message log share: messages, both stores, and golden files."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from mqtt.message import NEVER, Message
from storage.api import Store
from storage.memory import MemoryStore
from storage.rocks import RocksStore
from storage.state import META

LAYOUTS = ("filters", "timeline")
BACKENDS = ("memory", "rocks")
GOLDEN = Path(__file__).parent / "golden"

OpenStore = Callable[[], Store]


def message(topic: str, payload: bytes = b"x", *, accepted_at_ms: int = 1000) -> Message:
    """Return a message that is not stored yet."""
    return Message(topic, payload, 1, False, b"", "publisher", accepted_at_ms, NEVER)


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

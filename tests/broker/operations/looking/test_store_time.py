"""Broker time is told as wall time by the last heartbeat."""

from broker.operations.looking.store_time import StoreTime
from storage.local.memory import MemoryStore
from storage.tables.tables import META
from storage.time.broker_clock import HEARTBEAT_KEY, Heartbeat

WALL_MS = 1_700_000_000_000  # 2023-11-14T22:13:20Z


def store_with_heartbeat() -> MemoryStore:
    store = MemoryStore([META])
    store.write([(META, HEARTBEAT_KEY, Heartbeat(10_000, WALL_MS, "boot", 5).encode())])
    return store


def test_a_broker_time_is_shown_as_the_wall_clock_had_it() -> None:
    time = StoreTime(store_with_heartbeat(), WALL_MS, "boot", 5)
    assert time.text(10_000) == "2023-11-14T22:13:20Z"
    assert time.text(4_000) == "2023-11-14T22:13:14Z"
    assert time.text(0) is None


def test_now_is_what_the_broker_would_take_for_it() -> None:
    store = store_with_heartbeat()
    assert StoreTime(store, WALL_MS - 77_000, "boot", 3_005).now_ms == 13_000
    assert StoreTime(store, WALL_MS + 60_000, "other boot", 1).now_ms == 70_000


def test_a_store_without_heartbeat_has_the_wall_clocks_time() -> None:
    for store in (MemoryStore(), MemoryStore([META])):
        time = StoreTime(store, WALL_MS, "boot", 5)
        assert time.now_ms == WALL_MS
        assert time.text(WALL_MS) == "2023-11-14T22:13:20Z"


def test_a_time_that_no_calendar_has_is_a_number() -> None:
    assert StoreTime(MemoryStore(), WALL_MS, "boot", 5).text(1 << 62) == f"{1 << 62} ms"

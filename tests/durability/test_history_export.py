"""The history is exported exactly once: whatever kills the broker, every event is in one segment.

The real processes are killed at each step of an export, and the directory of segments is held
against what the database held at that moment.
"""

import random
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from broker.history.exporter import TRIM_ROWS
from storage.history import segments
from storage.history.packed_rows import peek, split_history_key
from storage.history.segment_names import segment_names
from storage.local import failpoint
from storage.local.rocks import RocksStore
from storage.tables.tables import HISTORY, scan_all, unseal
from tests.durability.process import POLL_SECONDS, READY_SECONDS, BrokerProcess, holdfast
from tests.durability.rawclient import RawClient

IN_THE_BROKER = (failpoint.HISTORY_BEFORE_TRIM, failpoint.HISTORY_AMID_TRIM)
KILLS = 12
Events = dict[int, set[int]]  # by boot


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    """A broker that records everything and exports it every second."""
    process = holdfast(
        tmp_path,
        env={
            "HOLDFAST__HISTORY__DETAIL": "full",
            "HOLDFAST__HISTORY__SEAL_SECONDS": "1",
            "HOLDFAST__HISTORY__DRAIN_TIMEOUT": "30s",
        },
    )
    yield process
    process.close()


def in_the_database(broker: BrokerProcess) -> Events:
    """Return the events whose rows the database of a dead broker has."""
    store = RocksStore(broker.data_dir / "db", read_only=True)
    try:
        found: Events = {}
        for key, value in scan_all(store, HISTORY, b"", None):
            boot, first_seq = split_history_key(key)
            _, _, events = peek(unseal(value, "row"))
            found.setdefault(boot, set()).update(range(first_seq, first_seq + events))
        return found
    finally:
        store.close()


def in_segments(broker: BrokerProcess) -> Events:
    """Return the exported events; the segments hold what they promise, and nothing twice."""
    directory = broker.data_dir / "history"
    assert segments.verify(directory, thorough=True) == []
    found: Events = {}
    for segment in segment_names(directory):
        events = set(range(segment.first_seq, segment.last_seq + 1))
        assert not events & found.setdefault(segment.boot, set())
        found[segment.boot] |= events
    return found


def both(first: Events, second: Events) -> Events:
    return {boot: first.get(boot, set()) | second.get(boot, set()) for boot in {*first, *second}}


def wait_for(what: Callable[[], bool], broker: BrokerProcess) -> None:
    deadline = time.monotonic() + READY_SECONDS
    while not what():
        assert time.monotonic() < deadline, broker.tail()
        time.sleep(POLL_SECONDS)


def publish(broker: BrokerProcess, count: int, *, is_doomed: bool = False) -> None:
    """Have messages stored and delivered, until the broker dies over it or is killed."""
    subscriber, publisher = RawClient(broker.port, "s"), RawClient(broker.port, "p")
    try:
        subscriber.connect(clean_start=False, expiry=3600)
        subscriber.subscribe("t")
        publisher.connect()
        for number in range(count):
            publisher.publish("t", b"%d" % number, qos=1)
    except (AssertionError, OSError):
        if not is_doomed and "history_export_failed" not in broker.log():
            broker.wait_exit(READY_SECONDS)  # a dying process closes its sockets before it ends
    finally:
        subscriber.drop()
        publisher.drop()


@pytest.mark.parametrize(
    ("place", "count"),
    [
        *((place, 1) for place in failpoint.HISTORY),
        (failpoint.HISTORY_BEFORE_RENAME, 2),  # an export after a good one
        (failpoint.HISTORY_AMID_TRIM, 2),  # a part of the rows is deleted
    ],
)
def test_a_crash_in_an_export_neither_loses_nor_repeats_an_event(
    broker: BrokerProcess, place: str, count: int
) -> None:
    broker.env["HOLDFAST_FAILPOINT"] = f"{place}:{count}"
    broker.start()
    is_amid = place == failpoint.HISTORY_AMID_TRIM
    messages = TRIM_ROWS + 20 if is_amid else 20  # each is a row at least
    publish(broker, messages)
    if count == 2 and not is_amid:
        wait_for(lambda: any(segment_names(broker.data_dir / "history")), broker)
        publish(broker, 1)
    if place in IN_THE_BROKER:
        assert broker.wait_exit(READY_SECONDS) == -9
    else:
        wait_for(lambda: "history_export_failed" in broker.log(), broker)
        assert "signal 9" in broker.log()
        broker.kill()
    del broker.env["HOLDFAST_FAILPOINT"]
    known = both(in_the_database(broker), in_segments(broker))
    assert len(known[1]) > messages
    assert known[1] == set(range(1, len(known[1]) + 1))

    broker.start()
    assert broker.stop() == 0
    assert in_the_database(broker) == {}
    exported = in_segments(broker)
    assert exported[1] == known[1]
    assert set(exported) <= {1, 2}


@pytest.mark.slow
def test_kills_at_any_moment_neither_lose_nor_repeat_an_event(broker: BrokerProcess) -> None:
    moments = random.Random(5)
    known: Events = {}
    for _ in range(KILLS):
        broker.start()
        load = threading.Thread(
            target=publish, args=(broker, 1_000_000), kwargs={"is_doomed": True}
        )
        load.start()
        time.sleep(moments.uniform(0.2, 4.0))
        broker.kill()
        load.join()
        known = both(known, both(in_the_database(broker), in_segments(broker)))
    broker.start()
    assert broker.stop() == 0
    exported = in_segments(broker)
    for boot in range(1, KILLS + 1):
        assert exported.get(boot, set()) == known.get(boot, set())
        assert known.get(boot, set()) == set(range(1, len(known.get(boot, set())) + 1))
    assert sum(len(numbers) for numbers in exported.values()) > 1000

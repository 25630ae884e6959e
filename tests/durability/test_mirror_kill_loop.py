"""Kill -9 of the broker in a loop while it mirrors to a real store: the mirror is exact afterwards.

In some cycles the store is killed or hangs, or the process that feeds it is killed. The comparison
is with what clients know, by code that is independent of the broker's; then `holdfast backend
verify` must agree. `HOLDFAST_KILL_CYCLES` is the number of kills, `HOLDFAST_KILL_SEED` sets their
timing.
"""

import contextlib
import json
import os
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.broker.backends.cassandra_server import needs_cassandra
from tests.broker.backends.dynamodb_server import needs_dynamodb
from tests.broker.backends.redis_server import needs_redis
from tests.broker.process.test_server_backends import command, processes_of, status, until
from tests.durability.mirror_books import Books, Expectation, Found
from tests.durability.mirror_load import MirrorLoad
from tests.durability.mirrors import POSITIONED, STORES, Mirror
from tests.durability.process import POLL_SECONDS, BrokerProcess, holdfast
from tests.real_servers import needs

CYCLES: Final = int(os.environ.get("HOLDFAST_KILL_CYCLES", "20"))
SEED: Final = int(os.environ.get("HOLDFAST_KILL_SEED", "1"))
CATCH_UP_S: Final = 120.0
# What else happens in a cycle, of ten. A start of Java takes the time of many kills.
WORSE: Final = ("store dies", "store hangs", "store hangs", "process dies", *[""] * 6)
NEVER: Final = ("backend_gap", "backend_dead_letter", "internal_error", "backend_forgotten")


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    broker = holdfast(tmp_path / "broker")
    yield broker
    broker.close()


def rows_told(broker: BrokerProcess) -> float:
    """Return how many rows the store has confirmed since the broker's start."""
    return broker.metrics().get('holdfast_backend_rows_total{backend="cache"}', 0.0)


def kill_in_a_loop(broker: BrokerProcess, mirror: Mirror, rng: random.Random) -> None:
    """Kill the broker again and again, most often while rows are on their way."""
    worse = [WORSE[number % len(WORSE)] for number in range(CYCLES)]
    rng.shuffle(worse)
    for what in worse:
        reached = rng.randrange(1, mirror.rate)
        until(lambda reached=reached: rows_told(broker) >= reached, broker)  # type: ignore[misc]
        time.sleep(rng.uniform(0.0, 0.3))
        store_first = rng.random() < 0.5
        if what == "process dies":
            for process in processes_of(broker):
                os.kill(process, 9)
        elif what == "store dies":
            mirror.server.kill()
        elif what == "store hangs":
            mirror.server.freeze()
        if what:
            time.sleep(rng.uniform(0.0, 0.3))
        broker.kill()
        if not store_first:
            broker.start()
        if what == "store dies":
            mirror.server.start()
        elif what == "store hangs":
            mirror.server.thaw()
        if store_first:
            broker.start()


def wait_until_equal(broker: BrokerProcess, mirror: Mirror, expectation: Expectation) -> None:
    """Wait until the store has everything; fail with what is different."""
    deadline = time.monotonic() + CATCH_UP_S
    while behind := status(broker)["rows_behind"]:
        assert time.monotonic() < deadline, f"{behind} rows behind\n{broker.tail()}"
    while differences := expectation.differences(mirror.read()):
        assert time.monotonic() < deadline, "\n".join([*differences, broker.tail()])
        time.sleep(POLL_SECONDS)


@pytest.mark.ci
@pytest.mark.parametrize(
    "store",
    [
        pytest.param("redis", marks=needs_redis),
        # Dear, and its commands are those of Redis: scripts/test --all runs it.
        pytest.param("valkey", marks=[needs_redis, needs("Valkey"), pytest.mark.slow]),
        pytest.param("dynamodb", marks=needs_dynamodb),
        pytest.param("cassandra", marks=needs_cassandra),
    ],
)
def test_the_mirror_is_exact_after_many_kills(
    broker: BrokerProcess, tmp_path: Path, store: str
) -> None:
    rng = random.Random(SEED)
    with contextlib.ExitStack() as ended:
        mirror = ended.enter_context(STORES[store](tmp_path / store))
        mirror.feed(broker)
        broker.start()
        load = ended.enter_context(contextlib.closing(MirrorLoad(broker.port, SEED, mirror.rate)))
        load.start()
        kill_in_a_loop(broker, mirror, rng)
        load.finish()
        readers = [reader.name for reader in load.readers]

        def expected(*online: str) -> Expectation:
            return Expectation(
                load.books(),
                readers=readers,
                online=online,
                consumed=mirror.consumed,
                positioned=POSITIONED,
            )

        wait_until_equal(broker, mirror, expected(*readers))
        load.finish_reading()
        wait_until_equal(broker, mirror, expected())
        print(f"{store}: {load.told()}")
        assert broker.starts == CYCLES + 1
        told = status(broker)
        assert (told["gaps"], told["dead_letters"]) == (0, 0)
        log = broker.log_path.read_text()
        assert [event for event in NEVER if f'"{event}"' in log] == []
        # The loop must have meant something.
        books = load.books()
        assert len(books.sent) > CYCLES * mirror.rate
        assert sum(books.sent.values()) > len(books.sent), "nothing was sent again"
        assert books.sent.keys() - books.taken.keys(), "everything was acknowledged"
        code, out, err = command(broker, "verify", "cache", "--json")
        assert (code, err) == (0, ""), (out, err)
        assert json.loads(out)["differences"] == []


def _books() -> Books:
    books = Books()
    for payload, sent, taken in ((b"1", 1, 1), (b"2", 2, 1), (b"3", 1, 0)):
        books.sent["load/p", payload] = sent
        books.taken["load/p", payload] = taken
    books.sent["load/q", b"1"] = books.taken["load/q", b"1"] = 1
    books.begin("s", "own/+", 1)
    books.settle("s", "own/a", 2)
    books.retained = {"kept": {b"1"}, "unsure": {b"", b"2"}}
    books.clients = {"s", "reader"}
    books.last_acked["s", "load/p"] = b"1"
    return books


def _found() -> Found:
    found = Found()
    found.messages = [("i1", "load/p", b"1"), ("i2", "load/p", b"2")]
    found.listed = {"load/p": ["i1", "i2"]}
    found.retained = {"kept": b"1"}
    found.subscriptions = {("s", "own/a"): 2}
    found.states = {"s": 0, "reader": 1}
    found.here = {"reader"}
    found.positions = {("reader", "load/p"): "i2", ("s", "load/p"): "i1"}
    return found


def _differences(found: Found) -> list[str]:
    expectation = Expectation(
        _books(), readers=["reader"], online=["reader"], consumed="load/q", positioned="load/"
    )
    return [line.partition(":")[0] for line in expectation.differences(found)]


def test_what_was_not_acknowledged_may_be_there_or_not() -> None:
    assert _differences(_found()) == []
    other = _found()
    other.messages += [("i3", "load/p", b"2"), ("i4", "load/p", b"3")]
    other.listed = {"load/p": ["i1", "i2", "i3", "i4"]}
    other.positions["reader", "load/p"] = "i4"
    other.retained["unsure"] = b"2"
    other.subscriptions["s", "own/+"] = 1
    assert _differences(other) == []


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda found: found.messages.pop(0), ["messages", "lists of topics", "positions"]),
        (lambda found: found.messages.append(("i3", "load/p", b"1")),
         ["messages", "lists of topics", "positions"]),
        (lambda found: found.messages.append(("i0", "load/x", b"1")),
         ["messages", "lists of topics", "positions"]),
        (lambda found: found.messages.append(("i0", "load/q", b"1")),
         ["messages", "lists of topics", "positions"]),
        (lambda found: found.listed["load/p"].pop(), ["lists of topics"]),
        (lambda found: found.listed["load/p"].append("i1"), ["lists of topics"]),
        (lambda found: found.listed.update({"load/q": ["i9"]}), ["lists of topics"]),
        (lambda found: found.retained.clear(), ["retained"]),
        (lambda found: found.retained.update({"unsure": b"1"}), ["retained"]),
        (lambda found: found.retained.update({"other": b"1"}), ["retained"]),
        (lambda found: found.subscriptions.clear(), ["subscriptions"]),
        (lambda found: found.subscriptions.update({("s", "own/+"): 2}), ["subscriptions"]),
        (lambda found: found.subscriptions.update({("x", "own/+"): 1}), ["subscriptions"]),
        (lambda found: found.states.update({"s": 1}), ["clients"]),
        (lambda found: found.states.pop("s"), ["clients"]),
        (lambda found: found.here.clear(), ["clients"]),
        (lambda found: found.positions.pop(("reader", "load/p")), ["positions"]),
        (lambda found: found.positions.update({("s", "load/p"): "i2"}), ["positions"]),
        (lambda found: found.positions.update({("x", "load/p"): "i2"}), ["positions"]),
    ],
)  # fmt: skip
def test_whatever_differs_is_named(change: Callable[[Found], object], named: list[str]) -> None:
    found = _found()
    change(found)
    assert _differences(found) == named

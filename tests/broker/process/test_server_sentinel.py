"""A real broker, a real Redis with a replica, and sentinels: every row is applied once."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.broker.backends.redis_sentinels import Sentinels
from tests.broker.backends.redis_server import PROGRAMS, needs_redis
from tests.broker.process.test_server_backends import (
    LOG,
    PATIENCE_S,
    command,
    feed,
    is_exact,
    status,
    until,
)
from tests.durability.load import Publisher
from tests.durability.process import BrokerProcess

pytestmark = [pytest.mark.full, needs_redis]  # starts processes

OPTIONS = 'mode = "sentinel"\nsentinel_name = "main"\n'


@pytest.fixture(params=PROGRAMS)
def servers(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Sentinels]:
    """A master with a replica, and those who watch them."""
    running = Sentinels(tmp_path / "watched", request.param)
    try:
        yield running.start()
    finally:
        running.kill()


def test_a_replica_that_lacked_rows_gets_them_when_it_is_the_master(
    prepare: Callable[..., BrokerProcess], servers: Sentinels
) -> None:
    """RPUSH is not idempotent: a row that was lost or sent twice is seen."""
    broker = prepare()
    feed(broker, servers, LOG + '"RPUSH log ${topic}:${payload}"\n', OPTIONS)
    code, out, err = command(broker, "check")
    assert (code, err) == (0, "") and ", master" in out, out
    broker.start()
    publishers = [
        Publisher(broker.port, f"p{number}", qos=2, version=5, rate=1000) for number in range(2)
    ]
    for publisher in publishers:
        publisher.start()
    until(lambda: len(servers.master.list("log")) > 200, broker)
    servers.replica.kill()
    seen = len(servers.master.list("log"))
    until(lambda: len(servers.master.list("log")) > seen + 200, broker)
    until(lambda: status(broker)["rows"] > seen + 200, broker)
    servers.master.kill()
    servers.start_replica()
    assert len(servers.replica.list("log")) <= seen
    servers.wait_for_failover()
    until(lambda: len(servers.replica.list("log")) > seen + 400, broker)
    assert "backend_rewound" in broker.log()
    broker.crash()
    servers.master.start()  # sentinels make a replica of it
    seen = len(servers.replica.list("log"))
    until(lambda: len(servers.replica.list("log")) > seen + 200, broker)
    for publisher in publishers:
        publisher.finish()
    for publisher in publishers:
        publisher.join(PATIENCE_S)
        assert publisher.violations == []
        assert not publisher.is_alive()
    until(lambda: is_exact(servers.replica, publishers), broker)
    (told,) = json.loads(command(broker, "check", "--json")[1])
    assert (told["usable"], told["role"], told["problems"]) == (True, "master", [])
    told = status(broker)
    assert (told["gaps"], told["dead_letters"]) == (0, 0)


def test_what_sentinels_do_not_know_is_said(
    prepare: Callable[..., BrokerProcess], servers: Sentinels
) -> None:
    broker = prepare()
    feed(broker, servers, LOG + '"RPUSH log ${payload}"\n', OPTIONS.replace("main", "other"))
    code, out, _ = command(broker, "check")
    assert code == 1 and "it knows no master 'other'" in out
    broker.start()
    until(lambda: "knows no master" in status(broker)["why"], broker)

"""A real broker and a Redis that speaks TLS only; Valkey from the wheel is built without it."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.broker.backends.redis_server import RedisServer, needs_redis
from tests.broker.network.certificates import Authority
from tests.broker.process.test_server_backends import LOG, command, feed, status, until
from tests.durability.process import BrokerProcess
from tests.durability.rawclient import RawClient
from tests.real_servers import REDIS

pytestmark = [pytest.mark.full, needs_redis]  # starts processes


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    """Who has signed what server and broker show."""
    return Authority(tmp_path / "authority")


@pytest.fixture
def server(tmp_path: Path, authority: Authority) -> Iterator[RedisServer]:
    """A running Redis that asks for certificates."""
    running = RedisServer(tmp_path / "redis", REDIS).secure(authority, asks_clients=True).start()
    yield running
    running.kill()


def test_rows_go_by_tls_and_what_is_wrong_with_it_is_said(
    prepare: Callable[..., BrokerProcess],
    server: RedisServer,
    authority: Authority,
    tmp_path: Path,
) -> None:
    broker = prepare()
    certificate, key = authority.issue("holdfast")
    other = Authority(tmp_path / "other", "other")
    rules = LOG + '"RPUSH log ${payload}"\n'
    shown = f'tls_certificate = "{certificate}"\ntls_key = "{key}"\n'

    def options(ca: Path) -> str:
        return f'tls = true\ntls_ca = "{ca}"\n'

    feed(broker, server, rules, options(other.file) + shown)
    code, out, _ = command(broker, "check")
    assert code == 1 and "certificate verify failed" in out
    broker.start()
    until(lambda: "certificate verify failed" in status(broker)["why"], broker)
    client = RawClient(broker.port, "c")
    client.connect()
    client.publish("load/1", b"waits", qos=1)
    client.drop()
    broker.stop()
    feed(broker, server, rules, options(authority.file))
    broker.start()
    until(lambda: "it may ask for a tls_certificate" in status(broker)["why"], broker)
    assert "it may ask for a tls_certificate" in command(broker, "check")[1]
    broker.stop()
    feed(broker, server, rules, options(authority.file) + shown)
    code, out, err = command(broker, "check")
    assert (code, err) == (0, ""), out
    broker.start()
    until(lambda: server.list("log") == [b"waits"], broker)

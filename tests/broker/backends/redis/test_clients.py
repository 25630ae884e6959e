"""Does a client find the server that is meant, and no other, by TLS, passwords and sentinels?"""

import queue
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509

from broker.backends import process
from broker.backends.redis import clients
from broker.backends.sink import Fence, Unavailable
from tests.broker.backends.redis_cluster import ClusterServers
from tests.broker.backends.redis_sentinels import Sentinels
from tests.broker.backends.redis_server import PROGRAMS, RedisServer, needs_redis
from tests.broker.backends.told_rows import INSTANCE, batch, message, options, rule
from tests.broker.network.certificates import Authority
from tests.real_servers import REDIS

redis_sink = pytest.importorskip("broker.backends.redis.sink")
pytestmark = [pytest.mark.full, needs_redis]  # starts processes

LOG = rule("message.publish", "#", commands=["RPUSH log ${payload}"])
PATIENCE_S = 60.0
CHANGE = '{"type": "subscribe", "clientid": "c", "topic": "a/%d", "qos": 1}'


@pytest.fixture
def running() -> Iterator[list[Any]]:
    """What is to be killed or closed at the end."""
    found: list[Any] = []
    yield found
    for each in reversed(found):
        each.close() if hasattr(each, "close") else each.kill()


@pytest.fixture
def opened(running: list[Any]) -> Callable[..., Any]:
    """Return a function that returns a sink which is connected."""

    def open_one(servers: list[str], **values: Any) -> Any:
        sink = redis_sink.RedisSink(options(LOG, servers=servers, timeout_ms=5000, **values))
        running.append(sink)
        if sink.open() is None:
            sink.start(Fence(INSTANCE, (0, 0)), is_rewind=False)
        return sink

    return open_one


# TLS. Valkey from the wheel is built without it, so it is Redis alone.


def secured(running: list[Any], tmp_path: Path, **values: Any) -> tuple[RedisServer, Authority]:
    """Return a server that speaks TLS only, and who has signed its certificate."""
    authority = Authority(tmp_path / "authority")
    server = RedisServer(tmp_path / "redis", REDIS).secure(authority, **values).start()
    running.append(server)
    return server, authority


def test_a_server_is_known_by_its_certificate(
    running: list[Any], opened: Callable[..., Any], tmp_path: Path
) -> None:
    server, authority = secured(running, tmp_path)
    sink = opened(server.addresses, tls=True, tls_ca=str(authority.file))
    sink.apply(batch((0, 0), (1, 0), message(1)), INSTANCE)
    assert server.list("log") == [b"x"]
    named = opened([f"localhost:{server.port}"], tls=True, tls_ca=str(authority.file))
    assert named.look().cursor == (1, 0)


def test_a_certificate_of_somebody_else_is_refused(
    running: list[Any], opened: Callable[..., Any], tmp_path: Path
) -> None:
    server, _ = secured(running, tmp_path)
    other = Authority(tmp_path / "other", "other")
    with pytest.raises(Unavailable, match="certificate verify failed"):
        opened(server.addresses, tls=True, tls_ca=str(other.file))
    assert opened(server.addresses, tls=True, tls_verify=False).look().cursor == (0, 0)
    with pytest.raises(Unavailable, match=str(server.port)):
        opened(server.addresses)  # without TLS


def test_a_certificate_for_another_name_is_refused(
    running: list[Any], opened: Callable[..., Any], tmp_path: Path
) -> None:
    server, authority = secured(running, tmp_path, names=[x509.DNSName("elsewhere")])
    with pytest.raises(Unavailable, match=r"certificate is not valid for '127\.0\.0\.1'"):
        opened(server.addresses, tls=True, tls_ca=str(authority.file))
    with pytest.raises(Unavailable, match="certificate is not valid for 'localhost'"):
        opened([f"localhost:{server.port}"], tls=True, tls_ca=str(authority.file))


def test_a_server_may_ask_for_our_certificate(
    running: list[Any], opened: Callable[..., Any], tmp_path: Path
) -> None:
    server, authority = secured(running, tmp_path, asks_clients=True)
    values: dict[str, Any] = {"tls": True, "tls_ca": str(authority.file)}
    with pytest.raises(Unavailable, match="; it may ask for a tls_certificate"):
        opened(server.addresses, **values)
    stranger, key = Authority(tmp_path / "other", "other").issue("holdfast")
    with pytest.raises(Unavailable, match=f"; it may not accept {stranger}"):
        opened(server.addresses, **values, tls_certificate=str(stranger), tls_key=str(key))
    ours, key = authority.issue("holdfast")
    sink = opened(server.addresses, **values, tls_certificate=str(ours), tls_key=str(key))
    assert sink.look().cursor == (0, 0)


def test_every_server_of_a_cluster_is_known_by_its_certificate(
    running: list[Any], tmp_path: Path
) -> None:
    authority, other = Authority(tmp_path / "authority"), Authority(tmp_path / "other", "other")
    servers = ClusterServers(tmp_path / "cluster", REDIS, authority=authority)
    running.append(servers)
    servers.start()
    values: dict[str, Any] = {"servers": servers.addresses, "mode": "cluster", "tls": True}
    stored = rule("message.publish", "#", action="on_message_publish")
    stranger = process.make_sink(options(stored, **values, tls_ca=str(other.file)))
    with pytest.raises(Unavailable, match="certificate verify failed"):
        stranger.open()
    sink = process.make_sink(options(stored, **values, tls_ca=str(authority.file)))
    running.append(sink)
    assert sink.open() is None
    sink.start(Fence(INSTANCE, (0, 0)), is_rewind=False)
    rows = [message(number, f"t/{number}") for number in range(1, 51)]
    assert sink.apply(batch((0, 0), (50, 0), *rows), INSTANCE) == []
    assert all(server.everything() for server in servers.masters)


@pytest.mark.parametrize("name", ["tls_ca", "tls_certificate"])
def test_a_file_that_is_not_there_is_told(
    running: list[Any], opened: Callable[..., Any], tmp_path: Path, name: str
) -> None:
    server, authority = secured(running, tmp_path)
    values = {"tls_ca": str(authority.file), name: "/nowhere.pem"}
    with pytest.raises(Unavailable, match="No such file"):
        opened(server.addresses, tls=True, **values)


# Sentinels


@pytest.fixture(params=PROGRAMS)
def program(request: pytest.FixtureRequest) -> Any:
    """The program of a server."""
    return request.param


def watched(running: list[Any], tmp_path: Path, program: Any, **values: Any) -> Sentinels:
    """Return a master and its replica, which sentinels watch."""
    servers = Sentinels(tmp_path / "watched", program, **values)
    running.append(servers)
    return servers.start()


def test_rows_go_to_the_master_that_sentinels_name_and_what_a_replica_lacks_is_missed(
    running: list[Any], opened: Callable[..., Any], tmp_path: Path, program: Any
) -> None:
    servers = watched(running, tmp_path, program)
    values = {"mode": "sentinel", "sentinel_name": "main"}
    sink = opened(servers.addresses, **values)
    sink.apply(batch((0, 0), (1, 0), message(1)), INSTANCE)
    servers.wait_for_replica()
    servers.replica.kill()
    sink.apply(batch((1, 0), (2, 0), message(2)), INSTANCE)
    servers.master.kill()
    servers.start_replica()
    with pytest.raises(Unavailable):
        sink.look()
    servers.wait_for_failover()
    sink = opened(servers.addresses, **values)
    assert sink.look().cursor == (1, 0)
    assert sink.health()["role"] == "master"
    sink.start(Fence(INSTANCE, (1, 0)), is_rewind=True)
    sink.apply(batch((1, 0), (2, 0), message(2)), INSTANCE)
    assert servers.replica.list("log") == [b"x", b"x"]


def test_sentinels_have_users_of_their_own(
    running: list[Any], opened: Callable[..., Any], tmp_path: Path
) -> None:
    servers = watched(
        *(running, tmp_path, REDIS),
        settings="user watcher on >seen ~* &* +@all\n",
        password="told",
    )
    values = {"mode": "sentinel", "sentinel_name": "main"}
    with pytest.raises(Unavailable, match="client already authenticated"):
        opened(servers.addresses, **values)
    with pytest.raises(Unavailable, match="invalid username-password pair"):
        opened(servers.addresses, **values, sentinel_password="wrong")
    with pytest.raises(Unavailable, match="sentinel_password_file"):
        opened(servers.addresses, **values, sentinel_password_file=str(tmp_path / "secret"))
    (tmp_path / "secret").write_text("told\n")
    for given in (
        {"sentinel_password": "told"},
        {"sentinel_password_file": str(tmp_path / "secret")},
        {"sentinel_username": "watcher", "sentinel_password": "seen"},
    ):
        assert opened(servers.addresses, **values, **given).look().cursor == (0, 0)


def test_sentinels_speak_tls_as_their_servers_do(
    running: list[Any], opened: Callable[..., Any], tmp_path: Path
) -> None:
    authority = Authority(tmp_path / "authority")
    servers = watched(running, tmp_path, REDIS, authority=authority)
    values: dict[str, Any] = {"mode": "sentinel", "sentinel_name": "main", "tls": True}
    other = Authority(tmp_path / "other", "other")
    with pytest.raises(Unavailable, match="certificate verify failed"):
        opened(servers.addresses, **values, tls_ca=str(other.file))
    sink = opened(servers.addresses, **values, tls_ca=str(authority.file))
    assert sink.look().cursor == (0, 0)


def test_a_master_that_no_sentinel_knows_is_named(
    running: list[Any], opened: Callable[..., Any], tmp_path: Path
) -> None:
    servers = watched(running, tmp_path, REDIS)
    with pytest.raises(Unavailable, match="it knows no master 'other'"):
        opened(servers.addresses, mode="sentinel", sentinel_name="other")
    with pytest.raises(Unavailable, match=r"no sentinel names a master: 127\.0\.0\.1:1: .*refused"):
        opened(["127.0.0.1:1"], mode="sentinel", sentinel_name="main")


def test_applications_are_heard_on_the_master_of_now(
    running: list[Any], tmp_path: Path, program: Any
) -> None:
    servers = watched(running, tmp_path, program)
    said: queue.Queue[dict[str, Any]] = queue.Queue()

    def heard(name: str) -> Any:
        while name not in (found := said.get(timeout=PATIENCE_S)):
            pass
        return found

    told = options(
        servers=servers.addresses,
        timeout_ms=2000,
        mode="sentinel",
        sentinel_name="main",
        channel="told",
        stream="log",
    )
    changes = redis_sink.RedisSink(told).listen(said.put)
    changes.start()
    running.append(changes)
    for _ in range(2):
        heard("listening")
    with servers.master.client() as client:
        client.xadd("log", {"change": CHANGE % 1})
    changes.answered([heard("change")["change"]])
    servers.wait_for_replica()
    servers.master.kill()
    for _ in range(2):
        heard("unheard")
    servers.wait_for_failover()
    for _ in range(2):
        heard("listening")
    with servers.replica.client() as client:
        client.publish("told", CHANGE % 2)
        client.xadd("log", {"change": CHANGE % 3})
    found = {heard("change")["topic"] for _ in range(2)}
    if "a/1" in found:  # the replica had not got its acknowledgement
        found = (found | {heard("change")["topic"]}) - {"a/1"}
    assert found == {"a/2", "a/3"}


@pytest.mark.parametrize(
    ("server", "found"),
    [
        ("a:1", ("a", 1)),
        ("a", ("a", 6379)),
        ("[::1]:7000", ("::1", 7000)),
        ("[::1]", ("::1", 6379)),
        ("10.0.0.1:7000", ("10.0.0.1", 7000)),
    ],
)
def test_a_server_without_a_port_has_the_usual_one(server: str, found: tuple[str, int]) -> None:
    assert clients.place(server, clients.DEFAULT_PORT) == found


@pytest.mark.parametrize(
    ("said", "values", "why"),
    [
        ("(1, '[SSL: TLSV13_ALERT_CERTIFICATE_REQUIRED]')", {"tls": True}, "it may ask for"),
        ("Connection closed by server.", {"tls": True}, "it may ask for"),
        ("[SSL: TLSV1_ALERT_UNKNOWN_CA]", {"tls": True, "tls_certificate": "a.pem"}, "not accept"),
        ("certificate verify failed", {"tls": True}, ""),
        ("Connection closed by server.", {}, ""),
    ],
)
def test_a_server_that_wants_another_certificate_may_say_so_in_many_ways(
    said: str, values: dict[str, Any], why: str
) -> None:
    told = clients.why_closed(values, OSError(said))
    assert bool(told) is bool(why) and why in told

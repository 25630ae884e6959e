"""Makes clients of Redis from the options of a backend: of one server, by sentinels, of a cluster.

No client tries anything again by itself: the worker connects again, and looks where the store is.
Read next: `broker.backends.redis.sink`, `broker.backends.redis.cluster_sink`.
"""

from collections.abc import Sequence
from typing import Any, Final

import redis
import redis.cluster
import redis.exceptions
from redis.backoff import NoBackoff
from redis.retry import Retry

from broker.backends.sink import Options, Unavailable

DEFAULT_PORT: Final = 6379
DEFAULT_SENTINEL_PORT: Final = 26379
NAME_CHARACTERS_MAX: Final = 64
# What a client raises when it cannot do what it is told; those of a cluster are no `RedisError`.
ERRORS: Final = (
    redis.exceptions.RedisError,
    redis.exceptions.RedisClusterException,
    OSError,
)

# An alert of TLS comes behind the handshake, too, if it comes at all.
CLOSED_WORDS: Final = (
    *("EOF occurred", "closed by server", "reset by peer", "Broken pipe"),
    "_ALERT_",
)


def connect(options: Options) -> redis.Redis:
    """Return a client of the one server, or of the master that sentinels name.

    It connects when it is used first. Raises `Unavailable` if no sentinel names a master, or a
    password cannot be read.
    """
    values = options.values
    common = _connection(options) | {"db": values.get("database", 0)}
    if values.get("mode") == "sentinel":
        host, port = _master(values)
    else:
        host, port = place(values["servers"][0], DEFAULT_PORT)
    return redis.Redis(host=host, port=port, retry=Retry(NoBackoff(), 0), **common)


def _master(values: dict[str, Any]) -> tuple[str, int]:
    """Return where the master is, by the first sentinel that says so. Raises `Unavailable`.

    Sentinels have users of their own, and no databases.
    """
    common = {
        "username": values.get("sentinel_username"),
        "password": _password(values, "sentinel_password"),
        **_timeouts(values),
        **_tls(values),
    }
    name = values["sentinel_name"]
    found: list[str] = []
    for server in values["servers"]:
        host, port = place(server, DEFAULT_SENTINEL_PORT)
        sentinel: Any = redis.Redis(host=host, port=port, retry=Retry(NoBackoff(), 0), **common)
        try:
            told = sentinel.sentinel_get_master_addr_by_name(name)
        except ERRORS as problem:
            found.append(what_failed([server], problem))
            continue
        finally:
            sentinel.close()
        if told is not None:
            return told[0], int(told[1])
        found.append(f"{server}: it knows no master {name!r}")
    raise Unavailable(f"no sentinel names a master: {'; '.join(found)}")


def connect_cluster(options: Options) -> Any:
    """Return a client of a cluster, which has asked one of the servers for all of them.

    Raises `Unavailable` if a password cannot be read, and what the client raises.
    """
    cluster: Any = redis.cluster
    places = [place(each, DEFAULT_PORT) for each in options.values["servers"]]
    return cluster.RedisCluster(
        startup_nodes=[cluster.ClusterNode(*each) for each in places],
        retry=Retry(NoBackoff(), 0),
        **_connection(options),
    )


def what_failed(servers: Sequence[str], problem: Exception) -> str:
    """Return one line for an error of a client."""
    text = " ".join(str(problem).split()) or type(problem).__name__
    return f"{', '.join(servers)}: {text}"


def why_closed(values: dict[str, Any], problem: Exception) -> str:
    """Return what may be behind it if a connection has ended at once, "" if that is not known.

    A server that asks for a certificate says so after the handshake, often to nobody who still
    listens.
    """
    is_closed = any(words in str(problem) for words in CLOSED_WORDS)
    if not is_closed or not values.get("tls"):
        return ""
    given = values.get("tls_certificate")
    return f"; it may not accept {given}" if given else "; it may ask for a tls_certificate"


def place(server: str, default_port: int) -> tuple[str, int]:
    """Return host and port of a server as it is configured."""
    host, colon, port = server.rpartition(":")
    if not colon or host.endswith(":") or not port.isdecimal():
        return server.strip("[]"), default_port
    return host.strip("[]"), int(port)


def _connection(options: Options) -> dict[str, Any]:
    values = options.values
    return {
        "username": values.get("username"),
        "password": _password(values, "password"),
        "socket_keepalive": True,
        "client_name": f"holdfast-{options.name}"[:NAME_CHARACTERS_MAX],
        **_timeouts(values),
        **_tls(values),
    }


def _timeouts(values: dict[str, Any]) -> dict[str, Any]:
    timeout_s = values.get("timeout_ms", 5000) / 1000
    return {"socket_timeout": timeout_s, "socket_connect_timeout": timeout_s}


def _tls(values: dict[str, Any]) -> dict[str, Any]:
    if not values.get("tls"):
        return {}
    return {
        "ssl": True,
        "ssl_ca_certs": values.get("tls_ca"),
        "ssl_certfile": values.get("tls_certificate"),
        "ssl_keyfile": values.get("tls_key"),
        "ssl_cert_reqs": "required" if values.get("tls_verify", True) else "none",
        "ssl_check_hostname": bool(values.get("tls_verify", True)),
    }


def _password(values: dict[str, Any], key: str) -> str | None:
    """Return a password; a file is read again at each connect, so that it can be changed."""
    path = values.get(f"{key}_file")
    if path is None:
        return values.get(key) or None
    try:
        with open(path, encoding="utf-8") as file:
            return file.readline().rstrip("\r\n") or None
    except (OSError, UnicodeDecodeError) as problem:
        raise Unavailable(f"{key}_file {path}: {problem}") from None

"""A real broker and a Cassandra that wants a login, gives rights, and speaks TLS."""

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from tests.broker.backends.cassandra_server import START_S, CassandraServer, needs_cassandra
from tests.broker.network.certificates import Authority
from tests.broker.process.test_server_backends import command, kill_process_of, status, until
from tests.broker.process.test_server_cassandra import NODE, all_rules, rule
from tests.durability.process import POLL_SECONDS, BrokerProcess
from tests.durability.rawclient import RawClient

pytestmark = [pytest.mark.full, needs_cassandra]  # starts processes

NoHostAvailable: Any = pytest.importorskip("cassandra.cluster").NoHostAvailable
OPERATOR: Final = ("cassandra", "cassandra")  # whom a new server has
RIGHTS: Final = frozenset({"MODIFY", "SELECT"})  # that a broker needs in its keyspace
STORED: Final = rule("message.publish", "#", 'action = "on_message_publish"')
# What is not encrypted is taken, too: tests read that way. Whoever comes with TLS shows a
# certificate. Nothing is remembered of rights and passwords, for they change here.
SETTINGS: Final = """\
authenticator: PasswordAuthenticator
authorizer: CassandraAuthorizer
role_manager: CassandraRoleManager
roles_validity: 0ms
permissions_validity: 0ms
credentials_validity: 0ms
client_encryption_options:
  enabled: true
  optional: true
  require_client_auth: true
  ssl_context_factory:
    class_name: org.apache.cassandra.security.PEMBasedSslContextFactory
  keystore: {keystore}
  truststore: {authority}
"""


class Secure:
    """The server, and the authority that it trusts."""

    def __init__(self, directory: Path) -> None:
        self.authority: Final = Authority(directory / "authority")
        self.ours: Final = self.authority.issue("holdfast")
        certificate, key = self.authority.server()
        keystore = directory / "keystore.pem"
        keystore.write_bytes(key.read_bytes() + certificate.read_bytes())
        settings = SETTINGS.format(keystore=keystore, authority=self.authority.file)
        self.server: Final = CassandraServer(directory / "server", settings, OPERATOR)
        self._roles = 0

    def start(self) -> None:
        """Start the server; return once somebody can log in."""
        self.server.start()
        deadline = time.monotonic() + START_S
        while not self._takes_logins():
            assert time.monotonic() < deadline
            time.sleep(POLL_SECONDS)

    def _takes_logins(self) -> bool:
        with contextlib.suppress(NoHostAvailable):
            self.server.execute("SELECT release_version FROM system.local")
            return True
        return False

    def role(self) -> str:
        """Make a role without rights; return its name."""
        self._roles += 1
        name = f"role{self._roles}"
        self.server.execute(f"CREATE ROLE {name} WITH LOGIN = true AND PASSWORD = 'right'")
        return name

    def grant(self, role: str, *rights: str) -> None:
        """Give a role rights in the keyspace; all that a broker needs, if none are named."""
        for right in rights or RIGHTS:
            self.server.execute(f"GRANT {right} ON KEYSPACE {{k}} TO {role}")

    def make_tables(self, broker: BrokerProcess, rules: str = STORED) -> None:
        """Have the tables made by the operator."""
        configure(broker, self, OPERATOR[0], 'password = "cassandra"', rules)
        code, out, err = command(broker, "create")
        assert (code, err) == (0, ""), (out, err)

    def tls(self, **keys: Path | str) -> str:
        """Return the options of TLS."""
        given = {
            "tls_ca": self.authority.file,
            "tls_certificate": self.ours[0],
            "tls_key": self.ours[1],
            **keys,
        }
        return "tls = true\n" + "".join(
            f'{key} = "{each}"\n' for key, each in given.items() if each
        )


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secure]:
    """The server for all tests here."""
    made = Secure(tmp_path_factory.mktemp("secure"))
    made.start()
    yield made
    made.server.kill()


@pytest.fixture
def secure(running: Secure) -> Secure:
    """The server, with a keyspace of the test's own that is not made yet."""
    running.server.fresh()
    return running


def configure(
    broker: BrokerProcess, secure: Secure, username: str, options: str, rules: str = STORED
) -> None:
    """Configure a broker that is not started yet."""
    path = broker.directory / "holdfast.toml"
    path.write_text(
        f'[backends.cache]\ntype = "cassandra"\nservers = "127.0.0.1:{secure.server.port}"\n'
        f'keyspace = "{secure.server.keyspace}"\nnode = "{NODE}"\ntimeout = "10s"\n'
        f'username = "{username}"\n{options}\n{rules}'
    )
    broker.arguments = ("--config", str(path))


def publish(broker: BrokerProcess, payload: bytes) -> None:
    """Publish one message; it waits for no store."""
    client = RawClient(broker.port, "shore")
    client.connect()
    client.publish("t", payload, qos=1)
    client.disconnect()


def has(secure: Secure, *payloads: bytes) -> Callable[[], bool]:
    """Return a condition: the store has these messages and no other."""
    return lambda: {row["payload"] for row in secure.server.table("msg")} == {*payloads}


def why(broker: BrokerProcess) -> str:
    """Return why the store of a running broker takes nothing, "" = it does."""
    told = status(broker)
    return str(told["why"]) if told["state"] == "disconnected" else ""


def refused(broker: BrokerProcess) -> str:
    """Return what `backend check` says of a store that cannot be used."""
    code, out, err = command(broker, "check")
    assert (code, err) == (1, ""), (out, err)
    (line,) = [line for line in out.splitlines() if "unusable" in line]
    return line


def test_rows_wait_for_the_right_password_in_its_file_and_follow_it_when_it_changes(
    prepare: Callable[..., BrokerProcess], secure: Secure
) -> None:
    broker = prepare()
    role = secure.role()
    secure.make_tables(broker)
    secure.grant(role)
    file = broker.directory / "password"
    file.write_text("wrong\n")
    configure(broker, secure, role, f'password_file = "{file}"')
    assert f"Provided username {role} and/or password are incorrect" in refused(broker)
    broker.start()
    publish(broker, b"1")
    until(lambda: "incorrect" in why(broker), broker)
    assert has(secure)()
    file.write_text("right\n")
    until(has(secure, b"1"), broker)
    assert command(broker, "check")[0] == 0
    secure.server.execute(f"ALTER ROLE {role} WITH PASSWORD = 'new'")
    file.write_text("new\n")
    kill_process_of(broker)
    publish(broker, b"2")
    until(has(secure, b"1", b"2"), broker)
    assert status(broker)["dead_letters"] == 0


@pytest.mark.parametrize("missing", sorted(RIGHTS))
def test_rows_wait_for_a_right_that_is_missing(
    prepare: Callable[..., BrokerProcess], secure: Secure, missing: str
) -> None:
    broker = prepare()
    role = secure.role()
    secure.make_tables(broker)
    secure.grant(role, *RIGHTS - {missing})
    configure(broker, secure, role, 'password = "right"')
    assert f"User {role} has no {missing} permission on <table" in refused(broker)
    broker.start()
    publish(broker, b"1")
    until(lambda: f"no {missing} permission" in why(broker), broker)
    assert has(secure)()
    secure.grant(role, missing)
    until(has(secure, b"1"), broker)
    assert status(broker)["dead_letters"] == 0


def test_a_role_needs_no_more_rights_than_the_documents_say(
    prepare: Callable[..., BrokerProcess], secure: Secure
) -> None:
    broker = prepare()
    maker, user = secure.role(), secure.role()
    configure(broker, secure, maker, 'password = "right"\nsender_index = true', all_rules())
    code, out, _ = command(broker, "create")
    assert code == 1 and f"User {maker} has no CREATE permission on <all keyspaces>" in out
    secure.server.execute(f"GRANT CREATE ON ALL KEYSPACES TO {maker}")
    code, out, err = command(broker, "create")
    assert code == 0 and "holdfast_cursor" in out and "msg_sender" in out, (out, err)
    secure.grant(user)
    configure(broker, secure, user, 'password = "right"\nsender_index = true', all_rules())
    assert command(broker, "create")[:2] == (0, "cache: nothing was missing\n")
    assert command(broker, "check")[0] == 0
    broker.start()
    device = RawClient(broker.port, "device")
    device.durable()
    device.subscribe("t", qos=1)
    device.publish("t", b"1", qos=1, retain=True)
    device.take(1)
    device.unsubscribe("t")
    device.disconnect()
    until(lambda: [row["state"] for row in secure.server.table("client")] == [0], broker)
    assert [row["topic"] for row in secure.server.table("retain")] == ["t"]
    assert status(broker)["dead_letters"] == 0


def connections(secure: Secure, role: str) -> set[bool]:
    """Return whether the connections of a role are encrypted."""
    rows = secure.server.execute("SELECT username, ssl_enabled FROM system_views.clients")
    return {row["ssl_enabled"] for row in rows if row["username"] == role}


def test_rows_go_by_tls_with_a_certificate_also_after_the_server_was_killed(
    prepare: Callable[..., BrokerProcess], secure: Secure
) -> None:
    broker = prepare()
    role = secure.role()
    secure.make_tables(broker)
    secure.grant(role)
    configure(broker, secure, role, 'password = "right"\n' + secure.tls())
    assert command(broker, "check")[0] == 0
    broker.start()
    publish(broker, b"1")
    until(has(secure, b"1"), broker)
    assert connections(secure, role) == {True}
    secure.server.kill()
    publish(broker, b"2")
    until(lambda: status(broker)["state"] != "connected", broker)
    secure.start()
    until(has(secure, b"1", b"2"), broker)
    assert connections(secure, role) == {True}
    secure.server.freeze()
    publish(broker, b"3")
    until(lambda: why(broker) != "", broker)
    secure.server.thaw()
    until(has(secure, b"1", b"2", b"3"), broker)
    assert status(broker)["dead_letters"] == 0


def test_what_is_wrong_with_a_certificate_is_said(
    prepare: Callable[..., BrokerProcess], secure: Secure, tmp_path: Path
) -> None:
    broker = prepare()
    stranger = Authority(tmp_path, "stranger")
    secure.make_tables(broker)

    def told(options: str) -> str:
        configure(broker, secure, OPERATOR[0], 'password = "cassandra"\n' + options)
        return refused(broker)

    none = secure.tls(tls_certificate="", tls_key="")
    assert "it may ask for a certificate, and there is no tls_certificate" in told(none)
    certificate, key = stranger.issue("holdfast")
    theirs = secure.tls(tls_certificate=certificate, tls_key=key)
    assert f"it may not take tls_certificate {certificate}" in told(theirs)
    assert "certificate verify failed" in told(secure.tls(tls_ca=stranger.file))
    assert f"tls_ca {tmp_path}/nowhere: " in told(secure.tls(tls_ca=tmp_path / "nowhere"))
    assert f"tls_certificate {key}: " in told(secure.tls(tls_certificate=key, tls_key=""))
    locked, locked_key = secure.authority.issue("holdfast", password=b"secret")
    assert f"tls_certificate {locked} with tls_key {locked_key}: " in told(
        secure.tls(tls_certificate=locked, tls_key=locked_key)
    )
    unverified = secure.tls(tls_ca=stranger.file) + "tls_verify = false\n"
    configure(broker, secure, OPERATOR[0], 'password = "cassandra"\n' + unverified)
    assert command(broker, "check")[0] == 0

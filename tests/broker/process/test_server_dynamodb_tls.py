"""A real broker and a real DynamoDB behind TLS, with an authority of one's own: AWS_CA_BUNDLE."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cryptography import x509

from tests.broker.backends.dynamodb_server import DynamodbServer, needs_dynamodb
from tests.broker.network.certificates import Authority
from tests.broker.network.tls_terminator import TlsTerminator
from tests.broker.process.test_server_backends import command, status, until
from tests.broker.process.test_server_dynamodb import feed, stored
from tests.durability.process import BrokerProcess
from tests.durability.rawclient import RawClient

pytestmark = [pytest.mark.full, needs_dynamodb]  # starts processes


class Secure:
    """A DynamoDB that only a TLS terminator lets a broker reach, and the authority of the file."""

    def __init__(self, directory: Path) -> None:
        self.authority = Authority(directory / "authority")
        self.stranger = Authority(directory / "stranger", "stranger")
        self.bundle = directory / "bundle.pem"  # what AWS_CA_BUNDLE names
        self.server = DynamodbServer(directory / "dynamodb").start()
        self.door = TlsTerminator(self.server.port)

    def trust(self, authority: Authority) -> None:
        """Let this authority be the one of the file."""
        self.bundle.write_bytes(authority.file.read_bytes())

    def feed(self, broker: BrokerProcess) -> None:
        """Configure a broker that is not started yet, and make the tables: by TLS."""
        feed(broker, self.server, stored(), endpoint=f"https://127.0.0.1:{self.door.port}")

    def has(self, *payloads: str) -> bool:
        """Return whether the tables have these messages and no other."""
        return {item["payload"] for item in self.server.table("msg")} == {*payloads}


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secure]:
    """The server for all tests here."""
    made = Secure(tmp_path_factory.mktemp("secure"))
    yield made
    made.server.kill()


@pytest.fixture
def secure(running: Secure) -> Iterator[Secure]:
    """It shows a certificate of the authority that the file has; without tables."""
    running.server.drop_tables()
    running.door.start(*running.authority.server())
    running.trust(running.authority)
    yield running
    running.door.stop()


def publish(broker: BrokerProcess, payload: bytes) -> None:
    """Publish one message; it waits for no store."""
    client = RawClient(broker.port, "shore")
    client.connect()
    client.publish("load/1", payload, qos=1)
    client.disconnect()


def why(broker: BrokerProcess) -> str:
    """Return why the store of a running broker takes nothing, "" = it does."""
    return str(status(broker)["why"])


def refused(broker: BrokerProcess) -> str:
    """Return what `backend check` says of a store that cannot be used."""
    code, out, err = command(broker, "check")
    assert (code, err) == (1, ""), (out, err)
    return out


def test_rows_wait_for_the_authority_and_for_the_name_of_the_server(
    prepare: Callable[..., BrokerProcess], secure: Secure
) -> None:
    broker = prepare(AWS_CA_BUNDLE=str(secure.bundle))
    secure.feed(broker)
    code, out, _ = command(broker, "check")
    assert code == 0 and f"DynamoDB at https://127.0.0.1:{secure.door.port}" in out, out
    secure.trust(secure.stranger)
    assert "certificate verify failed" in refused(broker)
    broker.start()
    publish(broker, b"1")
    until(lambda: "certificate verify failed" in why(broker), broker)
    assert secure.has()
    secure.trust(secure.authority)
    until(lambda: secure.has("1"), broker)
    secure.door.stop()
    elsewhere = secure.authority.issue("broker", san=[x509.DNSName("elsewhere.example")])
    secure.door.start(*elsewhere)
    publish(broker, b"2")
    until(lambda: "127.0.0.1' doesn't match 'elsewhere.example'" in why(broker), broker)
    assert secure.has("1")
    secure.door.stop()
    secure.door.start(*secure.authority.server())
    until(lambda: secure.has("1", "2"), broker)
    told = status(broker)
    assert (told["state"], told["gaps"], told["dead_letters"]) == ("connected", 0, 0)


def test_an_authority_of_ones_own_must_be_named(
    prepare: Callable[..., BrokerProcess], secure: Secure
) -> None:
    broker = prepare(AWS_CA_BUNDLE=str(secure.bundle))
    secure.feed(broker)
    del broker.env["AWS_CA_BUNDLE"]
    assert "certificate verify failed" in refused(broker)
    broker.env["AWS_CA_BUNDLE"] = str(secure.bundle) + ".absent"
    assert "No such file or directory" in refused(broker)

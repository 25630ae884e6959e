"""The walk-throughs of docs/backends.md with DynamoDB: do they work as they are?"""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.broker.backends.dynamodb_server import DynamodbServer, needs_dynamodb
from tests.broker.process.test_server_backends import until
from tests.broker.process.walk_through import block, needs_mosquitto, play
from tests.durability.process import ROOT, BrokerProcess
from tests.real_servers import AWS_CLI, needs

pytestmark = [pytest.mark.full, needs_dynamodb, needs_mosquitto, needs("AWS CLI")]

PORT: Final = ":8000"  # that of the documents
PROGRAMS: Final = {
    "aws": f'PYTHONPATH="{AWS_CLI}" exec "{sys.executable}" -m awscli "$@"',
    "holdfast": f'PYTHONPATH="{ROOT}" exec "{sys.executable}" -m broker "$@"',
}
Played = Callable[[str], list[str]]


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DynamodbServer]:
    """The server for all tests here."""
    server = DynamodbServer(tmp_path_factory.mktemp("dynamodb")).start()
    yield server
    server.kill()


@pytest.fixture
def server(running: DynamodbServer) -> DynamodbServer:
    """It has no tables."""
    running.drop_tables()
    return running


@pytest.fixture
def broker(prepare: Callable[..., BrokerProcess]) -> BrokerProcess:
    """A broker that is not started."""
    return prepare()


@pytest.fixture
def played(broker: BrokerProcess, server: DynamodbServer, tmp_path: Path) -> Played:
    """Return a function that plays a walk-through, with a broker as the documents configure it."""

    def at_home(name: str) -> str:
        text = block(f"dynamodb, {name}")
        return text.replace(PORT, f":{server.port}")

    def played_one(name: str) -> list[str]:
        return play(at_home("variables") + at_home(name), tmp_path, broker, PROGRAMS)

    path = broker.directory / "holdfast.toml"
    path.write_text(at_home("configuration"))
    broker.arguments = ("--config", str(path))
    assert played_one("tables")[:2] == ["aws:", "made"]
    broker.start()
    return played_one


def test_a_message_of_a_queue_goes_when_it_was_acknowledged(
    played: Played, broker: BrokerProcess
) -> None:
    assert played("one to one") == ["open"]
    until(lambda: played("one to one, afterwards") == ["0", "null"], broker)


def test_every_subscriber_has_a_position(played: Played, broker: BrokerProcess) -> None:
    assert played("one to many") == ["hello", "hello", "again"]
    positions = ["reader-1", "Mw", "reader-2", "Mg"]
    until(lambda: played("one to many, afterwards") == positions, broker)


def test_a_retained_message_comes_from_the_store_and_goes_there(
    played: Played, broker: BrokerProcess
) -> None:
    assert played("retained") == ["on", "off"]
    until(lambda: played("retained, afterwards") == ['"off"'], broker)


def test_a_client_is_subscribed_to_what_the_store_lists(played: Played) -> None:
    assert played("proxy subscription") == ["fire"]

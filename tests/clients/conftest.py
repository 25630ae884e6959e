"""Fixtures of the tests with foreign client libraries: a broker, and somebody else on the line."""

import itertools
from collections.abc import Iterator

import pytest

from tests.durability.process import BrokerProcess, holdfast
from tests.durability.rawclient import RawClient

_names = itertools.count(1)


@pytest.fixture(scope="module")
def shared_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    broker = holdfast(tmp_path_factory.mktemp("clients") / "broker")
    yield broker.start()
    broker.close()


@pytest.fixture
def broker(shared_broker: BrokerProcess) -> BrokerProcess:
    """A running broker, shared by the module."""
    if not shared_broker.is_running():
        shared_broker.start()
    return shared_broker


@pytest.fixture
def name() -> str:
    """A client id and topic prefix that no other test uses."""
    return f"client-{next(_names)}"


@pytest.fixture
def other(broker: BrokerProcess, name: str) -> Iterator[RawClient]:
    """Another durable client, subscribed to `<name>/out` and not connected."""
    client = RawClient(broker.port, f"{name}-other")
    client.durable()
    client.subscribe(f"{name}/out", qos=2)
    client.disconnect()
    yield client
    client.drop()

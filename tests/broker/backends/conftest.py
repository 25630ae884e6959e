"""A server that several files of tests write to; each test has tables of its own (`fresh`)."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.broker.backends.dynamodb_server import DynamodbServer


@pytest.fixture(scope="module")
def running_dynamodb(tmp_path_factory: pytest.TempPathFactory) -> Iterator["DynamodbServer"]:
    """A running DynamoDB Local; skips where its client is missing."""
    from tests.broker.backends.dynamodb_server import DynamodbServer

    server = DynamodbServer(tmp_path_factory.mktemp("dynamodb")).start()
    yield server
    server.kill()

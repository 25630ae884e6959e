"""Fixtures of the broker's tests: brokers as processes, and one inside the test's own loop."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.durability.process import BrokerProcess, holdfast


@pytest.fixture
def prepare(tmp_path: Path) -> Iterator[Callable[..., BrokerProcess]]:
    """Return a function that makes broker processes which are ended with the test."""
    brokers: list[BrokerProcess] = []

    def make(**environment: str) -> BrokerProcess:
        brokers.append(holdfast(tmp_path / f"broker-{len(brokers)}", env=environment))
        return brokers[-1]

    yield make
    for broker in brokers:
        broker.close()


@pytest.fixture
def start(prepare: Callable[..., BrokerProcess]) -> Callable[..., BrokerProcess]:
    """Return a function that starts broker processes which are ended with the test."""

    def start_one(**environment: str) -> BrokerProcess:
        return prepare(**environment).start()

    return start_one

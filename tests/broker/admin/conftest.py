"""A broker with its HTTP API for all tests of a file, and one of its own for a test."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.broker.admin.running import Running


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A broker and its API, which runs for all tests of a file; there is a token of each kind."""
    running = Running(tmp_path_factory.mktemp("admin"))
    try:
        yield running.start().make_tokens()
    finally:
        running.close()


@pytest.fixture
def run_one(tmp_path: Path) -> Iterator[Callable[..., Running]]:
    """Return a function that starts a broker and its API for this test, with tokens."""
    made: list[Running] = []

    def begin(**environment: str) -> Running:
        made.append(Running(tmp_path / f"one-{len(made)}", **environment))
        return made[-1].start().make_tokens()

    yield begin
    for running in made:
        running.close()

"""A true history and one with every fault, generated once for all tests here."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pytest

from audit.generate.history import Manifest, generate, kinds_of
from tests.audit.generate.oracle import Oracle

EVENTS = 50_000


@dataclass
class Made:
    """A generated history."""

    directory: Path
    manifest: Manifest

    @cached_property
    def oracle(self) -> Oracle:
        """The history, loaded into DuckDB."""
        return Oracle(self.directory)


@pytest.fixture(scope="session")
def clean(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """A history in which nothing went wrong."""
    directory = tmp_path_factory.mktemp("clean") / "history"
    return Made(directory, generate(directory, EVENTS, seed=7))


@pytest.fixture(scope="session")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """A history with every fault and every gap."""
    directory = tmp_path_factory.mktemp("faulty") / "history"
    return Made(directory, generate(directory, EVENTS, seed=8, kinds=kinds_of("all"), times=2))

"""Fixtures of the storage tests."""

from pathlib import Path

import pytest

from tests.durability.iofault import build


@pytest.fixture(scope="session")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The I/O fault shim, built once."""
    return build(tmp_path_factory.mktemp("shim"))

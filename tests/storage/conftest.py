"""Fixtures of the storage tests: both stores, both layouts, and a disk that fails on demand."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from storage.api import Store
from storage.log.layouts.api import Slab
from tests.durability.iofault import build
from tests.storage.log_cases import BACKENDS, LAYOUT_NAMES, new_slab, opened


@pytest.fixture(params=BACKENDS)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    """An empty store of each kind."""
    with opened(request.param, tmp_path) as opened_store:
        yield opened_store


@pytest.fixture(params=LAYOUT_NAMES)
def layout(request: pytest.FixtureRequest) -> str:
    """The name of each layout."""
    return str(request.param)


@pytest.fixture
def slab(layout: str, store: Store) -> Slab:
    """An empty generation of each layout in each store."""
    return new_slab(store, layout)


@pytest.fixture(scope="session")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The I/O fault shim, built once."""
    return build(tmp_path_factory.mktemp("shim"))

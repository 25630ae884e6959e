"""The members of a test."""

from collections.abc import Iterator

import pytest

from tests.broker.cluster.town import Town


@pytest.fixture
def town() -> Iterator[Town]:
    """Yield a town, and end its members."""
    town = Town()
    yield town
    town.close()

"""`holdfast health` names the address it asked in vain."""

import pytest

from tests.broker.cli.commands import Run, complaint

pytestmark = pytest.mark.full  # starts processes


def test_health_of_a_broker_that_is_not_there_fails_with_its_address(run: Run) -> None:
    line = complaint(run("health", HOLDFAST__METRICS__PORT="1"), 1)
    assert "http://127.0.0.1:1/healthz: " in line
    assert "refused" in line
    assert "expected" not in complaint(run("health", "--url", "nonsense"), 1)

"""No alert fires on a healthy broker; the same for an hour: `python -m ...healthy --minutes 60`."""

from pathlib import Path

import pytest

from tests.broker.observe.alert_rules import PROMTOOL
from tests.broker.observe.healthy import Scrapes, judge_healthy, observe

pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(
        PROMTOOL is None, reason="promtool is missing: scripts/setup --test unpacks it"
    ),
]
SECONDS = 31.0  # three scrapes, and two counts of what is owed


class Broken(Scrapes):
    """A broker that cannot write."""

    def series(self) -> dict[str, str]:
        """Return that it refuses writes at each scrape."""
        return super().series() | {"holdfast_writes_refused": "1x9", "up": "1x9"}


def test_no_alert_fires_while_clients_come_and_go(tmp_path: Path) -> None:
    scrapes = observe(tmp_path, SECONDS)
    assert scrapes.count >= 3
    series = scrapes.series()
    owed = series['holdfast_backlog_messages{kind="offline"}'].split()
    assert owed[-1] != "_" and float(owed[-1]) > 0
    assert len(owed) == scrapes.count
    judge_healthy(tmp_path, scrapes)


def test_an_alert_that_fires_is_found(tmp_path: Path) -> None:
    broken = Broken()
    broken.count = 8
    with pytest.raises(AssertionError, match="HoldfastWritesRefused"):
        judge_healthy(tmp_path, broken)

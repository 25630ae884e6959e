"""`holdfast backend backfill`: what is printed, and what is no request.

With real stores: `tests/broker/process/test_server_verify.py`.
"""

from pathlib import Path

import pytest

from broker.cli.backends.backfill import progress_line
from tests.broker.cli.commands import Run, complaint


def test_progress_is_one_line() -> None:
    told: dict[str, object] = {"left": ["retained", "presence"], "rows": 70}
    assert progress_line("cache", told) == (
        "cache: backfill: 70 rows so far, now retained, then presence"
    )
    told = {"left": [], "rows": 71, "ended_seconds_ago": 5}
    assert progress_line("cache", told) == "cache: backfill: ended 5 s ago, 71 rows"


@pytest.mark.full
def test_what_cannot_be_asked_is_one_line(run: Run, tmp_path: Path) -> None:
    result = run("backend", "backfill", "cache", "--data-dir", str(tmp_path / "absent"))
    assert "no broker runs on data directory" in complaint(result, 2)
    result = run("backend", "backfill", "cache", "--stop", "--retained")
    assert "--stop ends all of a backfill" in complaint(result, 2)

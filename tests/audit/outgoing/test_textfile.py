"""The verdict as metrics."""

from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from audit.outgoing import textfile

DOCUMENT: dict[str, Any] = {
    "status": "violated", "batch": 4, "rows": 1234, "to": "2026-11-01T08:00:00.000+00:00",
    "invariants": {
        "L2": {"status": "violated", "violated": 3, "unknown": 0, "suppressed": 1},
        "O1": {"status": "unknown", "violated": 0, "unknown": 9},
    },
    "suppressions": [{"state": "expired"}, {"state": "used"}],
}  # fmt: skip
MADE_US = 1_793_520_600_000_000


def values() -> dict[tuple[str, str], float]:
    """Return the metrics as Prometheus reads them."""
    text = "\n".join(textfile.lines(DOCUMENT, MADE_US)) + "\n"
    return {
        (sample.name, ",".join(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_prometheus_reads_status_counts_and_age() -> None:
    found = values()
    prefix = "holdfast_audit"
    assert found[f"{prefix}_status", "violated"] == 1
    assert found[f"{prefix}_status", "ok"] == found[f"{prefix}_status", "unknown"] == 0
    assert found[f"{prefix}_invariant_status", "O1,unknown"] == 1
    assert found[f"{prefix}_invariant_status", "O1,violated"] == 0
    assert found[f"{prefix}_violated", "L2"] == 3
    assert found[f"{prefix}_unknown", "O1"] == 9
    assert found[f"{prefix}_suppressed", "L2"] == 1
    assert found[f"{prefix}_suppressions_expired", ""] == 1
    assert found[f"{prefix}_verdict_timestamp_seconds", ""] == MADE_US / 1e6
    assert found[f"{prefix}_history_timestamp_seconds", ""] == MADE_US / 1e6 - 600
    assert (found[f"{prefix}_batch", ""], found[f"{prefix}_events", ""]) == (4, 1234)
    assert {name for name, _ in found} == set(textfile.METRICS)


def test_the_file_is_replaced_whole_and_leaves_nothing_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "audit.prom"
    path.write_text("old")
    textfile.write(path, DOCUMENT, MADE_US)
    assert path.read_text().endswith("holdfast_audit_suppressions_expired 1\n")
    assert [each.name for each in tmp_path.iterdir()] == ["audit.prom"]
    assert path.stat().st_mode & 0o777 == 0o644


def test_a_folder_that_is_not_there_is_an_error_of_the_system(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such file"):
        textfile.write(tmp_path / "none" / "audit.prom", DOCUMENT, MADE_US)


def test_the_documentation_names_every_metric() -> None:
    text = Path(__file__).parents[3].joinpath("docs", "audit.md").read_text()
    assert [name for name in textfile.METRICS if f"`{name}" not in text] == []

"""The parts of the measurement that need no Spark."""

import json
import sys
from pathlib import Path

from bench.audit_time import Cost, jobs, measured, rows_of, table

ORPHAN = """
import subprocess, sys
subprocess.Popen([sys.executable, "-c", "sum(i * i for i in range(3_000_000))"])
sys.exit(3)
"""


def test_work_of_a_process_that_nobody_waits_for_counts() -> None:
    alone = measured([sys.executable, "-c", "import sys; sys.exit(3)"])
    with_orphan = measured([sys.executable, "-c", ORPHAN])
    assert alone.status == with_orphan.status == 3
    assert with_orphan.cpu_s > alone.cpu_s


def test_only_the_starts_of_jobs_are_counted() -> None:
    log = [{"Event": "SparkListenerJobStart"}, {"Event": "SparkListenerStageCompleted"},
           {"Event": "SparkListenerJobEnd"}, {"Event": "SparkListenerJobStart"}]  # fmt: skip
    assert jobs("\n".join(json.dumps(each, separators=(",", ":")) for each in log)) == 2


def test_the_rows_are_those_of_the_verdict(tmp_path: Path) -> None:
    (tmp_path / "verdict.json").write_text('{"rows": 12}')
    assert rows_of(tmp_path) == 12


def test_a_line_of_the_table_has_all_numbers() -> None:
    lines = table([(41_234, Cost(18.4, 30.6, 2), 120)]).splitlines()
    assert lines[-1] == "| 41,234 | 18 s | 31 s | 120 |"

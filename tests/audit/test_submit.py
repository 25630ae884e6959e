"""spark-submit, from pyspark's own bin, runs the audit as a file, on executors that lack it."""

import json
import subprocess
from pathlib import Path

import pyspark
import pytest

import audit.submit
from tests.audit.conftest import History
from tests.packaging.installation import Installation, clean


@pytest.mark.slow
def test_spark_submit_gives_a_verdict_its_report_and_its_exit_code(tmp_path: Path) -> None:
    """The whole audit in processes of its own: a broken history is violated, which is 2."""
    history = History("a")
    history.boot()
    for _ in range(5):
        history.row("gc_run", count=0)
    history.lose(3)
    history.row("gc_run", count=0)
    history.write(tmp_path / "history")
    submit = Path(pyspark.__file__).parent / "bin" / "spark-submit"
    executor = Installation(tmp_path / "environment")  # Spark and what else we need, and not us
    done = subprocess.run(
        [str(submit), "--master", "local-cluster[1,2,1024]", "--driver-memory", "1g",
         str(audit.submit.__file__),
         "run", "--history", str(tmp_path / "history"), "--out", str(tmp_path / "out")],
        capture_output=True, text=True, check=False, cwd=tmp_path,
        env={**clean(), "PYSPARK_PYTHON": executor.python},
    )  # fmt: skip
    assert done.returncode == 2, done.stderr[-2000:]
    assert "H1 violated" in done.stdout
    verdict = json.loads((tmp_path / "out" / "verdict.json").read_text())
    assert verdict["status"] == "violated"
    assert "<title>Session audit: violated</title>" in (tmp_path / "out/report.html").read_text()

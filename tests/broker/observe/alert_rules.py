"""Evaluates the alerts with Prometheus' own rules engine over series that a test has."""

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Final

from tests.durability.process import ROOT

ALERTS: Final = ROOT / "deploy" / "prometheus" / "alerts.yml"
PLACES: Final = os.pathsep.join((os.environ["PATH"], str(ROOT / ".cache/prometheus/usr/bin")))
PROMTOOL: Final = shutil.which("promtool", path=PLACES)
LABELS: Final = 'instance="i",job="holdfast"'
FIRING: Final = 'count by (alertname) (ALERTS{alertstate="firing"})'


def with_labels(sample: str) -> str:
    """Return a sample's name with the labels that Prometheus adds to it."""
    if sample.endswith("}"):
        return f"{sample[:-1]},{LABELS}}}"
    return f"{sample}{{{LABELS}}}"


def judge(
    directory: Path,
    series: dict[str, str],
    expected: dict[int, list[str]],
    *,
    interval_s: int = 60,
) -> None:
    """Check which alerts fire at each second of `expected`, for series of a value an interval."""
    test = {
        "rule_files": [str(ALERTS)],
        "evaluation_interval": f"{interval_s}s",
        "tests": [
            {
                "interval": f"{interval_s}s",
                "input_series": [
                    {"series": with_labels(sample), "values": values}
                    for sample, values in series.items()
                ],
                "promql_expr_test": [
                    {
                        "expr": FIRING,
                        "eval_time": f"{second}s",
                        "exp_samples": [
                            {"labels": f'{{alertname="{name}"}}', "value": 1} for name in names
                        ],
                    }
                    for second, names in expected.items()
                ],
            }
        ],
    }
    path = directory / "test.yml"
    path.write_text(json.dumps(test))  # JSON is YAML
    done = subprocess.run(
        [PROMTOOL or "promtool", "test", "rules", str(path)],
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout + done.stderr

"""`python bench/audit_time.py`: what an audit costs in time, CPU time and Spark jobs, by its rows.

For each size it generates a history with every kind of fault and runs `holdfast audit run` on it as
an operator does, with the start of Java. CPU time is that of all processes, Java and Spark's Python
workers included. Spark's jobs are counted in a second run, whose event log would distort the first.
docs/audit.md has the table.
"""

import argparse
import ctypes
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
SIZES: Final = (40_000, 900_000, 10_000_000)
_ONE: Final = "--one-command"  # the rest is the command
_SUBREAPER: Final = 36  # PR_SET_CHILD_SUBREAPER of Linux


@dataclass(frozen=True)
class Cost:
    """What one command took, with everything it started; `status` is its exit status."""

    wall_s: float
    cpu_s: float
    status: int


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure the sizes that were asked for, and print the table; return the exit status."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given[:1] == [_ONE]:
        _measure(given[1:])
        return 0
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("sizes", type=int, nargs="*", default=SIZES, help="rows (about)")
    parser.add_argument("--scratch", help="folder for histories and results")
    options = parser.parse_args(given)
    rows = []
    with tempfile.TemporaryDirectory(dir=options.scratch) as scratch:
        for size in options.sizes:
            history = Path(scratch, f"history-{size}")
            _python("audit.generate", "--events", str(size), "--out", str(history))
            cost = audited(history, Path(scratch, f"out-{size}"))
            if cost.status not in (0, 2, 3):
                print(f"audit_time: no verdict of {size} rows", file=sys.stderr)
                return 1
            jobs = counted(history, Path(scratch, f"jobs-{size}"))
            rows.append((rows_of(Path(scratch, f"out-{size}")), cost, jobs))
    print(table(rows))
    return 0


def audited(history: Path, out: Path, environment: Mapping[str, str] | None = None) -> Cost:
    """Run the audit of a history."""
    command = [sys.executable, "-m", "audit", "run", "-q"]
    return measured([*command, "--history", str(history), "--out", str(out)], environment)


def counted(history: Path, out: Path) -> int:
    """Run the audit of a history with an event log; return how many jobs Spark ran."""
    with tempfile.TemporaryDirectory(dir=out.parent) as folder:
        settings = {"enabled": "true", "dir": f"file://{folder}", "compress": "false",
                    "rolling.enabled": "false"}  # fmt: skip
        lines = [f"spark.eventLog.{name} {value}\n" for name, value in settings.items()]
        Path(folder, "spark-defaults.conf").write_text("".join(lines))
        audited(history, out, {"SPARK_CONF_DIR": folder})
        return sum(jobs(path.read_text()) for path in Path(folder).iterdir())


def jobs(log: str) -> int:
    """Return how many jobs started according to an event log of Spark."""
    return sum('"Event":"SparkListenerJobStart"' in line for line in log.splitlines())


def rows_of(out: Path) -> int:
    """Return how many rows the verdict in a folder of results is about."""
    rows: int = json.loads((out / "verdict.json").read_text())["rows"]
    return rows


def measured(command: Sequence[str], environment: Mapping[str, str] | None = None) -> Cost:
    """Run a command; return its cost when all that it started has ended, orphans included.

    An audit does not wait for its JVM. So a process between, which has no other children, adopts
    the orphans and waits for them.
    """
    own = {**os.environ, "PYTHONPATH": str(ROOT), **(environment or {})}
    between = [sys.executable, str(Path(__file__).resolve()), _ONE, *command]
    told = subprocess.run(between, env=own, stdout=subprocess.PIPE, check=True).stdout
    return Cost(**json.loads(told))


def _measure(command: Sequence[str]) -> None:
    """Run a command in this process, which must have no other children; print its cost."""
    ctypes.CDLL(None, use_errno=True).prctl(_SUBREAPER, 1, 0, 0, 0)
    began = time.monotonic()
    status = subprocess.run(command, stdout=subprocess.DEVNULL, check=False).returncode
    wall_s = time.monotonic() - began
    try:
        while True:
            os.wait()
    except ChildProcessError:  # nobody is left
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        print(json.dumps(asdict(Cost(wall_s, used.ru_utime + used.ru_stime, status))))


def table(rows: Sequence[tuple[int, Cost, int]]) -> str:
    """Return the table for docs/audit.md."""
    lines = ["| rows | wall clock | CPU time | Spark jobs |", "| ---: | ---: | ---: | ---: |"]
    for count, cost, number in rows:
        lines.append(f"| {count:,} | {cost.wall_s:.0f} s | {cost.cpu_s:.0f} s | {number} |")
    return "\n".join(lines)


def _python(module: str, *arguments: str) -> None:
    command = [sys.executable, "-m", module, *arguments]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, check=True)


if __name__ == "__main__":
    sys.exit(main())

"""Real runs, judged by one audit: `python -m tests.audit.real_runs --runs 20`."""

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from audit.run import run
from tests.audit.real_runs.runs import draw, live, problems, sums
from tests.audit.small_spark import JUDGING, small_spark


def main(arguments: Sequence[str] | None = None) -> int:
    """Live through runs and audit them together; 0 = the audit says what the clients saw."""
    parser = argparse.ArgumentParser(prog="python -m tests.audit.real_runs", description=__doc__)
    parser.add_argument("--runs", type=int, default=20, help="how many, each a node")
    parser.add_argument("--start", type=int, default=0, help="the first seed")
    parser.add_argument("--keep", type=Path, help="keep histories and verdict in this directory")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as scratch:
        place = Path(options.keep or scratch)
        whole, out = place / "whole", place / "out"
        lived = []
        for seed in range(options.start, options.start + options.runs):
            began = time.monotonic()
            script = draw(seed)
            lived.append(live(script, Path(scratch), whole))
            sys.stdout.write(f"{time.monotonic() - began:5.1f} s  {script}\n")
            sys.stdout.flush()
        spark = small_spark("real runs")
        verdict = run(spark, str(whole), str(out), progress=lambda line: None, parts=JUDGING)
        spark.stop()
        found = problems(lived, verdict.document, whole, out)
        found += sums(lived, verdict.document["facts"])
    for problem in found:
        sys.stdout.write(problem + "\n")
    sys.stdout.write(f"{len(lived)} runs, {verdict.status}, {len(found)} problems\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())

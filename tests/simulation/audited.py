"""Audit the histories of simulated worlds by the real job: `python -m tests.simulation.audited`.

Every world is a node of one history, as an exporter would have written it, and a batch of worlds is
audited at once. The worlds themselves have judged that nothing went wrong, so whatever the audit
accuses is a mistake of one of the two. What was damaged on the disk is lost, and the audit may say
so: accusations about clients whose rows were damaged are counted apart.
Read next: `tests.simulation.retold`.
"""

import argparse
import gc
import json
import multiprocessing
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, Final

from pyspark.sql import SparkSession

from audit.checks.verdict import INVARIANTS
from audit.input.batch_view import Settings
from audit.run import Progress, run
from storage.history.columns import expand_table
from storage.history.segments import split_for_segments, write_segment
from tests.audit.small_spark import JUDGING, small_spark
from tests.simulation.making import make_world
from tests.simulation.report import failure

BATCH: Final = 250  # worlds audited at once
CHUNK: Final = 10  # worlds that a worker writes between two reports
WITNESSES_MAX: Final = 10_000
WITNESSES_SHOWN: Final = 5

Job = tuple[int, int, str | None, Path]


def node_of(seed: int) -> str:
    """Return the name of a world's broker in the history."""
    return f"world.{seed}"


def write_world(seed: int, profile: str | None, directory: Path) -> str | None:
    """Live through a world and write its history; return what went wrong, None if nothing did."""
    world = make_world(seed, profile)
    world.retold.kept = {}
    gc.disable()  # a world is small and ends soon
    try:
        world.run()
    except Exception as error:  # whatever leaves the engine is a finding
        return failure(world, error)
    finally:
        gc.enable()
    excused = directory / f"{node_of(seed)}.damaged"
    directory.mkdir(parents=True, exist_ok=True)
    if world.damages.clients:
        excused.write_text("\n".join(sorted(world.damages.clients)))
    for boot, keys in groupby(sorted(world.retold.kept), key=lambda key: key[0]):
        rows = [world.retold.kept[key] for key in keys]
        table = expand_table(rows, node_of(seed), boot)
        for piece in split_for_segments(table):
            write_segment(directory, piece, node_of(seed), boot)
    return None


def write_chunk(job: Job) -> list[str]:
    """Write the histories of (first seed, number, profile, directory); return what went wrong."""
    start, count, profile, directory = job
    found = (write_world(seed, profile, directory) for seed in range(start, start + count))
    return [problem for problem in found if problem is not None]


def write_worlds(
    start: int, count: int, profile: str | None, directory: Path, *, jobs: int = 1
) -> list[str]:
    """Write the histories of many worlds into one directory; return what went wrong in them."""
    chunks = [
        (first, min(CHUNK, start + count - first), profile, directory)
        for first in range(start, start + count, CHUNK)
    ]
    if jobs == 1:
        return [problem for chunk in chunks for problem in write_chunk(chunk)]
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        return [problem for found in pool.imap(write_chunk, chunks) for problem in found]


class Tally:
    """What the audits of all batches said, per invariant."""

    def __init__(self, nodes: Collection[str] = ()) -> None:
        """Count the accusations about these nodes only, if any are given."""
        self._nodes = nodes
        self.counts: dict[str, Counter[str]] = {name: Counter() for name in INVARIANTS}
        self.accused: list[tuple[str, dict[str, Any]]] = []
        self.damaged = 0  # accusations about clients whose rows were damaged

    def add(self, document: dict[str, Any], damaged: dict[str, set[str]]) -> None:
        """Add the verdict of a batch; `damaged` has such clients by node."""
        for name, found in document["invariants"].items():
            for what in ("checked", "violated", "unknown"):
                self.counts[name][what] += found[what]
            for witness in found["witnesses"]:
                if self._nodes and witness["node"] not in self._nodes:
                    continue
                if witness.get("client_id") in damaged.get(witness["node"], ()):
                    self.damaged += 1
                else:
                    self.accused.append((name, witness))

    def lines(self) -> Iterator[str]:
        """Yield a line per invariant, and some witnesses of each."""
        yield f"{self.damaged} accusations about clients whose rows were damaged"
        for name, counts in self.counts.items():
            yield (
                f"{name}: {counts['checked']:,} checked, {counts['violated']:,} violated, "
                f"{counts['unknown']:,} unknown"
            )
            mine = [witness for invariant, witness in self.accused if invariant == name]
            yield from (f"    {json.dumps(each, default=str)}" for each in mine[:WITNESSES_SHOWN])


def damaged_in(directory: Path) -> dict[str, set[str]]:
    """Return the clients of which rows were damaged, by node."""
    return {path.stem: set(path.read_text().split("\n")) for path in directory.glob("*.damaged")}


def say_nothing(line: str) -> None:
    """Ignore what an audit says while it runs."""


def say(line: str) -> None:
    """Show what an audit says while it runs."""
    sys.stderr.write(f"  {line}\n")


def audit_worlds(
    spark: SparkSession, directory: Path, out: Path, tally: Tally, progress: Progress = say_nothing
) -> None:
    """Audit a directory of histories."""
    settings = Settings(witnesses_max=WITNESSES_MAX)
    verdict = run(
        spark, str(directory), str(out), progress=progress, settings=settings, parts=JUDGING
    )
    tally.add(verdict.document, damaged_in(directory))


def main(arguments: Sequence[str] | None = None) -> int:
    """Write and audit worlds; 0 = nothing went wrong and nothing was accused."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.audited", description=__doc__)
    parser.add_argument("--seeds", type=int, default=BATCH, help="worlds")
    parser.add_argument("--start", type=int, default=0, help="the first of them")
    parser.add_argument("--profile", default=None, help="only this kind of world")
    parser.add_argument("--batch", type=int, default=BATCH, help="worlds audited at once")
    parser.add_argument("--jobs", type=int, default=1, help="processes that write histories")
    parser.add_argument("--keep", type=Path, help="keep histories and verdicts in this directory")
    parser.add_argument("--verbose", action="store_true", help="show the progress of the audits")
    options = parser.parse_args(arguments)
    tally, problems = Tally(), []
    end = options.start + options.seeds
    spark = small_spark("simulation", threads=options.jobs)
    with tempfile.TemporaryDirectory() as scratch:
        for first in range(options.start, end, options.batch):
            began = time.monotonic()
            count = min(options.batch, end - first)
            place = Path(options.keep or scratch, f"from-{first}")
            problems += write_worlds(
                first, count, options.profile, place / "history", jobs=options.jobs
            )
            written = time.monotonic()
            progress = say if options.verbose else say_nothing
            audit_worlds(spark, place / "history", place / "out", tally, progress)
            sys.stderr.write(
                f"worlds {first} to {first + count - 1}: written in {written - began:.0f} s, "
                f"audited in {time.monotonic() - written:.0f} s, {len(tally.accused)} accusations\n"
            )
    spark.stop()
    for line in (*problems, *tally.lines()):
        sys.stdout.write(line + "\n")
    return 1 if problems or tally.accused else 0


if __name__ == "__main__":
    sys.exit(main())

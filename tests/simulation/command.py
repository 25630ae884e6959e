"""The command `scripts/sim`: replay one world with its trace, or run many worlds.

Read next: `tests.simulation.world`.
"""

import argparse
import gc
import multiprocessing
import random
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tests.simulation import rare
from tests.simulation.making import make_world
from tests.simulation.report import failure, readable

REGRESSIONS: Final = Path(__file__).with_name("regressions.txt")
CHUNK: Final = 25  # worlds a worker runs between two reports


def run_seed(seed: int, profile: str | None = None) -> str | None:
    """Run one world; returns what went wrong, None if nothing did."""
    world = make_world(seed, profile)
    gc.disable()  # a world is small and ends soon: collecting in between costs a tenth
    try:
        world.run()
    except Exception as error:  # whatever leaves the engine is a finding
        return failure(world, error)
    finally:
        gc.enable()
    return None


def archived() -> Iterator[tuple[int, str | None]]:
    """Yield the seeds that failed once, with the profile they were run with."""
    for line in REGRESSIONS.read_text(encoding="utf-8").splitlines():
        fields = line.partition("#")[0].split()
        if fields:
            yield int(fields[0]), fields[1] if len(fields) > 1 else None


def run_chunk(
    job: tuple[int, int, str | None],
) -> tuple[int, list[tuple[int, str]], dict[str, int]]:
    """Run (first seed, number, profile); returns (worlds, failures, rare states reached)."""
    start, count, profile = job
    rare.reached.clear()
    failures = []
    for seed in range(start, start + count):
        problem = run_seed(seed, profile)
        if problem is not None:
            failures.append((seed, problem))
    return count, failures, dict(rare.reached)


def run_many(start: int, count: int, jobs: int, profile: str | None) -> tuple[int, list[str]]:
    """Run many worlds with progress; returns (failures, rare states that none of them reached)."""
    chunks = [
        (first, min(CHUNK, start + count - first), profile)
        for first in range(start, start + count, CHUNK)
    ]
    done = failed = 0
    began = time.monotonic()
    reached: dict[str, int] = {}
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        for finished, failures, found in pool.imap_unordered(run_chunk, chunks):
            done += finished
            failed += len(failures)
            for name, number in found.items():
                reached[name] = reached.get(name, 0) + number
            for _, problem in failures:
                sys.stdout.write(f"\n{problem}\n")
            speed = done / (time.monotonic() - began)
            sys.stderr.write(f"\r{done} of {count} worlds, {failed} failed, {speed:.0f}/s ")
            sys.stderr.flush()
    sys.stderr.write("\n")
    sys.stdout.write(f"{done} worlds from seed {start}, {failed} failed\n")
    return failed, rare.never_reached(reached)


def replay(seed: int, profile: str | None, tail: int) -> int:
    """Run one world and print its whole trace (or its end)."""
    world = make_world(seed, profile)
    problem = None
    try:
        world.run()
    except Exception as error:  # whatever leaves the engine is a finding
        problem = failure(world, error, tail=0)
    for line in readable(world, tail):
        sys.stdout.write(line + "\n")
    sys.stdout.write((problem or f"seed {seed} is clean, trace {world.hash()}") + "\n")
    return 1 if problem else 0


def main(arguments: list[str] | None = None) -> int:
    """Parse the command line and run; 0 = every property held, every rare state was reached."""
    parser = argparse.ArgumentParser(prog="scripts/sim", description=__doc__)
    parser.add_argument("seed", nargs="?", type=int, help="replay this world and print its trace")
    parser.add_argument("--seeds", type=int, default=0, help="run this many worlds")
    parser.add_argument("--start", type=int, default=0, help="the first of them")
    parser.add_argument("--fresh", action="store_true", help="start at a random seed")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--profile", default=None, help="only this kind of world")
    parser.add_argument("--tail", type=int, default=0, help="print only the last events, 0 = all")
    parser.add_argument("--hash", action="store_true", help="print only the trace hashes")
    options = parser.parse_args(arguments)
    if options.hash:
        for seed in range(options.start, options.start + options.seeds):
            sys.stdout.write(f"{seed} {make_world(seed, options.profile).run()}\n")
        return 0
    if options.seed is not None:
        return replay(options.seed, options.profile, options.tail)
    fresh = random.SystemRandom().randrange(1 << 40)
    start = fresh if options.fresh else options.start
    count = options.seeds or 1
    failed, missing = run_many(start, count, options.jobs, options.profile)
    # Worlds that are the same each time either reach all there is, or show nothing of the rest.
    must_reach = count >= rare.WORLDS_MIN and not options.fresh and options.profile is None
    if missing:
        verdict = "FAILED, " if must_reach else ""
        sys.stdout.write(f"{verdict}never reached: {', '.join(missing)}\n")
        failed += must_reach
    if not options.fresh:
        problem = run_seed(fresh, options.profile)
        sys.stdout.write(problem or f"fresh seed {fresh} is clean\n")
        failed += problem is not None
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

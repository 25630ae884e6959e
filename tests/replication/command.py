"""The command `python -m tests.replication.command --seeds N --start S`: run many worlds.

It prints each world that fails, how far it is, and in the end what happened in all of them. Its
exit status is 1 if a world has failed. Read next: `tests.replication.run`.
"""

import argparse
import multiprocessing
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

from storage.errors import StorageError
from tests.replication.run import run
from tests.replication.world import World

CHUNK: Final = 20
PROGRESS_S: Final = 5.0


def run_chunk(job: tuple[int, int]) -> tuple[int, list[tuple[int, str]], Counter[str]]:
    """Run (first seed, number); return (worlds, failures, what happened)."""
    start, count = job
    failures: list[tuple[int, str]] = []
    seen: Counter[str] = Counter()
    for seed in range(start, start + count):
        world = World(seed)
        try:
            run(world)
        except (AssertionError, StorageError, ValueError, LookupError, AttributeError) as error:
            failures.append((seed, f"{world.kind}: {type(error).__name__}: {error}"))
        seen += world.seen
        seen["released"] += len(world.oracle.released)
    return count, failures, seen


def _results(
    jobs: Sequence[tuple[int, int]], processes: int
) -> Iterator[tuple[int, list[tuple[int, str]], Counter[str]]]:
    if processes == 1:
        yield from map(run_chunk, jobs)
        return
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        yield from pool.imap_unordered(run_chunk, jobs)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run worlds; return the exit status."""
    parser = argparse.ArgumentParser(description="run worlds of the replicated store")
    parser.add_argument("--seeds", type=int, default=300, help="how many worlds (default 300)")
    parser.add_argument("--start", type=int, default=0, help="the first seed (default 0)")
    parser.add_argument("--jobs", type=int, default=1, help="processes (default 1)")
    options = parser.parse_args(arguments)
    stop = options.start + options.seeds
    chunks = [(at, min(CHUNK, stop - at)) for at in range(options.start, stop, CHUNK)]
    began = said = time.monotonic()
    done = failed = 0
    seen: Counter[str] = Counter()
    for count, failures, happened in _results(chunks, options.jobs):
        done += count
        failed += len(failures)
        seen += happened
        for seed, why in failures:
            sys.stdout.write(f"seed {seed}: {why}\n")
        if time.monotonic() - said > PROGRESS_S:
            said = time.monotonic()
            sys.stderr.write(f"{done} of {options.seeds} worlds, {failed} failed\n")
    told = ", ".join(f"{what} {number}" for what, number in sorted(seen.items()))
    seconds = time.monotonic() - began
    sys.stdout.write(f"{done} worlds from seed {options.start} in {seconds:.0f} s: {told}\n")
    sys.stdout.write(f"{failed} failed\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

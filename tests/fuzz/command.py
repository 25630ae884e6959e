"""The command of the session fuzz: many histories, or one of them again.

    python -m tests.fuzz.command --packets 2000000 --jobs 2
    python -m tests.fuzz.command --seed 17

Read next: `tests.fuzz.box`.
"""

import argparse
import multiprocessing
import sys
import time
import traceback
from typing import Final

from tests.fuzz.box import Box

PACKETS_PER_HISTORY: Final = 500


def run_history(seed: int) -> tuple[int, int, str | None]:
    """Run one; returns (packets sent, packets received, what went wrong or None)."""
    box = Box(seed)
    try:
        box.run(PACKETS_PER_HISTORY)
    except Exception:  # whatever leaves the engine is a finding
        problem = f"python -m tests.fuzz.command --seed {seed}\n{traceback.format_exc()}"
        return box.packets, box.received, problem
    return box.packets, box.received, None


def run_many(first: int, packets: int) -> tuple[int, int, int, list[str]]:
    """Run histories until so many packets were sent.

    Returns (histories, packets sent, packets received, problems).
    """
    sent = received = 0
    problems: list[str] = []
    seed = first
    while sent < packets:
        one = run_history(seed)
        sent, received = sent + one[0], received + one[1]
        problems += [one[2]] if one[2] is not None else []
        seed += 1
    return seed - first, sent, received, problems


def _part(arguments: tuple[int, int]) -> tuple[int, int, int, list[str]]:
    return run_many(*arguments)


def main() -> int:
    """Run what the command line asks for; 0 = no rule was broken."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.command")
    parser.add_argument("--packets", type=int, default=100_000, help="sent by clients, in all")
    parser.add_argument("--first", type=int, default=0, help="seed of the first history")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--seed", type=int, help="run this history only")
    options = parser.parse_args()
    if options.seed is not None:
        _, _, problem = run_history(options.seed)
        sys.stdout.write((problem or f"history {options.seed} is clean") + "\n")
        return 1 if problem else 0
    began = time.monotonic()
    share = options.packets // options.jobs
    parts = [(options.first + 1_000_000 * job, share) for job in range(options.jobs)]
    with multiprocessing.get_context("spawn").Pool(options.jobs) as pool:
        results = pool.map(_part, parts)
    histories = sum(result[0] for result in results)
    sent = sum(result[1] for result in results)
    received = sum(result[2] for result in results)
    problems = [problem for result in results for problem in result[3]]
    for problem in problems[:20]:
        sys.stdout.write(problem + "\n")
    elapsed = time.monotonic() - began
    sys.stdout.write(
        f"{histories} histories, {sent} packets sent, {received} received in {elapsed:.0f} s, "
        f"{len(problems)} faults\n"
    )
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())

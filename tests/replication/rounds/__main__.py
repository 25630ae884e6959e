"""The command `python -m tests.replication.rounds --rounds N --seed S`.

It plays rounds in a network and a process namespace of its own, and tells in the end what they
were and what the oracle found. Exit status: 0 = nothing was lost, 1 = something was, or the service
did not come back; 2 = there can be no namespaces here. Read next: `tests.replication.rounds.play`.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tests.durability.iofault import build
from tests.replication.rounds.play import Outcome, play
from tests.replication.rounds.town import ALONE, why_not

INSIDE: Final = "HOLDFAST_ROUNDS_INSIDE"  # the namespaces that the command has made
OK, FAULT, UNABLE = 0, 1, 2


def main(arguments: Sequence[str]) -> int:
    """Return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.replication.rounds",
        description="misfortunes of a real cluster, each machine in a network namespace",
    )
    parser.add_argument("--rounds", type=int, default=20, help="how many (default 20)")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin none later")
    parser.add_argument("--seed", type=int, default=1, help="what happens, and when (default 1)")
    parser.add_argument("--nodes", type=int, choices=(2, 3), default=3, help="default 3")
    parser.add_argument(
        "--directory", help="where everything is kept; default: deleted if all is well"
    )
    parser.add_argument("--report", help="file for the outcome as JSON")
    options = parser.parse_args(arguments)
    if INSIDE in os.environ:
        return _inside(options)
    reason = why_not()
    if reason:
        sys.stderr.write(f"no network namespaces here: {reason}\n")
        return UNABLE
    command = [*ALONE, sys.executable, "-m", "tests.replication.rounds", *arguments]
    # In place of this process: whoever ends that ends everything.
    os.execvpe(command[0], command, {**os.environ, INSIDE: "1"})


def _inside(options: argparse.Namespace) -> int:
    if options.directory:
        directory = Path(options.directory)
        directory.mkdir(parents=True)
        return _play(options, directory)
    with tempfile.TemporaryDirectory(prefix="holdfast-rounds-") as place:
        return _play(options, Path(place))


def _play(options: argparse.Namespace, directory: Path) -> int:
    begun = time.monotonic()
    outcome = play(
        directory, build(directory), count=options.rounds, seed=options.seed, nodes=options.nodes,
        seconds=options.seconds, tell=_tell,
    )  # fmt: skip
    if options.report:
        Path(options.report).write_text(json.dumps(vars(outcome)) + "\n")
    for line in summary(outcome):
        _tell(line)
    _tell(f"seed {options.seed}, {options.nodes} nodes, {time.monotonic() - begun:.0f} s")
    return FAULT if outcome.faults else OK


def summary(outcome: Outcome) -> list[str]:
    """Return what the rounds were and what they showed, in lines."""
    lines = []
    for kind, number in sorted(outcome.rounds.items()):
        lines.append(f"{number} x {kind}: longest pause {_times(outcome.pauses_s[kind])}")
    kept = ", ".join(f"{name} {number}" for name, number in sorted(outcome.kept.items()))
    lines += [
        f"{outcome.rounds.total()} rounds; takeover {_times(outcome.takeovers_s)}",
        f"power cuts took {outcome.taken} bytes and names",
        f"{outcome.acknowledged} messages acknowledged, {outcome.delivered} deliveries; {kept}",
        f"{len(outcome.faults)} faults",
    ]
    return lines + [f"fault: {fault}" for fault in outcome.faults]


def _times(seconds: Sequence[float]) -> str:
    if not seconds:
        return "-"
    return f"median {statistics.median(seconds):.1f} s, at most {max(seconds):.1f} s"


def _tell(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

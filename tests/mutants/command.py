"""Plant small mistakes and see whether a test notices: what scripts/mutants runs.

    scripts/mutants                       on the lines that differ from main
    scripts/mutants --since REV           on the lines that differ from REV
    scripts/mutants session/engine.py     on whole modules, or folders, or lines: engine.py:327
    scripts/mutants --sample 100 --seed 7 100 mutants over every product module

--sample also takes a part of what the others name. A line says what became of each mutant, the
last one how many were noticed; exit 0 if at least 95 %, 1 if fewer, 2 on wrong use. Tests that
need Spark are dear: modules that run in Spark are left out unless --spark.
"""

import argparse
import functools
import signal
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

from tests.mutants import choice
from tests.mutants.mutations import Mutant
from tests.mutants.stages import stages
from tests.mutants.trial import BaselineFails, try_all

KILLED_MIN: Final = 0.95
ROOT: Final = Path(__file__).resolve().parents[2]


def main(arguments: Sequence[str] | None = None, root: Path = ROOT) -> int:
    """Parse the command line and run; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="scripts/mutants",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("paths", nargs="*", metavar="PATH[:LINE]", help="where")
    parser.add_argument("--since", metavar="REV", help="lines that differ from this revision")
    parser.add_argument("--sample", type=int, metavar="N", help="so many mutants only")
    parser.add_argument("--seed", type=int, default=0, help="which sample")
    parser.add_argument(
        "--stages",
        type=int,
        default=4,
        metavar="N",
        help="1: the module's own tests, 2: and its room's, 3: and its package's, 4: and worlds",
    )
    parser.add_argument("--spark", action="store_true", help="with modules and tests of Spark")
    parser.add_argument("--list", action="store_true", help="print the mutants, run nothing")
    options = parser.parse_args(arguments)
    if options.sample is not None and options.sample < 1:
        parser.error(f"--sample {options.sample}: expected at least 1")
    try:
        chosen, left_out = _chosen(options, root)
    except ValueError as error:
        parser.error(str(error))
    if left_out:
        print(f"left out, because they run in Spark (--spark tries them): {len(left_out)} modules")
    if options.list:
        for one in chosen:
            print(f"{one.path}:{one.line}  {one.change}")
        return 0
    if not chosen:
        print("no line of a product module that a mutant could change")
        return 0
    tests = functools.partial(stages, root, spark=options.spark, level_max=options.stages)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # end the tests that run, too
    try:
        tell = functools.partial(print, flush=True)
        outcomes = try_all(root, choice.files(root), chosen, tests, tell)
    except BaselineFails as error:
        parser.error(str(error))
    survivors = [outcome for outcome in outcomes if outcome.stage is None]
    for survivor in survivors:
        print(survivor)
    killed = len(outcomes) - len(survivors)
    rate = killed / len(outcomes)
    print(f"{killed} of {len(outcomes)} mutants killed ({rate:.1%}), {len(survivors)} survived")
    return 0 if rate >= KILLED_MIN else 1


def _chosen(options: argparse.Namespace, root: Path) -> tuple[list[Mutant], list[str]]:
    """Return the mutants to try, and the modules left out; raises ValueError on wrong use."""
    names = choice.product_modules(root)
    lines: dict[str, set[int]] | None = None
    if options.paths:
        lines = {}
        for path in options.paths:
            for name, wanted in _named(names, root, path):
                lines.setdefault(name, set()).update(wanted)
    elif options.since or options.sample is None:
        revision = options.since or "main"
        try:
            lines = choice.changed_lines(root, revision)
        except subprocess.CalledProcessError as error:
            raise ValueError(f"{revision}: {error.stderr.strip()}") from error
    if lines is not None:
        names = [name for name in names if name in lines]
    left_out = []
    if not options.spark:
        left_out = [name for name in names if choice.needs_spark((root / name).read_text())]
    found = choice.candidates(root, [name for name in names if name not in left_out])
    if lines is not None:
        found = choice.on_lines(found, lines)
    if options.sample is not None:
        found = choice.sample(found, options.sample, options.seed)
    return found, left_out


def _named(names: list[str], root: Path, argument: str) -> Iterator[tuple[str, Iterable[int]]]:
    """Yield (module, its lines that are meant) for PATH or PATH:LINE."""
    path, _, line = argument.partition(":")
    wanted = path.removeprefix("./").rstrip("/")
    found = [name for name in names if name == wanted or name.startswith(f"{wanted}/")]
    if not found:
        raise ValueError(f"{path}: no product module; those of {', '.join(choice.PACKAGES)} are")
    for name in found:
        if line:
            yield name, [int(line)]
        else:
            yield name, range(1, len((root / name).read_text().splitlines()) + 1)


if __name__ == "__main__":
    raise SystemExit(main())

"""`python -m audit.generate`: write a synthetic history. Exit codes: 0 done, 1 refused."""

import argparse
import sys
from pathlib import Path

from audit.generate.history import KINDS, generate, kinds_of


def main() -> int:
    """Parse the command line, write the history, and print a summary of it."""
    parser = argparse.ArgumentParser(prog="python -m audit.generate", description=__doc__)
    parser.add_argument("--events", type=int, default=10_000_000, help="about so many rows")
    parser.add_argument("--out", type=Path, required=True, help="a new directory")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--times", type=int, default=1, help="how often each fault is put in")
    parser.add_argument(
        "--faults",
        default="none",
        help="none, honest (gaps only), all, or a file with one kind of fault per line",
    )
    options = parser.parse_args()
    try:
        manifest = generate(
            options.out, options.events, options.seed, _kinds(options.faults), options.times
        )
    except (OSError, ValueError) as problem:
        sys.stderr.write(f"{problem}\n")
        return 1
    sys.stdout.write(
        f"{manifest.events} events of {len(manifest.nodes)} nodes in {options.out}, "
        f"{len(manifest.injections)} faults, {len(manifest.honest)} honest gaps\n"
    )
    return 0


def _kinds(word: str) -> tuple[str, ...]:
    if word in ("none", "honest", "all"):
        return kinds_of(word)
    kinds = tuple(Path(word).read_text().split())
    for kind in kinds:
        if kind not in KINDS:
            raise ValueError(f"{word}: fault {kind!r} is not one of {', '.join(KINDS)}")
    return kinds


if __name__ == "__main__":
    sys.exit(main())

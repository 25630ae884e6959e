"""Play sequences against Holdfast and mosquitto and print what is not explained.

    python -m tests.differential.command --sequences 2000

With so many sequences each explanation must be needed, too. Must never be pointed at a broker that
it did not start. Read next: `tests.differential.compare`.
"""

import argparse
import asyncio
import collections
import contextlib
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tests.differential.compare import EXPLANATIONS, Comparison, load_explanations
from tests.durability.process import BrokerProcess, holdfast, mosquitto

SEQUENCES: Final = 2000  # they meet every explanation
# The same limits for both: mosquitto's defaults.
HOLDFAST: Final[dict[str, str]] = {
    "HOLDFAST__STORAGE__DURABILITY": "os",
    "HOLDFAST__LIMITS__RECEIVE_MAXIMUM": "20",
    "HOLDFAST__LIMITS__TOPIC_ALIAS_MAXIMUM": "10",
}


@contextlib.contextmanager
def both_brokers(directory: Path) -> Iterator[tuple[BrokerProcess, BrokerProcess]]:
    """Run a Holdfast and a mosquitto on loopback."""
    with contextlib.ExitStack() as opened:
        one = holdfast(directory / "holdfast", env=HOLDFAST)
        other = mosquitto(directory / "mosquitto")
        for broker in (one, other):
            opened.callback(broker.close)
            broker.start()
        yield one, other


def run(first: int, count: int, explanations: Path = EXPLANATIONS) -> Comparison:
    """Play `count` sequences against both brokers."""
    with tempfile.TemporaryDirectory() as directory:
        with both_brokers(Path(directory)) as (one, other):
            comparison = Comparison(one.port, other.port, load_explanations(explanations))
            asyncio.run(comparison.run(range(first, first + count)))
    return comparison


def main() -> int:
    """Run what the command line asks for.

    0 = every difference is explained, and nothing else is.
    """
    parser = argparse.ArgumentParser(prog="python -m tests.differential.command")
    parser.add_argument("--sequences", type=int, default=SEQUENCES)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--explained", action="store_true", help="show those, too")
    options = parser.parse_args()
    began = time.monotonic()
    comparison = run(options.first, options.sequences)
    for difference in comparison.unexplained:
        sys.stdout.write(f"{difference}\n")
    if options.explained:
        for explanations, difference in comparison.explained:
            sys.stdout.write(f"{difference}\n  {[each.name for each in explanations]}\n")
    is_whole = options.first == 0 and options.sequences >= SEQUENCES
    unused = comparison.unused() if is_whole else []
    for name in unused:
        sys.stdout.write(f"nothing needs the explanation: {name}\n")
    names = collections.Counter(each.name for used, _ in comparison.explained for each in used)
    for name, number in names.most_common():
        sys.stdout.write(f"{number:5} {name}\n")
    sys.stdout.write(
        f"{options.sequences} sequences, {comparison.steps} steps: "
        f"{len(comparison.explained)} differences are explained, "
        f"{len(comparison.unexplained)} are not; {time.monotonic() - began:.0f} s\n"
    )
    return 1 if comparison.unexplained or unused else 0


if __name__ == "__main__":
    sys.exit(main())

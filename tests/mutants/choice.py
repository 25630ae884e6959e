"""Which mutants a run tries: those on lines that changed, of files named, or a sample.

The sample is spread over the modules by their size and is the same for the same seed and sources.
"""

import random
import re
import subprocess
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Final

from tests.mutants.mutations import Mutant, mutants

PACKAGES: Final = ("mqtt", "session", "storage", "broker", "audit")

_HUNK: Final = re.compile(r"^@@ -\S+ \+(\d+)(?:,(\d+))? @@")


def product_modules(root: Path) -> list[str]:
    """Return the paths of all product modules."""
    return [name for name in files(root) if name.endswith(".py") and name.startswith(PLACES)]


PLACES: Final = tuple(f"{package}/" for package in PACKAGES)


def files(root: Path) -> list[str]:
    """Return the files git knows, or would add, that exist."""
    listing = _git(root, "ls-files", "-z", "--cached", "--others", "--exclude-standard")
    return sorted({name for name in listing.split("\0") if name and (root / name).is_file()})


def needs_spark(source: str) -> bool:
    """Tell whether a module runs in Spark: only dear tests can judge it."""
    return re.search(r"^\s*(from|import) pyspark", source, re.MULTILINE) is not None


def changed_lines(root: Path, revision: str) -> dict[str, set[int]]:
    """Return the lines of product modules that are not as they were at the revision.

    Raises CalledProcessError if there is no such revision.
    """
    base = _git(root, "merge-base", revision, "HEAD").strip()
    found = parse_diff(_git(root, "diff", "--unified=0", "--no-ext-diff", base, "--", *PACKAGES))
    for name in _git(root, "ls-files", "--others", "--exclude-standard", *PACKAGES).splitlines():
        found[name] = set(range(1, len((root / name).read_text().splitlines()) + 1))
    return {name: lines for name, lines in found.items() if name.endswith(".py")}


def parse_diff(diff: str) -> dict[str, set[int]]:
    """Return the new lines of each file in a diff without context."""
    found: dict[str, set[int]] = {}
    name = ""
    for line in diff.splitlines():
        if line.startswith("+++ "):
            name = line.removeprefix("+++ ").removeprefix("b/")
        elif hunk := _HUNK.match(line):
            first, count = int(hunk[1]), int(hunk[2] or 1)
            found.setdefault(name, set()).update(range(first, first + count))
    return found


def candidates(root: Path, names: Iterable[str]) -> list[Mutant]:
    """Return every mutant of the modules."""
    return [one for name in names for one in mutants(name, (root / name).read_text())]


def on_lines(found: Iterable[Mutant], lines: Mapping[str, Collection[int]]) -> list[Mutant]:
    """Return the mutants that touch one of the lines."""
    return [
        one
        for one in found
        if not set(range(one.line, one.last_line + 1)).isdisjoint(lines.get(one.path, ()))
    ]


def sample(found: list[Mutant], count: int, seed: int) -> list[Mutant]:
    """Return so many of the mutants, one from each of `count` parts of the list."""
    draw = random.Random(seed)
    if count >= len(found):
        return found
    edges = [part * len(found) // count for part in range(count + 1)]
    return [found[draw.randrange(edges[part], edges[part + 1])] for part in range(count)]


def _git(root: Path, *arguments: str) -> str:
    command = ["git", *arguments]
    return subprocess.run(command, cwd=root, check=True, capture_output=True, text=True).stdout

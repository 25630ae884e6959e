"""The files that hold the logs of clients, found before Spark is started."""

import glob
from collections.abc import Sequence
from pathlib import Path


class LogError(Exception):
    """A log that cannot be used; one line with file, line, field and what was expected."""


def files(patterns: Sequence[str]) -> list[str]:
    """Return the files that paths and globs name. Raises LogError where there is none.

    Places with a scheme are Spark's to find.
    """
    found: dict[str, None] = {}
    for pattern in patterns:
        if "://" in pattern:
            found[pattern] = None
            continue
        names = [name for name in sorted(glob.glob(pattern)) if Path(name).is_file()]
        if not names:
            raise LogError(f"{pattern}: expected a file with the log of a client, found none")
        found |= dict.fromkeys(names)
    return list(found)

"""Where each value comes from, with the line of the file.

TOML's reader tells no lines, so they are looked for in the text: a line is told only where exactly
one line can be it. Read next: `broker.configuration.show`.
"""

import re
from collections import Counter
from collections.abc import Iterator
from typing import Final

from broker.configuration.config import Config
from broker.configuration.show import Shown, sections

FILE: Final = "file "
_TABLE: Final = re.compile(r"\s*(\[\[?)\s*([^\[\]]+?)\s*\]\]?\s*(?:#.*)?$")
_KEY: Final = re.compile(r"\s*[\"']?([A-Za-z0-9_-]+)[\"']?\s*=")


def rows(config: Config, text: str) -> Iterator[tuple[str, str, str]]:
    """Yield name, value and origin of every setting; `text` is the file, "" = there is none."""
    found = _lines(text)
    for section, written in sections(config):
        for shown in written:
            yield f"{section}.{shown.key}", shown.value, _origin(found, section, shown)


def _origin(found: dict[tuple[str, str], list[int]], table: str, shown: Shown) -> str:
    if not shown.origin.startswith(FILE):
        return shown.origin
    lines = found.get((table, shown.key), [])
    return f"{shown.origin}, line {lines[0]}" if len(lines) == 1 else shown.origin


def _lines(text: str) -> dict[tuple[str, str], list[int]]:
    """Return the lines that may set a key, by table and key."""
    found: dict[tuple[str, str], list[int]] = {}
    tables: Counter[str] = Counter()  # of those with two brackets
    table = ""
    for number, line in enumerate(text.splitlines(), 1):
        if head := _TABLE.match(line):
            table = ".".join(part.strip().strip("\"'") for part in head[2].split("."))
            if head[1] == "[[":
                tables[table] += 1
                table = f"{table}[{tables[table]}]"
        elif key := _KEY.match(line):
            found.setdefault((table, key[1]), []).append(number)
    return found

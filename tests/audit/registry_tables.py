"""Write the tables of docs/audit.md again: `python -m tests.audit.registry_tables`.

A table lies between two lines, `<!-- begin NAME -->` and `<!-- end NAME -->`.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Final

from audit import registry
from audit.analytics import views

DOCUMENT: Final = Path(__file__).parents[2] / "docs" / "audit.md"
TABLES: Final[dict[str, Callable[[], list[str]]]] = {
    "invariants": registry.meanings,
    "places": registry.places,
    "views": views.documented,
}


def written(text: str) -> str:
    """Return the document with the tables as they are now."""
    for name, make in TABLES.items():
        begin, end = (f"<!-- {word} {name} -->\n" for word in ("begin", "end"))
        before, found, rest = text.partition(begin)
        _, closed, after = rest.partition(end)
        assert found and closed, f"{DOCUMENT}: no {begin.strip()} ... {end.strip()}"
        text = before + begin + "\n".join(["", *make(), "", ""]) + end + after
    return text


if __name__ == "__main__":
    DOCUMENT.write_text(written(DOCUMENT.read_text()))

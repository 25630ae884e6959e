"""Rows as text: an aligned table, CSV, or a JSON array, each line by line.

Every cell of a table and of CSV is escaped, so that no name can control a terminal. Must never hold
all rows: what is listed may be a million sessions, or a backlog. Read next:
`broker.operations.sessions.report`, `broker.operations.sessions.queue_report`.
"""

import csv
import io
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import chain, islice
from typing import Final

from broker.operations.sessions.inventory import Inventory
from storage.history.words import printable

# The first rows of a table decide how wide its columns are; a wider cell behind them moves its row.
ALIGNED_ROWS: Final = 1000


def table(
    header: Sequence[str], rows: Iterable[Sequence[str]], *, right: Iterable[str] = ()
) -> Iterator[str]:
    """Yield a table's lines, columns as wide as their widest cell; those of `right` are numbers."""
    numbers = frozenset(right)
    escaped = (tuple(map(printable, row)) for row in rows)
    first = [tuple(header), *islice(escaped, ALIGNED_ROWS)]
    widths = [max(len(row[column]) for row in first) for column in range(len(header))]
    for row in chain(first, escaped):
        cells = (
            cell.rjust(width) if name in numbers else cell.ljust(width)
            for cell, width, name in zip(row, widths, header, strict=True)
        )
        yield "  ".join(cells).rstrip()


def csv_lines(header: Sequence[str], rows: Iterable[Mapping[str, object]]) -> Iterator[str]:
    """Yield lines of CSV: the header, and of each row the fields in its order, empty for None."""
    for cells in chain([header], ([_cell(row[name]) for name in header] for row in rows)):
        line = io.StringIO()
        csv.writer(line, lineterminator="").writerow(cells)
        yield line.getvalue()


def json_lines(objects: Iterable[Mapping[str, object]]) -> Iterator[str]:
    """Yield the lines of a JSON array."""
    before = ""
    for each in objects:
        yield before or "["
        text = json.dumps(each, indent=2).replace("\n", "\n  ")
        before = f"  {text},"
    yield f"{before[:-1]}\n]" if before else "[]"


def moment(inventory: Inventory, broker_ms: int) -> str | None:
    """Return a broker time as ISO 8601 in UTC, None for 0."""
    if not broker_ms:
        return None
    when = datetime.fromtimestamp(inventory.wall_ms(broker_ms) / 1000, UTC)
    return when.isoformat(timespec="seconds").replace("+00:00", "Z")


def _cell(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return "" if value is None else printable(str(value))

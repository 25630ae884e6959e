"""One kind of list: which of its rows are shown, in which order, and as what text.

Rows are mappings with the same fields. `broker.cli.command` has the options of the command
line for it. Must stay quick to import, as `broker.cli.main` must.
"""

import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from itertools import islice
from typing import Any, Final, NamedTuple, TypeAlias

Row: TypeAlias = Mapping[str, Any]

OUTPUTS: Final = ("table", "json", "csv")
MORE: Final = "there are more: --limit says how many are printed"


class Asked(NamedTuple):
    """What is to be shown of a list."""

    match: str | None = None  # a glob for what the rows are called
    sort: str | None = None  # a column in lower case; None: as they come
    limit: int | None = None
    output: str = "table"  # one of `OUTPUTS`


class Listing:
    """A kind of list: its columns, its fields, and what its rows are called."""

    def __init__(
        self,
        columns: Sequence[tuple[str, str]],
        *,
        name: str,
        fields: Sequence[str] = (),
        cells: Mapping[str, Callable[[Any], str]] | None = None,
    ) -> None:
        """`columns` are titles of the table and their fields; CSV has `fields`, by default those.

        `name` is the field that a glob is compared with. `cells` says how a field is written in the
        table, where that is not as it is.
        """
        self._columns: Final = tuple(columns)
        self._fields: Final = tuple(fields) or tuple(field for _, field in columns)
        self._orders: Final = {title.lower(): field for title, field in columns}
        self._name: Final = name
        self._cells: Final = cells or {}

    @property
    def orders(self) -> tuple[str, ...]:
        """What the list can be sorted by: each of its columns."""
        return tuple(self._orders)

    def matching(self, asked: Asked, rows: Iterable[Row]) -> Iterator[Row]:
        """Yield the rows that match, in the order asked for, however many there are.

        Numbers and "yes" come first, the largest first; texts and times upwards; what has none is
        last. With an order as many rows are kept as are wanted, otherwise none.
        """
        if asked.match is not None:
            rows = (row for row in rows if fnmatchcase(str(row[self._name]), asked.match))
        if asked.sort is None:
            return iter(rows)
        field = self._orders[asked.sort]
        if asked.limit is None:
            return iter(sorted(rows, key=lambda row: _place(row[field])))
        # One more tells whether there are more.
        return iter(heapq.nsmallest(asked.limit + 1, rows, key=lambda row: _place(row[field])))

    def lines(self, asked: Asked, rows: Iterable[Row]) -> Iterator[str]:
        """Yield the lines of the list; a table says where there are more rows."""
        from broker.operations.sessions.columns import csv_lines, json_lines

        found = self.matching(asked, rows)
        shown = islice(found, asked.limit)
        if asked.output == "json":
            return json_lines(shown)
        if asked.output == "csv":
            return csv_lines(self._fields, shown)
        return self._table(shown, found)

    def _table(self, shown: Iterable[Row], rest: Iterator[Row]) -> Iterator[str]:
        from broker.operations.sessions.columns import table

        header = [title for title, _ in self._columns]
        fields = [field for _, field in self._columns]
        yield from table(header, ([self.text(each, row[each]) for each in fields] for row in shown))
        if next(rest, None) is not None:
            yield MORE

    def text(self, field: str, value: object) -> str:
        """Return the value of a field as the table has it."""
        return self._cells.get(field, cell)(value)


def cell(value: object) -> str:
    """Return a value for a table: yes or no, and `-` for what there is not."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "-" if value in (None, "") else str(value)


def _place(value: object) -> tuple[int, Any]:
    if value in (None, ""):
        return 1, 0
    if isinstance(value, int | float):
        return 0, -value
    return 0, str(value)

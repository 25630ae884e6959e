"""Lines of a table in columns, for any number of rows. Pure."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import Final

WIDTH_ROWS: Final = 1000  # rows that are held to find the widths; a wider cell behind them juts out


def aligned(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """Yield a line of titles and one for each row; columns fit the widest of the first rows."""
    following = iter(rows)
    first = [titles, *islice(following, WIDTH_ROWS)]
    widths = [max(map(len, column)) for column in zip(*first, strict=True)]
    for cells in chain(first, following):
        yield "  ".join(map(str.ljust, cells, widths)).rstrip()

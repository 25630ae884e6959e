"""Conditions made of many: one for each boot, gap or node."""

from collections.abc import Iterable, Mapping

from pyspark.sql import Column
from pyspark.sql import functions as F


def any_of(conditions: Iterable[Column]) -> Column:
    """Return the condition that one of these holds; false if there are none.

    As a balanced tree: Spark descends into a condition, and a chain of a few hundred (the boots of
    a fleet) is deeper than its stack.
    """
    level = list(conditions) or [F.lit(False)]
    while len(level) > 1:
        pairs = [level[at : at + 2] for at in range(0, len(level), 2)]
        level = [pair[0] | pair[1] if len(pair) == 2 else pair[0] for pair in pairs]
    return level[0]


def value_of(column: Column, values: Mapping[str, int], otherwise: int) -> Column:
    """Return the number that belongs to the text in a column: one flat choice among all."""
    chosen: Column | None = None
    for text, number in values.items():
        is_it = column == text
        chosen = F.when(is_it, number) if chosen is None else chosen.when(is_it, number)
    return F.lit(otherwise) if chosen is None else chosen.otherwise(otherwise)

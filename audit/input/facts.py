"""Facts about nodes, boots and gaps as columns: one literal each, however many there are.

A condition per node, boot or gap would make plans grow with the fleet; Spark needs minutes for a
plan of ten thousand terms. Here the facts are one literal, in which each row looks up its node:
Spark evaluates `from_json` of a literal once, when it optimizes the plan.
"""

import json
from collections.abc import Iterable, Mapping
from typing import Final

from pyspark.sql import Column
from pyspark.sql import functions as F

Interval = tuple[str, int, int]  # node, from, to: both ends included

_INTERVALS: Final = "array<struct<from:bigint,to:bigint>>"


def of_node(node: Column, values: Mapping[str, int]) -> Column:
    """Return the value of a node; null for a node without one."""
    return F.element_at(_literal(values, "map<string,bigint>"), node)


def of_boot(node: Column, boot: Column, values: Mapping[tuple[str, int], int]) -> Column:
    """Return the value of a boot of a node; null for a boot without one."""
    nodes: dict[str, dict[str, int]] = {}
    for (name, number), value in values.items():
        nodes.setdefault(name, {})[str(number)] = value
    own = F.element_at(_literal(nodes, "map<string,map<string,bigint>>"), node)
    return F.element_at(own, boot.cast("string"))


def name_at(names: Iterable[str], index: Column) -> Column:
    """Return the name at an index that is 0 or more and that must be there."""
    return F.element_at(_literal(list(names), "array<string>"), index.cast("int") + 1)


def touches(node: Column, start: Column, end: Column, intervals: Iterable[Interval]) -> Column:
    """Return the condition that `start`..`end` touches one of the intervals of its node.

    Null where `start` or `end` is null and the node has intervals.
    """
    own = _of(node, intervals)
    return F.exists(own, lambda one: (start <= one["to"]) & (end >= one["from"]))


def is_within(value: Column, spans: Iterable[tuple[int, int]]) -> Column:
    """Return the condition that a value is in one of the spans, both ends included."""
    told = [{"from": start, "to": end} for start, end in sorted(set(spans))]
    return F.exists(_literal(told, _INTERVALS), lambda one: value.between(one["from"], one["to"]))


def first_after(node: Column, since: Column, intervals: Iterable[Interval]) -> Column:
    """Return where the first interval of the node begins that does not end before `since`."""
    later = F.filter(_of(node, intervals), lambda one: one["to"] >= since)
    return F.array_min(F.transform(later, lambda one: one["from"]))


def _of(node: Column, intervals: Iterable[Interval]) -> Column:
    nodes: dict[str, list[dict[str, int]]] = {}
    for name, start, end in sorted(set(intervals)):
        nodes.setdefault(name, []).append({"from": start, "to": end})
    own = F.element_at(_literal(nodes, f"map<string,{_INTERVALS}>"), node)
    return F.coalesce(own, _literal([], _INTERVALS))


def _literal(value: object, kind: str) -> Column:
    return F.from_json(F.lit(json.dumps(value)), kind)

"""The table of what could be tested: a row per broker, a column per group of invariants. Pure.

A tick means tested at all times, a question mark that rows were missing at least at some time.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from markupsafe import Markup

from audit.report import nodes
from audit.report.rendering import render
from audit.report.summary import Check, Covered, Picture
from audit.report.text import plural

_NODES_MAX: Final = 40
Groups = Sequence[tuple[str, tuple[str, ...]]]  # title, first letters of the ids


@dataclass(frozen=True, slots=True)
class Cell:
    """Whether one broker's history could show one group of invariants."""

    look: str
    word: str
    note: str = ""


def table(picture: Picture, groups: Groups) -> Markup:
    """Return the section; empty if there is no broker."""
    by_node: dict[str, list[Covered]] = {}
    for covered in picture.coverage:
        by_node.setdefault(covered.node, []).append(covered)
    columns = [
        (title, [check for check in picture.checks if check.id[0] in letters])
        for title, letters in groups
    ]
    columns = [(title, checks) for title, checks in columns if checks]
    if not by_node or not columns:
        return Markup("")
    rows = [
        (node, [(title, cell(checks, spans)) for title, checks in columns])
        for node, spans in sorted(by_node.items())
    ]
    rows.sort(key=lambda row: [-_number(row[1], "no"), -_number(row[1], "in part")])
    return render(
        "coverage",
        titles=[title for title, _ in columns],
        rows=rows[:_NODES_MAX],
        left=len(rows) - _NODES_MAX,
        traces=_traces(picture),
        together=picture.batches > 1,
        marks=nodes.classes(picture),
    )


def _traces(picture: Picture) -> str:
    """Return a line about the clients that were traced; empty if nobody was."""
    if not picture.traces:
        return ""
    clients = len({(each.node, each.client_id) for each in picture.traces})
    judged = sum(each.judged for each in picture.traces)
    left = sum(each.not_judged for each in picture.traces)
    words = (
        f"{plural(clients, 'client')} recorded in full by a trace: "
        f"{plural(judged, 'session')} judged there"
    )
    if left:
        words += f", {plural(left, 'session')} not judged: there are too many"
    return f"{words}."


def _number(cells: Iterable[tuple[str, Cell]], word: str) -> int:
    return sum(each.word == word for _, each in cells)


def cell(checks: Sequence[Check], spans: Sequence[Covered]) -> Cell:
    """Return whether these invariants could be tested in the spans of one broker."""
    shares = {check.id: _share(spans, check.tested_by) for check in checks}
    if all(share == 1 for share in shares.values()):
        return Cell("ok", "yes", _limit(checks, spans))
    if not any(shares.values()):
        return Cell("unknown", "no", _why(spans))
    if all(share in (0, 1) for share in shares.values()):
        tested = ", ".join(id for id, share in shares.items() if share)
        return Cell("unknown", "in part", f"only {tested}")
    least = min(share for share in shares.values() if share)
    return Cell("unknown", "in part", f"{min(99, max(1, round(least * 100)))} % of the time")


def _share(spans: Sequence[Covered], tested_by: frozenset[str]) -> float:
    """Return the share of the time in which one of these was recorded; 0 and 1 are exact."""
    good = [span for span in spans if span.recorded in tested_by]
    if len(good) in (0, len(spans)):
        return float(bool(good))
    total = sum(span.to_us - span.from_us for span in spans)
    inside = sum(span.to_us - span.from_us for span in good)
    return min(0.99, max(0.01, inside / total if total else 0.5))


def _limit(checks: Sequence[Check], spans: Sequence[Covered]) -> str:
    """Return what was left out of a group that could be tested."""
    samples = [span.sample for span in spans if span.recorded == "sample"]
    if samples and any("sessions" not in check.tested_by for check in checks):
        return f"1 message in {max(samples)}"
    is_about_flights = any(check.id in ("S2", "S5") for check in checks)
    if is_about_flights and any(span.recorded != "full" for span in spans):
        return "not what was in flight"
    return ""


def _why(spans: Sequence[Covered]) -> str:
    """Return why a group could not be tested at all."""
    longest = max(spans, key=lambda span: span.to_us - span.from_us)
    return longest.reason if longest.recorded != "nothing" else "nothing recorded"

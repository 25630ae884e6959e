"""The run as a table for a terminal: a line per statement, then the failures."""

from typing import Final

from conformance.record import HEX_MAX
from conformance.results import Report, Result
from conformance.statements import VERSION_NAMES

_WIDTH: Final = 110


def render(report: Report) -> str:
    """Return the table, the failures in full, and the summary line."""
    lines: list[str] = []
    for version in report.versions:
        results = [r for r in report.results if r.statement.version == version]
        lines += [f"MQTT {VERSION_NAMES[version]}", ""]
        for result in results:
            text = result.sentence if result.outcome in ("pass", "fail", "error") else result.reason
            head = f"{result.outcome:<12} {result.statement.id:<15} "
            lines.append(head + _first_line(text, _WIDTH - len(head)))
        lines.append("")
        for result in results:
            if result.is_bad:
                lines += [*describe(result), ""]
    return "\n".join([*lines, report.summary()]) + "\n"


def describe(result: Result) -> list[str]:
    """Return a failure as lines: the requirement, what came, what should have come."""
    shown = [f"{result.outcome.upper()} {result.statement.id} (MQTT "
             f"{VERSION_NAMES[result.statement.version]}) {result.sentence}"]  # fmt: skip
    shown += [f"  {line}" for line in result.reason.splitlines()]
    if result.packet:
        cut = f" … ({len(result.packet)} bytes)" * (len(result.packet) > HEX_MAX)
        label = "sent    " if result.was_sent else "received"
        shown.append(f"  {label} {result.packet[:HEX_MAX].hex(' ')}{cut}")
        shown.append(f"  decoded  {result.decoded}")
    if result.expected:
        shown.append(f"  expected {result.expected}")
    return shown


def _first_line(text: str, width: int) -> str:
    line = text.split("\n")[0]
    return line if len(line) <= width else f"{line[: width - 1]}…"

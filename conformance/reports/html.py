"""The run as one self-contained HTML page, which can also be printed.

Without JavaScript only the filters are missing. All text from brokers is escaped.
"""

from html import escape
from importlib import resources
from itertools import groupby
from typing import Final

from conformance.record import HEX_MAX, Line
from conformance.reports.chapters import chapter_name
from conformance.results import OUTCOMES, Outcome, Report, Result
from conformance.statements import VERSION_NAMES

# Outcome -> (class in the page, sign, word). The sign is for readers who cannot see the colours.
_LOOKS: Final[dict[Outcome, tuple[str, str, str]]] = {
    "pass": ("pass", "✓", "passed"),
    "fail": ("fail", "✕", "failed"),
    "error": ("error", "!", "error"),
    "not run": ("notrun", "○", "not run"),
    "not testable": ("nottestable", "·", "not testable"),
}


def render(report: Report) -> str:
    """Return the page."""
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>MQTT conformance of {escape(report.broker)}</title>",
        f"<style>\n{_file('page.css')}</style></head><body>",
        _head(report),
        _filters(report),
        "<main>",
        *(_version(report, version) for version in report.versions),
        '<p id="empty" hidden>Nothing matches these filters.</p>',
        "</main>",
        _foot(report),
        f"<script>\n{_file('page.js')}</script></body></html>",
    ]
    return "\n".join(parts) + "\n"


def _file(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text("utf-8")


def _head(report: Report) -> str:
    profile = "strict profile" if report.strict else "normal profile"
    how = f"adapter {report.adapter}" if report.adapter else "a running broker, without an adapter"
    facts = [f'<time datetime="{report.date}">{_day(report.date)}</time>', profile, escape(how)]
    if report.selection:
        facts.append(f"only <code>{escape(report.selection)}</code>")
    facts.append(f"{report.seconds:.0f} s")
    bad = sum(result.is_bad for result in report.results) + len(report.problems)
    verdict = (
        f'<p class="verdict bad">{bad} statement{"s" * (bad != 1)} not met</p>'
        if bad
        else '<p class="verdict good">Everything that was checked is met</p>'
    )
    return (
        '<header class="top"><h1><small>MQTT conformance</small>'
        f"{escape(report.broker)}</h1>"
        f'<p class="meta">{"".join(f"<span>{fact}</span>" for fact in facts)}</p>'
        f"{verdict}{''.join(f'<p>{escape(problem)}</p>' for problem in report.problems)}"
        f'<div class="sums">{"".join(_sum(report, v) for v in report.versions)}</div></header>'
    )


def _day(date: str) -> str:
    day, _, clock = date.partition("T")
    return f"{day} {clock[:5]} UTC"


def _sum(report: Report, version: int) -> str:
    counts = report.counts(version)
    shown = [outcome for outcome in OUTCOMES if counts[outcome]]
    checked = counts["pass"] + counts["fail"] + counts["error"]
    bar = "".join(
        f'<i class="{_LOOKS[outcome][0]}" style="flex:{counts[outcome]}"></i>' for outcome in shown
    )
    key = "".join(
        f'<li class="{_LOOKS[outcome][0]}"><span class="dot"></span>'
        f"<b>{counts[outcome]}</b> {_LOOKS[outcome][2]}</li>"
        for outcome in shown
    )
    return (
        f'<div class="sum"><h2>MQTT {VERSION_NAMES[version]} '
        f"<b>{counts['pass']} of {checked}</b></h2>"
        f'<div class="bar" role="presentation">{bar}</div><ul class="key">{key}</ul></div>'
    )


def _filters(report: Report) -> str:
    counts = report.counts()
    buttons = [
        _button("outcome", _LOOKS[outcome][0], f"{_LOOKS[outcome][2]} <b>{counts[outcome]}</b>")
        for outcome in OUTCOMES
        if counts[outcome]
    ]
    buttons.append('<span class="gap"></span>')
    if len(report.versions) > 1:
        buttons += [_button("version", str(v), VERSION_NAMES[v]) for v in report.versions]
    return (
        f'<nav hidden aria-label="Filter"><form role="search">{"".join(buttons)}'
        '<input type="search" placeholder="Search: 3.1.2, will, retained …" '
        'aria-label="Search statements"></form></nav>'
    )


def _button(name: str, value: str, label: str) -> str:
    return (
        f'<button type="button" name="{name}" value="{value}" aria-pressed="false">{label}</button>'
    )


def _version(report: Report, version: int) -> str:
    results = [r for r in report.results if r.statement.version == version]
    chapters = groupby(results, key=lambda result: result.statement.chapter)
    return (
        f'<section class="version"><h2>MQTT {VERSION_NAMES[version]}</h2>'
        f"{''.join(_chapter(version, name, list(group)) for name, group in chapters)}</section>"
    )


def _chapter(version: int, chapter: str, results: list[Result]) -> str:
    passed = sum(result.outcome == "pass" for result in results)
    checked = passed + sum(result.is_bad for result in results)
    tally = f"{passed} of {checked}" if checked else "none checked"
    return (
        f'<section class="chapter"><h3>{escape(chapter_name(version, chapter))}'
        f'<span>{tally}</span></h3><div class="rows">{"".join(map(_row, results))}</div></section>'
    )


def _row(result: Result) -> str:
    look, sign, word = _LOOKS[result.outcome]
    statement = result.statement
    text = escape(result.sentence)
    if result.reason.strip():
        # For an error the last line of the traceback; the details have all of it.
        reason = result.reason.strip().splitlines()[-1 if result.outcome == "error" else 0]
        text += f'<span class="why">{escape(reason)}</span>'
    text += "".join(f'<span class="note">{escape(note)}</span>' for note in result.notes)
    line = (
        f'<span class="mark">{sign} {word}</span><span class="id">{statement.id}</span>'
        f'<span class="text">{text}</span>'
    )
    words = f"{statement.id} {result.sentence} {result.reason} {result.check}".lower()
    head = (
        f'<div class="row {look}" id="v{statement.version}-{statement.id}" data-outcome="{look}" '
        f'data-version="{statement.version}" data-words="{escape(words)}">'
    )
    if not result.is_bad:
        return f'{head}<div class="line">{line}</div></div>'
    return (
        f'{head}<details><summary class="line">{line}</summary>'
        f'<div class="more"><dl>{_details(result)}</dl></div></details></div>'
    )


def _details(result: Result) -> str:
    reason = escape(result.reason)
    shown = f"<pre>{reason}</pre>" if "\n" in result.reason else reason
    pairs = [("Found", shown)]
    if result.expected:
        pairs.append(("Expected", escape(result.expected)))
    if result.packet:
        cut = " …" * (len(result.packet) > HEX_MAX)
        label = "Sent" if result.was_sent else "Received"
        pairs.append((label, f"<code>{result.packet[:HEX_MAX].hex(' ')}{cut}</code>"))
        pairs.append(("Decoded", f"<code>{escape(result.decoded)}</code>"))
    if result.lines:
        pairs.append(("Exchange", _exchange(result.lines)))
    if result.check:
        pairs.append(("Check", f"<code>{escape(result.check)}</code>"))
    return "".join(f"<dt>{name}</dt><dd>{value}</dd>" for name, value in pairs)


def _exchange(lines: tuple[Line, ...]) -> str:
    rows = "".join(
        f'<tr><td class="time">{line.seconds:.3f}</td><td>{escape(line.client)}</td>'
        f"<td>{escape(_ARROWS[line.arrow])}</td><td>{escape(line.text)}"
        f'<span class="hex">{line.hex()}</span></td></tr>'
        for line in lines
    )
    return f'<div class="exchange"><table>{rows}</table></div>'


_ARROWS: Final = {"->": "→", "<-": "←", "--": ""}


def _foot(report: Report) -> str:
    return (
        "<footer><p>One line per normative statement, by its number in the OASIS standards; X "
        "rules are what the texts say without a number. The wording is the suite's own. "
        "<b>Not run</b>: the check needs something this run did not have. <b>Not testable</b>: "
        "the statement binds the client, or cannot be provoked from outside.</p>"
        f"<p>{escape(report.summary())}</p></footer>"
    )

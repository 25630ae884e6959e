"""The verdict as a web page: `report.html`, a single file that loads nothing from the network.

First the headline: did everything that existed before each crash exist after it? Then the twenty
invariants as a board, each with its witnesses, then the charts (`audit.report.sections`). The page
is complete without JavaScript; the script only shows chart values under the pointer and opens an
invariant when its tile is clicked. Names from clients are escaped, and a Content Security Policy
disarms any that were missed.
"""

import base64
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from importlib import resources
from typing import Final

from audit.report import coverage, sections
from audit.report.summary import Check, Look, Picture
from audit.report.text import count, duration, moment, plural, visible, when

SIZE_MAX: Final = 900_000  # bytes of the page; it shows fewer witnesses to fit
_WITNESSES: Final = (100, 25, 5, 1)  # shown per invariant; the first number that fits
_CELL_MAX: Final = 120  # characters of a witness's value

# Look -> (sign, word). The sign is for readers who cannot distinguish the colours.
_LOOKS: Final[dict[Look, tuple[str, str]]] = {
    "ok": ("✓", "ok"),
    "violated": ("✕", "violated"),
    "unknown": ("?", "unknown"),
    "idle": ("–", "not tested"),  # noqa: RUF001 # a dash is what it should look like
}
# The board's groups: title, short title, first letters of the ids.
_GROUPS: Final = (  # three rows of six, and one for brokers with external stores
    ("The history", "History", ("H",)),
    ("Messages: none lost", "Messages", ("L",)),
    ("Wills and retained messages", "Wills, retained", ("W", "R")),
    ("Deliveries: once, in order, in time", "Deliveries", ("D", "F", "O", "E")),
    ("Sessions: kept, ended when due, survived", "Sessions", ("S",)),
    ("Clean-up", "Clean-up", ("G",)),
    ("External stores", "Stores", ("B",)),
)


def render(picture: Picture) -> str:
    """Return the page; it stays below `SIZE_MAX` by showing fewer witnesses."""
    page = ""
    for witnesses_max in _WITNESSES:
        page = _page(picture, witnesses_max)
        if len(page.encode()) <= SIZE_MAX:
            break
    return page


def _page(picture: Picture, witnesses_max: int) -> str:
    script = _file("report.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = (
        "default-src 'none'; style-src 'unsafe-inline'; img-src data:; "
        f"script-src 'sha256-{digest}'"
    )
    title = f"Session audit: {picture.outcome}"
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        '<meta name="referrer" content="no-referrer">',
        '<link rel="icon" href="data:,">',
        f"<title>{escape(title)}</title>",
        f"<style>\n{_file('report.css')}</style></head><body>",
        '<a class="skip" href="#board">To the twenty invariants</a>',
        _hero(picture),
        "<main>",
        sections.lives(picture),
        _board(picture),
        coverage.table(picture, [(short, letters) for _, short, letters in _GROUPS]),
        _findings_of_checks(picture, witnesses_max),
        sections.pictures(picture),
        "</main>",
        _foot(picture),
        f"<script>{script}</script></body></html>",
    ]
    return "\n".join(part for part in parts if part) + "\n"


def _file(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text("utf-8")


def _hero(picture: Picture) -> str:
    headline = headline_of(picture)
    sign = _LOOKS[headline.look][0]
    # If nothing is wrong but nothing was tested either, the page is grey, not green.
    tone = headline.look if picture.outcome == "ok" else picture.outcome
    chip = "idle" if tone == "idle" else picture.outcome
    verdict = f"this run: {picture.outcome}" if picture.batches > 1 else picture.outcome
    facts = []
    if picture.from_us is not None and picture.to_us is not None:
        facts.append(_range(picture.from_us, picture.to_us))
    facts.append(plural(picture.events, "event"))
    facts.append(plural(picture.segments, "segment"))
    nodes = {boot.node for boot in picture.boots}
    if nodes:
        facts.append(plural(len(nodes), "broker"))
    if picture.details:
        facts.append(f"detail {escape(visible(', '.join(picture.details)))}")
    bar = "".join(
        f'<i class="{look}" style="flex:{number}"></i>'
        for look in _LOOKS
        if (number := sum(check.look == look for check in picture.checks))
    )
    meta = "".join(f"<span>{fact}</span>" for fact in facts)
    return (
        f'<header class="hero {tone}"><div class="inner">'
        f'<p class="small">Session audit of <b>{escape(visible(picture.title))}</b></p>'
        f'<h1><span class="sign {headline.look}" aria-hidden="true">{sign}</span>'
        f"<span>{escape(headline.text)}</span></h1>"
        f'<p class="below">{escape(headline.below)}</p>'
        f'<p class="verdict"><span class="chip {chip}">{verdict}</span> '
        f"{escape(summary_of(picture))}</p>"
        f'<div class="strip" aria-hidden="true">{bar}</div>'
        f'<p class="meta">{meta}</p></div></header>'
    )


def _range(from_us: int, to_us: int) -> str:
    begin, end = moment(from_us), moment(to_us)
    span = duration((to_us - from_us) / 1e6)
    if begin.date() == end.date():
        return f"{begin:%d %b %Y} {begin:%H:%M} to {end:%H:%M} UTC, {span}"
    return f"{begin:%d %b %Y %H:%M} to {end:%d %b %Y %H:%M} UTC, {span}"


@dataclass(frozen=True, slots=True)
class Headline:
    """The headline about S5, the main check of the audit, and one line below it."""

    look: Look
    text: str
    below: str


def headline_of(picture: Picture) -> Headline:
    """Return the headline, about all runs over this history together."""
    if not picture.events:
        return Headline(
            "idle", "There is nothing to audit", "The history holds no events in this time."
        )
    check = picture.check("S5")
    restarts = picture.restarts()
    crashes = sum(boot.end == "crash" for boot in restarts)
    times = _ends(crashes, len(restarts) - crashes)
    if check is None:
        return Headline(
            "idle", "Whether sessions survived was not checked", "S5 was left out of this run."
        )
    if check.outcome == "violated":
        return Headline(
            "violated",
            "Not everything that existed before a crash exists after it",
            _losses(picture, check, times),
        )
    checked, violated, unknown = check.earlier
    if violated:
        return Headline(
            "violated",
            "Not everything that existed before a crash existed after it",
            f"That is what earlier runs over this history found, {plural(violated, 'time')}. "
            "In what is new since, no more was lost.",
        )
    if check.outcome == "unknown":
        because = f": {check.reasons[0]}" if check.reasons else ": the history has gaps there."
        return Headline(
            "unknown", "Whether everything survived cannot be told", f"Over {times}{because}"
        )
    if not restarts:
        return Headline(
            "idle",
            "No crash, no restart: nothing had to survive one",
            "What a crash would have to give back was not put to the test in this time.",
        )
    if not check.checked + checked:
        return Headline(
            "idle",
            "No session had to survive a crash",
            f"Over {times} nothing was there that could have been lost.",
        )
    most = max((boot.sessions_before or 0 for boot in restarts), default=0)
    what = f"Up to {plural(most, 'session')}" if most else "What was known of them"
    but = f" {plural(unknown, 'thing')} could not be told by earlier runs." if unknown else ""
    return Headline(
        "ok",
        "What existed before each crash exists after it",
        f"{what} had to survive {times}; every one was found again, as it was.{but}",
    )


def _losses(picture: Picture, check: Check, times: str) -> str:
    """Return how much did not survive, and of how much if that is known."""
    restarts = picture.restarts()
    lost = max(sum(boot.lost for boot in restarts), check.violated)
    most = max((boot.sessions_before or 0 for boot in restarts), default=0)
    of = f" of up to {count(most)}" if most >= lost else ""
    return f"{plural(lost, 'session')}{of} not as before, over {times}."


def _ends(crashes: int, clean: int) -> str:
    parts = []
    if crashes or not clean:
        parts.append(plural(crashes, "crash", "crashes"))
    if clean:
        parts.append(plural(clean, "clean restart"))
    return " and ".join(parts)


def summary_of(picture: Picture) -> str:
    """Return the verdict in one sentence, worst first, then the findings of earlier runs."""
    violated = [check for check in picture.checks if check.look == "violated"]
    unknown = [check for check in picture.checks if check.look == "unknown"]
    idle = sum(check.look == "idle" for check in picture.checks)
    total = len(picture.checks)
    held = total - len(violated) - len(unknown) - idle
    if not total:
        return "No invariant was checked."
    if violated:
        text = f"{len(violated)} of {total} invariants violated: {_named(violated)}."
        if unknown:
            text += f" {plural(len(unknown), 'cannot', 'cannot')} be told."
    elif unknown or idle:
        parts = [f"{held} of {total} invariants hold{'s' * (held == 1)}"]
        if unknown:
            parts.append(f"cannot be told: {', '.join(check.id for check in unknown)}")
        if idle:
            parts.append(f"{idle} had nothing to check")
        text = "; ".join(parts) + "."
    else:
        text = f"All {total} invariants hold."
    earlier = [(check.id, check.earlier[1]) for check in picture.checks if check.earlier[1]]
    if earlier:
        named = ", ".join(f"{id} ({count(number)})" for id, number in earlier)
        text += f" Earlier runs over this history found violations: {named}."
    return text


def _named(violated: Sequence[Check]) -> str:
    return ", ".join(f"{check.id} ({count(check.violated)})" for check in violated)


def _board(picture: Picture) -> str:
    groups = []
    for title, _, letters in _GROUPS:
        tiles = [_tile(check) for check in picture.checks if check.id[0] in letters]
        if tiles:
            groups.append(
                f'<div class="group" style="--n:{len(tiles)}"><h3>{title}</h3>'
                f'<div class="tiles">{"".join(tiles)}</div></div>'
            )
    if not groups:
        return ""
    return (
        '<section id="board" aria-labelledby="board-title"><h2 id="board-title">'
        f"{_number(len(picture.checks))}</h2>"
        f'<div class="groups">{"".join(groups)}</div></section>'
    )


def _number(number: int) -> str:
    return "The twenty invariants" if number == 20 else plural(number, "invariant")


def _tile(check: Check) -> str:
    sign, word = _LOOKS[check.look]
    if check.outcome == "violated":
        figure = plural(check.violated, "time")
    elif check.outcome == "unknown":
        cases = check.unknown - check.untested
        where = "not recorded everywhere" if check.checked or cases else "not recorded"
        figure = where if check.untested else f"{count(cases)} open"
    elif check.checked:
        figure = f"{count(check.checked)} checked"
    else:
        figure = ""
    if check.earlier[1]:
        earlier = f"{plural(check.earlier[1], 'time')} violated before"
        figure = f"{figure}, {earlier}" if figure else earlier
    told = f" · {figure}" if figure else ""
    return (
        f'<a class="tile {check.look}" href="#{escape(check.id)}">'
        f'<span class="sign" aria-hidden="true">{sign}</span><b>{escape(check.id)}</b>'
        f'<span class="name">{escape(check.name[:1].upper() + check.name[1:])}</span>'
        f'<span class="figure"><span class="word">{word}</span>{told}</span></a>'
    )


def _findings_of_checks(picture: Picture, witnesses_max: int) -> str:
    if not picture.checks:
        return ""
    rows: dict[Look, list[str]] = {look: [] for look in _LOOKS}
    stained: list[str] = []  # hold in this run, but not in earlier runs
    for check in picture.checks:
        is_stained = check.earlier[1] and check.look in ("ok", "idle")
        (stained if is_stained else rows[check.look]).append(_row(check, witnesses_max))
    loud = "".join(rows["violated"] + rows["unknown"] + stained)
    title = "What is wrong, and what cannot be told" if loud else "What was checked"
    if loud:
        loud = f'<div class="rows">{loud}</div>'
    held = _folded(rows["ok"], "ok", "of them true, and what they say")
    held += _folded(rows["idle"], "idle", "with nothing to check in this run")
    return (
        f'<section aria-labelledby="what-title"><h2 id="what-title">{title}</h2>{loud}{held}'
        "</section>"
    )


def _folded(rows: Sequence[str], look: Look, which: str) -> str:
    """Return rows in a box that the reader can open."""
    if not rows:
        return ""
    return (
        f'<details class="held"><summary><span class="{look}">{_LOOKS[look][0]}</span> '
        f'{len(rows)} {which}</summary><div class="rows">{"".join(rows)}</div></details>'
    )


def _row(check: Check, witnesses_max: int) -> str:
    sign, word = _LOOKS[check.look]
    opened = " open" if check.outcome == "violated" else ""
    facts = [f"<dt>Checked</dt><dd>{count(check.checked)}</dd>"]
    if check.violated:
        facts.append(f"<dt>Violated</dt><dd>{count(check.violated)}</dd>")
    if check.unknown:
        facts.append(f"<dt>Unknown</dt><dd>{count(check.unknown)}</dd>")
    checked, violated, unknown = check.earlier
    if checked or violated or unknown:
        facts.append(
            f"<dt>Earlier runs</dt><dd>{count(checked)} checked, {count(violated)} violated, "
            f"{count(unknown)} unknown</dd>"
        )
    if check.reasons:
        reasons = "".join(f"<li>{escape(visible(reason))}</li>" for reason in check.reasons)
        facts.append(f"<dt>Because</dt><dd><ul>{reasons}</ul></dd>")
    return (
        f'<details class="row {check.look}" id="{escape(check.id)}"{opened}>'
        f'<summary><span class="mark">{sign} {word}</span><b class="id">{escape(check.id)}</b>'
        f'<span class="text">{escape(check.sentence)}</span></summary>'
        f'<div class="more"><dl>{"".join(facts)}</dl>{_witnesses(check, witnesses_max)}</div>'
        "</details>"
    )


def _witnesses(check: Check, witnesses_max: int) -> str:
    shown = check.witnesses[:witnesses_max]
    if not shown:
        return ""
    heads: list[str] = []
    for witness in shown:
        heads += [key for key in witness if key not in heads]
    heads.sort(key=lambda key: key != "what")  # first column: what happened
    heads = [key for key in heads if any(witness.get(key) is not None for witness in shown)]
    head = "".join(
        f'<th scope="col">{escape(visible(key).replace("_", " ")[:_CELL_MAX])}</th>'
        for key in heads
    )
    body = "".join(
        "<tr>" + "".join(_cell(witness.get(key)) for key in heads) + "</tr>" for witness in shown
    )
    total = max(check.violated + check.unknown, len(check.witnesses))
    more = (
        f'<p class="soft">{count(len(shown))} of {count(total)}; the others are in '
        "<code>violations/</code>.</p>"
        if total > len(shown)
        else ""
    )
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="Witnesses of {check.id}">'
        f'<table class="witnesses"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'
        f"</div>{more}"
    )


def _cell(value: object) -> str:
    if value is None:
        return "<td></td>"
    if isinstance(value, bool):
        return f"<td>{'yes' if value else 'no'}</td>"
    if isinstance(value, int | float):
        return f'<td class="number">{value}</td>'
    text = visible(str(value))
    if len(text) > _CELL_MAX:
        text = text[: _CELL_MAX - 1] + "…"
    kind = ' class="long"' if len(text) > 36 else ""
    return f"<td{kind}><bdi>{escape(text)}</bdi></td>"


def _foot(picture: Picture) -> str:
    took = f" in {duration(picture.seconds)}" if picture.seconds is not None else ""
    batches = f", {plural(picture.batches, 'run')} together" if picture.batches > 1 else ""
    return (
        f"<footer><p>Made {when(picture.made_us)} UTC{took}{batches}. "
        "<b>ok</b>: checked and true. <b>violated</b>: shown to be false, with witnesses. "
        "<b>unknown</b>: the history has a gap, an open end, or was not recorded in enough "
        "detail there; no violation. <b>not tested</b>: its status is ok, because nothing "
        "happened that could have broken it.</p></footer>"
    )

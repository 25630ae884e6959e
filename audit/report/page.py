"""The verdict as a web page: `report.html`, a single file that loads nothing from the network.

First the headline: did everything that existed before each crash exist after it? Then what to do
now, the invariants as a board, each with its witnesses and their stories, and the charts
(`audit.report.sections`). The page is complete without JavaScript, its choice of a broker as well;
the script only shows chart values under the pointer and opens an invariant when its tile is
clicked. Templates escape what clients chose, and a Content Security Policy disarms what was missed.
"""

import base64
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from markupsafe import Markup

from audit.report import advice, coverage, nodes, sections, trend
from audit.report.rendering import file
from audit.report.rendering import render as filled
from audit.report.summary import Check, Look, Picture, Story
from audit.report.text import count, duration, moment, plain, plural

SIZE_MAX: Final = 900_000  # bytes of the page; it shows fewer witnesses to fit
# Witnesses and stories shown per invariant; the first numbers that fit.
_SHOWN: Final = ((100, 20), (25, 20), (5, 5), (1, 0))
_CELL_MAX: Final = 120  # characters of a witness's value
_LONG: Final = 36  # characters of a value from which on it is broken into lines
_STEPS_MAX: Final = 6  # of what to do, the urgent ones first; the rest is named

# Look -> (sign, word). The sign is for readers who cannot distinguish the colours.
_LOOKS: Final[dict[Look, tuple[str, str]]] = {
    "ok": ("✓", "ok"),
    "violated": ("✕", "violated"),
    "unknown": ("?", "unknown"),
    "suppressed": ("~", "suppressed"),
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
    ("What clients saw", "Clients", ("C",)),
)


def render(picture: Picture) -> str:
    """Return the page; it stays below `SIZE_MAX` by showing fewer witnesses."""
    page = ""
    for witnesses_max, stories_max in _SHOWN:
        page = _page(picture, witnesses_max, stories_max)
        if len(page.encode()) <= SIZE_MAX:
            break
    return page


def _page(picture: Picture, witnesses_max: int, stories_max: int) -> str:
    script = file("report.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    names = nodes.of(picture)
    steps = advice.steps(picture)
    return str(
        filled(
            "page",
            picture=picture,
            script=Markup(script),
            style=Markup(file("report.css") + nodes.rules(names)),
            policy="default-src 'none'; style-src 'unsafe-inline'; img-src data:; "
            f"script-src 'sha256-{digest}'",
            hero=_hero(picture),
            nodes=names,
            steps=steps[:_STEPS_MAX],
            steps_left=steps[_STEPS_MAX:],
            lives=sections.lives(picture),
            board=_board(picture),
            board_title=_number(len(picture.checks)),
            trend=trend.section(picture),
            coverage=coverage.table(picture, [(short, letters) for _, short, letters in _GROUPS]),
            checks=_rows(picture, witnesses_max, stories_max),
            marks=nodes.classes(picture),
            pictures=sections.pictures(picture),
            signs=_LOOKS,
            foot=_foot(picture),
        )
    )


def _hero(picture: Picture) -> dict[str, Any]:
    headline = headline_of(picture)
    # If nothing is wrong but nothing was tested either, the page is grey, not green.
    tone = headline.look if picture.outcome == "ok" else picture.outcome
    facts = []
    if picture.from_us is not None and picture.to_us is not None:
        facts.append(_range(picture.from_us, picture.to_us))
    facts.append(plural(picture.events, "event"))
    facts.append(plural(picture.segments, "segment"))
    brokers = {boot.node for boot in picture.boots}
    if brokers:
        facts.append(plural(len(brokers), "broker"))
    if picture.details:
        facts.append(f"detail {plain(', '.join(picture.details))}")
    return {
        "headline": headline,
        "sign": _LOOKS[headline.look][0],
        "tone": tone,
        "chip": "idle" if tone == "idle" else picture.outcome,
        "verdict": f"this run: {picture.outcome}" if picture.batches > 1 else picture.outcome,
        "summary": summary_of(picture),
        "bar": [
            (look, number)
            for look in _LOOKS
            if (number := sum(check.look == look for check in picture.checks))
        ],
        "facts": facts,
    }


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
    quiet = [check for check in picture.checks if check.suppressed]
    held = total - len(violated) - len(unknown) - idle
    held -= sum(check.look == "suppressed" for check in picture.checks)
    if not total:
        return "No invariant was checked."
    if violated:
        text = f"{len(violated)} of {total} invariants violated: {_named(violated)}."
        if unknown:
            text += f" {plural(len(unknown), 'cannot', 'cannot')} be told."
    elif unknown or idle or quiet:
        parts = [f"{held} of {total} invariants hold{'s' * (held == 1)}"]
        if unknown:
            parts.append(f"cannot be told: {', '.join(check.id for check in unknown)}")
        if idle:
            parts.append(f"{idle} had nothing to check")
        text = "; ".join(parts) + "."
    else:
        text = f"All {total} invariants hold."
    if quiet:
        named = ", ".join(f"{check.id} ({count(check.suppressed)})" for check in quiet)
        text += f" Suppressed, with a reason: {named}."
    earlier = [(check.id, check.earlier[1]) for check in picture.checks if check.earlier[1]]
    if earlier:
        named = ", ".join(f"{id} ({count(number)})" for id, number in earlier)
        text += f" Earlier runs over this history found violations: {named}."
    return text


def _named(violated: Sequence[Check]) -> str:
    return ", ".join(
        f"{check.id} ({count(check.violated - check.suppressed)})" for check in violated
    )


def _board(picture: Picture) -> list[dict[str, Any]]:
    """Return the groups of tiles."""
    groups = [
        {
            "title": title,
            "tiles": [
                {"check": check, "figure": _figure(check)}
                for check in picture.checks
                if check.id[0] in letters
            ],
        }
        for title, _, letters in _GROUPS
    ]
    return [group for group in groups if group["tiles"]]


def _number(number: int) -> str:
    return "The twenty invariants" if number == 20 else plural(number, "invariant")


def _figure(check: Check) -> str:
    """Return the number that a tile tells."""
    if check.outcome == "violated":
        figure = plural(check.violated - check.suppressed, "time")
    elif check.outcome == "unknown":
        cases = check.unknown - check.untested
        where = "not recorded everywhere" if check.checked or cases else "not recorded"
        figure = where if check.untested else f"{count(cases)} open"
    elif check.checked:
        figure = f"{count(check.checked)} checked"
    else:
        figure = ""
    if check.suppressed:
        figure += f", {plural(check.suppressed, 'time')} suppressed"
    if check.earlier[1]:
        earlier = f"{plural(check.earlier[1], 'time')} violated before"
        figure = f"{figure}, {earlier}" if figure else earlier
    return figure.removeprefix(", ")


def _rows(picture: Picture, witnesses_max: int, stories_max: int) -> dict[str, Any]:
    """Return the invariants: those that need a reader, and the others in boxes."""
    rows: dict[Look, list[dict[str, Any]]] = {look: [] for look in _LOOKS}
    stained: list[dict[str, Any]] = []  # hold in this run, but not in earlier runs
    for check in picture.checks:
        told = [story for story in picture.stories if story.invariant == check.id]
        row = _row(check, told[:stories_max], witnesses_max)
        is_stained = check.earlier[1] and check.look in ("ok", "idle")
        (stained if is_stained else rows[check.look]).append(row)
    loud = [*rows["violated"], *rows["unknown"], *rows["suppressed"], *stained]
    return {
        "title": "What is wrong, and what cannot be told" if loud else "What was checked",
        "loud": loud,
        "folded": [
            (rows["ok"], "ok", "of them true, and what they say"),
            (rows["idle"], "idle", "with nothing to check in this run"),
        ],
    }


def _row(check: Check, told: Sequence[Story], witnesses_max: int) -> dict[str, Any]:
    facts = [("Checked", count(check.checked))]
    if check.violated:
        facts.append(("Violated", count(check.violated)))
    if check.suppressed:
        facts.append(("Suppressed", f"{count(check.suppressed)} of them"))
    if check.unknown:
        facts.append(("Unknown", count(check.unknown)))
    if any(check.earlier):
        checked, violated, unknown = map(count, check.earlier)
        words = f"{checked} checked, {violated} violated, {unknown} unknown"
        facts.append(("Earlier runs", words))
    return {
        "check": check,
        "facts": facts,
        "stories": [(story, _what(check, story.number)) for story in told],
        "table": _witnesses(check, witnesses_max),
    }


def _what(check: Check, number: int) -> str:
    """Return what a witness says went wrong, "" if it is not among those of the page."""
    if number >= len(check.witnesses):
        return ""
    return plain(check.witnesses[number].get("what", "")).replace("_", " ")


def _witnesses(check: Check, witnesses_max: int) -> dict[str, Any] | None:
    shown = check.witnesses[:witnesses_max]
    if not shown:
        return None
    heads: list[str] = []
    for witness in shown:
        heads += [key for key in witness if key not in heads]
    heads.sort(key=lambda key: key != "what")  # first column: what happened
    heads = [key for key in heads if any(witness.get(key) is not None for witness in shown)]
    return {
        "heads": [plain(key.replace("_", " "), _CELL_MAX) for key in heads],
        "rows": [
            (advice.node_of(witness), [_cell(witness, key) for key in heads]) for witness in shown
        ],
        "shown": len(shown),
        "total": max(check.violated + check.unknown, len(check.witnesses)),
    }


def _cell(witness: Mapping[str, object], key: str) -> tuple[str, str]:
    """Return (class, text) of a value."""
    value = witness.get(key)
    if value is None:
        return "", ""
    if isinstance(value, bool):
        return "", "yes" if value else "no"
    if isinstance(value, int | float):
        return "number", str(value)
    if isinstance(value, Mapping):  # a place
        value = ", ".join(f"{name} {inner}" for name, inner in value.items())
    text = plain(value, _CELL_MAX)
    return "long" if len(text) > _LONG else "", text


def _foot(picture: Picture) -> str:
    """Return how and when the page was made."""
    took = f" in {duration(picture.seconds)}" if picture.seconds is not None else ""
    return took + (f", {plural(picture.batches, 'run')} together" if picture.batches > 1 else "")

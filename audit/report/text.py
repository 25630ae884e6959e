"""Format numbers, times and names for the page, safely. Pure.

Names come from clients of the broker: they may contain markup, control characters or right-to-left
text, and be 64 KiB long. `name` makes them harmless and short.
"""

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

from markupsafe import Markup

NAME_MAX: Final = 80  # characters of a name that are shown
PLAIN_MAX: Final = 400  # characters of a sentence that names something
_BYTES: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
_COMPACT: Final = ("", "k", "M", "G", "T", "P")
# Invisible or direction-changing characters that `str.isprintable` lets through or that would
# disturb the text around them.
_HIDDEN: Final = frozenset(
    "\u200b\u200e\u200f\u2028\u2029\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\ufeff"
)


def visible(text: str) -> str:
    """Return `text` with every invisible character replaced by a visible one."""
    if text.isprintable() and not _HIDDEN.intersection(text):
        return text
    return "".join(_shown(character) for character in text)


def _shown(character: str) -> str:
    code = ord(character)
    if code < 0x20:
        return chr(0x2400 + code)  # the control pictures of Unicode
    if code == 0x7F:
        return "\u2421"
    if character == " " or (character.isprintable() and character not in _HIDDEN):
        return character
    return "\ufffd"


def name(text: str, *, empty: str = "(none)") -> Markup:
    """Return a client's name as HTML: escaped, direction isolated, cut if long."""
    if not text:
        return Markup('<span class="none">{}</span>').format(empty)
    shown = visible(text)
    if len(shown) <= NAME_MAX:
        return Markup("<bdi>{}</bdi>").format(shown)
    short = f"{shown[: NAME_MAX - 1]}…"
    return Markup('<bdi title="{}">{}</bdi>').format(shown[:1024], short)


def plain(text: object, most: int = PLAIN_MAX) -> str:
    """Return text from outside on one line, harmless and cut if long; a template escapes it."""
    shown = visible(str(text))
    return shown if len(shown) <= most else f"{shown[: most - 1]}…"


def json_text(value: object) -> str:
    """Return a value as compact JSON, for an attribute."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def count(number: int) -> str:
    """Return 1234567 as 1,234,567."""
    return f"{number:,}"


def compact(number: float) -> str:
    """Return 1234567 as 1.2M, for axes with little room."""
    size = abs(number)
    step = 0
    while size >= 999.5 and step < len(_COMPACT) - 1:
        size /= 1000
        number /= 1000
        step += 1
    digits = 0 if step == 0 and float(number).is_integer() else (1 if size < 9.95 else 0)
    text = f"{number:.{digits}f}"
    if "." in text:
        text = text.rstrip("0").rstrip(".")
    return text + _COMPACT[step]


def size(number: float) -> str:
    """Return a number of bytes with its unit."""
    value = float(number)
    step = 0
    while abs(value) >= 1023.5 and step < len(_BYTES) - 1:
        value /= 1024
        step += 1
    digits = 0 if step == 0 or abs(value) >= 99.5 else 1
    return f"{value:,.{digits}f} {_BYTES[step]}"


def duration(seconds: float) -> str:
    """Return a duration in the unit that fits it best."""
    if seconds < 0:
        return f"-{duration(-seconds)}"
    for limit, factor, unit in (
        (0.9995e-3, 1e6, "µs"),
        (0.9995, 1e3, "ms"),
        (119.5, 1, "s"),
        (7170, 1 / 60, "min"),
        (172_000, 1 / 3600, "h"),
    ):
        if seconds < limit:
            return _short(seconds * factor, 1 if factor < 1 else 2) + f" {unit}"
    return _short(seconds / 86400, 1) + " d"


def _short(value: float, digits: int) -> str:
    digits = 0 if value >= 99.5 else 1 if value >= 9.95 else digits
    text = f"{value:,.{digits}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def moment(at_us: int) -> datetime:
    """Return microseconds since 1970 as a time in UTC."""
    seconds, micros = divmod(at_us, 1_000_000)
    return datetime.fromtimestamp(seconds, UTC).replace(microsecond=micros)


def when(at_us: int) -> Markup:
    """Return a time to the second as an HTML `time` element."""
    at = moment(at_us)
    shown = f"{at:%Y-%m-%d %H:%M:%S}"
    return Markup('<time datetime="{}">{}</time>').format(at.isoformat(), shown)


def plural(number: int, one: str, many: str | None = None) -> str:
    """Return the number with its noun: 1 session, 2 sessions."""
    return f"{count(number)} {one if number == 1 else many or one + 's'}"


_UNTESTED: Final = {
    "lowered": "only 1 message in {sample} was recorded",
    "sessions": "single messages were not recorded",
    "nothing": "nothing was recorded",
}


def untested_words(span: Mapping[str, Any]) -> str:
    """Return a span of verdict.json as plain text: broker, time, what was not recorded, why."""
    begin, end = (datetime.fromisoformat(span[name]) for name in ("from", "to"))
    last = f"{end:%H:%M:%S}" if begin.date() == end.date() else f"{end:%Y-%m-%d %H:%M:%S}"
    what = _UNTESTED[span["recorded"]].format(**span)
    return f"{span['node']}, {begin:%Y-%m-%d %H:%M:%S} to {last} UTC: {what} ({span['reason']})"


def chain_words(document: Mapping[str, Any]) -> list[str]:
    """Return what a verdict says of the chain of segments that is no violation, as plain text."""
    facts = document["invariants"].get("H1", {}).get("facts", {}).get("chain", {})
    lines = []
    if without := facts.get("not_chained", 0):
        total = without + facts["chained"]
        lines.append(f"not chained: {without} of {total} segments: {_few(facts, 'not_chained')}")
    if unread := facts.get("not_read", 0):
        lines.append(f"the chain of {unread} segments was not read: they are on no local disk")
    if facts.get("unproven_files"):
        lines.append(
            "the chain proves nothing behind a damaged or copied segment: "
            + _few(facts, "unproven")
        )
    for ahead in facts.get("witness_ahead", []):
        first, last = ahead["from"], ahead["to"]
        lines.append(
            f"{visible(ahead['node'])}, boot {first['boot']}, events {first['seq']} to "
            f"{last['seq']}: {ahead['what']}"
        )
    return lines


def _few(facts: Mapping[str, Any], what: str) -> str:
    """Return the first file, and whether there are more."""
    first, *others = facts[f"{what}_files"]
    return visible(first) + (" ..." if others else "")

"""Names and texts that clients chose, made safe to look at.

Client ids, topics, user names and payloads are any Unicode, up to 65,535 bytes: controls, marks
that turn the direction of what follows, a hundred accents on one letter. Pure; what is returned is
HTML that needs no further escaping. Must never return a character that is not printable. Read
next: `broker.admin.pages.words.links`.
"""

import unicodedata
from collections.abc import Iterator
from typing import Final

from markupsafe import Markup, escape

from broker.admin.pages.words.amounts import NONE

SHOWN_MAX: Final = 96  # characters of a name in a table
WHOLE_MAX: Final = 2000  # characters of a name on its own page
TITLE_MAX: Final = 400  # characters of what a pointer that rests on a name shows
MARKS_MAX: Final = 2  # accents on one letter; further ones would run into other lines
MARKS: Final = frozenset({"Mn", "Me"})
ELLIPSIS: Final = "…"
_MORE: Final = Markup('<span class="more">…</span>')


def plain(text: str, most: int = TITLE_MAX) -> str:
    """Return the beginning of a text with everything escaped that is not printable. No HTML."""
    shown = "".join(piece for piece, _ in _pieces(text, most))
    return f"{shown}{ELLIPSIS}" if _is_cut(text, most) else shown


def name(text: str | None, most: int = SHOWN_MAX) -> Markup:
    """Return a name as HTML that keeps its direction and its odd characters to itself."""
    if text is None:
        return Markup('<span class="none">{}</span>').format(NONE)
    if not text:
        return Markup('<span class="none">(empty)</span>')
    return Markup('<bdi class="name"{}>{}</bdi>').format(_title(text, most), _body(text, most))


def whole(text: str) -> Markup:
    """Return a name as long as a page of its own has room for."""
    return name(text, WHOLE_MAX)


def body(text: str, most: int) -> Markup:
    """Return a text of several lines: its line ends stay."""
    made = []
    for line in text[:most].replace("\r\n", "\n").split("\n"):
        made.append(_html(_pieces(line, most)))
    more = _MORE if len(text) > most else Markup("")
    return Markup("\n").join(made) + more


def _title(text: str, most: int) -> Markup:
    """Return the attribute that tells more than there is room for."""
    if not _is_cut(text, most):
        return Markup("")
    size = len(text.encode(errors="replace"))
    return Markup(' title="{}"').format(f"{plain(text)} ({size:,} bytes)")


def _body(text: str, most: int) -> Markup:
    return _html(_pieces(text, most)) + (_MORE if _is_cut(text, most) else Markup(""))


def _html(pieces: Iterator[tuple[str, bool]]) -> Markup:
    return Markup("").join(
        Markup('<span class="esc">{}</span>').format(piece) if is_escape else escape(piece)
        for piece, is_escape in pieces
    )


def _is_cut(text: str, most: int) -> bool:
    """Return whether a text is longer than so many characters, its odd ones escaped."""
    return len(text) > most or sum(len(piece) for piece, _ in _pieces(text, len(text) * 10)) > most


def _pieces(text: str, most: int) -> Iterator[tuple[str, bool]]:
    """Yield runs of the text, as they are or escaped, up to about so many characters."""
    run: list[str] = []
    was_escape = False
    marks = shown = 0
    for character in text:
        marks = marks + 1 if unicodedata.category(character) in MARKS else 0
        is_escape = not character.isprintable() or marks > MARKS_MAX
        if is_escape != was_escape and run:
            yield "".join(run), was_escape
            run = []
        was_escape = is_escape
        run.append(_escaped(character) if is_escape else character)
        shown += len(run[-1])
        if shown >= most:
            break
    if run:
        yield "".join(run), was_escape


def _escaped(character: str) -> str:
    return character.encode("unicode_escape", "surrogatepass").decode("ascii")

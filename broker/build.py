"""Which build of Holdfast this is: compiled, or pure Python, and why.

Asks the import system which of the two it would load; the reason is in `build.txt` beside this
file, which `hatch_build.py` puts into every wheel. Must not import the engine: the command line
stays quick. Read next: `hatch_build.py`.
"""

from importlib.machinery import EXTENSION_SUFFIXES
from importlib.util import find_spec
from pathlib import Path
from typing import Final

COMPILED: Final = "compiled"
PURE: Final = "pure"

NOTE: Final = Path(__file__).with_name("build.txt")
FELL_BACK: Final = "fallback"  # the note's first word where nobody asked for pure Python
SOURCES: Final = "run from its sources"


class Build:
    """What is installed here."""

    __slots__ = ("fell_back", "kind", "why")

    def __init__(self, kind: str, why: str, *, fell_back: bool = False) -> None:
        self.kind: str = kind  # COMPILED or PURE
        self.why: str = why  # what compiled it, or why it is not compiled
        self.fell_back: bool = fell_back  # pure Python though nobody asked for it

    def __str__(self) -> str:
        """Return it as the version line and the log say it."""
        return f"{'compiled' if self.kind == COMPILED else 'pure Python'} ({self.why})"


def find(module: str = "session.engine", note: Path = NOTE) -> Build:
    """Return which build the import system would load `module` from."""
    spec = find_spec(module)
    origin = (spec.origin if spec else None) or ""
    try:
        word, _, why = note.read_text(encoding="utf-8").strip().partition(" ")
    except FileNotFoundError:  # a checkout, or an editable installation of one
        word, why = "", ""
    if origin.endswith(tuple(EXTENSION_SUFFIXES)):
        return Build(COMPILED, why or "of unknown origin")
    if word == COMPILED:
        return Build(PURE, "its extension modules are for another Python", fell_back=True)
    return Build(PURE, why or SOURCES, fell_back=word == FELL_BACK)

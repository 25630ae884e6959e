"""The list of all statements: id, section, whom it binds, can a broker be tested for it.

The two files beside this one are the list; `load` reads them. What a statement asks for is said by
the docstring of its check, in the files only where there is none. All wording is our own: the ids
lead to the text that counts.
"""

import dataclasses
import functools
from importlib import resources
from typing import Final

VERSIONS: Final = (4, 5)
VERSION_NAMES: Final = {4: "3.1.1", 5: "5.0"}
_FILES: Final = {4: "mqtt311.tsv", 5: "mqtt50.tsv"}


@dataclasses.dataclass(frozen=True)
class Statement:
    """One numbered statement, or one X-rule (what a text says without a number)."""

    id: str
    version: int
    section: str
    binds: str  # server, client or both
    testable: str  # yes; indirect = by the broker's reaction or configuration; no
    sentence: str  # empty where a check says it

    @property
    def key(self) -> tuple[int, str]:
        """Version and id: unique."""
        return self.version, self.id

    @property
    def chapter(self) -> str:
        """The top two levels of the section, to group by: "3.1", or "X"."""
        return ".".join(self.section.split()[0].split(".")[:2])


@functools.cache
def load(version: int) -> tuple[Statement, ...]:
    """Return the statements of a version (4 or 5) in the order of the text, X-rules last."""
    text = resources.files(__package__).joinpath(_FILES[version]).read_text("utf-8")
    lines = [line.split("\t") for line in text.splitlines() if not line.startswith("#")]
    return tuple(
        Statement(identifier, version, section, binds, testable, sentence)
        for identifier, section, binds, testable, sentence in lines
    )

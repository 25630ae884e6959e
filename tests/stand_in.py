"""Replaces functions of a library for one of our modules, and for nobody else.

A patched `time.sleep` is another one for every thread of the process: for those of Spark, of
pytest, of a test before. A module of ours that says `os.link` finds `os` in its own names, and
there a stand-in for `os` can be put.
"""

from types import ModuleType
from typing import Any

import pytest


class StandIn:
    """A module, but for some of its names."""

    def __init__(self, real: Any, others: dict[str, Any]) -> None:
        self.__dict__.update(others)
        self._real = real

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


def replace_in(patch: pytest.MonkeyPatch, module: ModuleType, library: str, **others: Any) -> None:
    """Let `module` find `others` in the library that it knows as `library`, until `patch` ends."""
    patch.setattr(module, library, StandIn(getattr(module, library), others))

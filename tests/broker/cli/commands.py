"""The command `holdfast` in a process of its own, and what it leaves."""

import subprocess
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parents[3]
Run = Callable[..., subprocess.CompletedProcess[str]]


def complaint(result: subprocess.CompletedProcess[str], exit_code: int) -> str:
    """Return the one line a failed command left on stderr."""
    assert result.returncode == exit_code, result.stderr
    assert result.stdout == ""
    (line,) = result.stderr.splitlines()
    assert line.startswith("holdfast: ")
    return line

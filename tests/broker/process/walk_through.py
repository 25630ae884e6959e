"""The walk-throughs of docs/backends.md: their blocks, and their commands in a shell."""

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import pytest

from tests.durability.process import ROOT, BrokerProcess

TEXT: Final = (ROOT / "docs" / "backends.md").read_text()
PATIENCE_S: Final = 120.0  # some of the programs are in Python, and the machine may be busy
needs_mosquitto: Final = pytest.mark.skipif(
    shutil.which("mosquitto_sub") is None, reason="Debian's mosquitto-clients is not installed"
)


def block(name: str) -> str:
    """Return a block of the documents."""
    pattern = rf"^<!-- walk-through: {name} -->\n```\w+\n(.*?)^```$"
    found = re.search(pattern, TEXT, re.MULTILINE | re.DOTALL)
    assert found, f"docs/backends.md has no walk-through {name} any more"
    return found[1]


def play(
    script: str, directory: Path, broker: BrokerProcess, programs: Mapping[str, str]
) -> list[str]:
    """Run commands; return the words that they print.

    `programs` are lines of a shell, by the names under which the commands know them; mosquitto's
    clients go to the broker.
    """
    places, defaults = directory / "bin", directory / "options"
    for each in (places, defaults):
        each.mkdir(exist_ok=True)
    for name, line in programs.items():
        (places / name).write_text(f"#!/bin/sh\n{line}\n")
        (places / name).chmod(0o755)
    for name in ("mosquitto_sub", "mosquitto_pub"):
        (defaults / name).write_text(f"-h 127.0.0.1\n-p {broker.port}\n")
    result = subprocess.run(
        ["bash", "-e", "-c", script],
        env={
            **os.environ,
            "PATH": f"{places}:{os.environ['PATH']}",
            "XDG_CONFIG_HOME": str(defaults),
        },
        cwd=broker.directory,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout.split()

"""The README's minute with kill -9, its lines taken from the file and run as they are."""

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from tests.clients.conversation import PATIENCE_SECONDS
from tests.durability.process import free_port

ROOT: Final = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.skipif(
    shutil.which("mosquitto_sub") is None, reason="Debian's mosquitto-clients is not installed"
)


def demo() -> str:
    """Return the commands of the README's demonstration."""
    text = (ROOT / "README.md").read_text()
    found = re.search(r"^<!-- demo:.*?-->\n```sh\n(.*?)^```$", text, flags=re.M | re.S)
    assert found, "README.md has no demonstration any more"
    return found[1]


def prepare(directory: Path) -> dict[str, str]:
    """Put a scripts/run of this test into `directory`; return an environment with another port."""
    port = str(free_port())
    starter = directory / "scripts" / "run"
    starter.parent.mkdir()
    # A first start takes as long as pip does; this one takes long enough to be missed.
    start = f'exec "{sys.executable}" -m broker serve "$@" >>log 2>&1'
    starter.write_text(f"#!/bin/sh\nsleep 1\n{start}\n")
    starter.chmod(0o755)
    options = directory / "options"  # where mosquitto's clients look for defaults
    options.mkdir()
    for program in ("mosquitto_sub", "mosquitto_pub"):
        (options / program).write_text(f"-h 127.0.0.1\n-p {port}\n")
    return {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "XDG_CONFIG_HOME": str(options),
        "HOLDFAST__LISTENER__PORT": port,
        "HOLDFAST__METRICS__PORT": "0",
    }


def test_the_demonstration_in_the_readme_works(tmp_path: Path) -> None:
    environment = prepare(tmp_path)
    shell = subprocess.Popen(
        ["bash", "-c", demo()],
        cwd=tmp_path,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = shell.communicate(timeout=PATIENCE_SECONDS)
    except subprocess.TimeoutExpired:
        output = ""
    finally:
        os.killpg(shell.pid, signal.SIGKILL)  # the second broker, and whatever hangs
        shell.communicate()
    assert output.splitlines() == ["set sail", "heave to"]

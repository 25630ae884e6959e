"""How a module of ours is started in a process of its own.

The new process must import the very packages this one runs, whatever its working directory or the
site-packages hold under the same names. Read next: `holdfast_mqtt`, which does it for the command.
"""

import os
import sys
from pathlib import Path
from typing import Final

PACKAGES: Final = Path(__file__).resolve().parents[1]  # the folder that holds our packages


def command(module: str) -> list[str]:
    """Return the command line that runs `module`, arguments to be added."""
    return [sys.executable, "-P", "-m", module]  # -P: not from the working directory


def environment() -> dict[str, str]:
    """Return our environment with our packages in front of all others."""
    path = filter(None, (str(PACKAGES), os.environ.get("PYTHONPATH", "")))
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path)}

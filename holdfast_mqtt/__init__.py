"""The distribution holdfast-mqtt: the one name it puts at the top of site-packages.

Our packages (`broker`, `mqtt` ...) have names that other distributions use too, so an installation
keeps them in a folder of their own, and only processes of ours have it on their path: in front, so
that no other package of such a name is taken instead. Read next: `broker.own_process`, which starts
further processes in the same way.
"""

import sys
from pathlib import Path
from typing import Final

__all__ = ["PACKAGES", "main"]

_HERE: Final = Path(__file__).resolve().parent
_INSTALLED: Final = _HERE / "packages"

# The folder that holds our packages. In a checkout they are beside this one.
PACKAGES: Final = _INSTALLED if _INSTALLED.is_dir() else _HERE.parent


def main() -> int:
    """Run the command `holdfast` with the arguments of this process; return its exit status."""
    sys.path.insert(0, str(PACKAGES))
    from broker.__main__ import main as command

    return command()

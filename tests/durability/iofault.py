"""Build and control the I/O fault shim (iofault.c).

    shim = build(tmp_path)                                 # skips the test where there is no cc
    faults = Faults(shim, tmp_path / "faults")
    process = subprocess.Popen(..., env=os.environ | faults.environment())
    faults.set("mode=delay ops=fdatasync path=/db/ ms=300")    # from now on
    faults.set("mode=eio ops=write,fdatasync path=.log nth=3 times=1")
    faults.clear()

A rule is `mode=eio|enospc|delay|kill ops=...|all [path=SUBSTRING] [nth=N] [times=N] [ms=N] [at=N]`.
Of the calls that match ops (write, pwrite, fsync, fdatasync, open for writing, rename; pread is not
in `all`) and path, and read byte `at` of the file if that is given, it faults `times` calls (0:
all) from the nth on. For `drop`, see powercut.py.
"""

import os
import shutil
import subprocess
from pathlib import Path
from typing import Final

import pytest

SOURCE: Final = Path(__file__).with_name("iofault.c")


def build(directory: Path) -> Path:
    """Compile the shim into `directory`; skip the test if that is not possible."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler for the I/O fault shim")
    library = directory / "iofault.so"
    command = [compiler, "-O2", "-Wall", "-Wextra", "-shared", "-fPIC", "-o", str(library)]
    subprocess.run([*command, str(SOURCE), "-ldl", "-lpthread"], check=True)
    return library


class Faults:
    """The rules of one process (or of several with the same environment)."""

    def __init__(self, shim: Path, control: Path, *, side: Path | None = None) -> None:
        """Keep the paths: `control` holds the rules; `side` turns on `drop`, which writes it."""
        self.shim = shim
        self.control = control
        self.side = side

    def environment(self, *fixed: str) -> dict[str, str]:
        """Return the variables for the process; `fixed` rules always apply."""
        variables = {"LD_PRELOAD": str(self.shim), "HOLDFAST_IOFAULT_CONTROL": str(self.control)}
        if self.side is not None:
            variables["HOLDFAST_IOFAULT_SIDE"] = str(self.side)
            fixed = (*fixed, "mode=drop")
        if fixed:
            variables["HOLDFAST_IOFAULT"] = ";".join(fixed)
        return variables

    def set(self, *rules: str) -> None:
        """Replace the rules; their counts start at the process's next call."""
        # By rename: the shim never reads half a file, and sees a new inode each time.
        new = self.control.with_suffix(".new")
        new.write_text("\n".join(rules))
        os.replace(new, self.control)

    def clear(self) -> None:
        """Let every call through again."""
        self.set()

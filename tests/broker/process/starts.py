"""What a process has logged and imported, says if it cannot start, and does without pyarrow."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

from tests.durability.process import ROOT, BrokerProcess


def refused(broker: BrokerProcess, **environment: str) -> str:
    """Start a second process with this one's settings and return the one line it dies with."""
    result = subprocess.run(
        [sys.executable, "-m", "broker", "serve", "-p", str(broker.port)],
        env={
            **os.environ,
            **broker.env,
            "HOLDFAST__STORAGE__DATA_DIR": str(broker.data_dir),
            **environment,
        },
        cwd=broker.directory,
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert result.returncode == 1, result.stderr
    assert result.stdout == ""
    (line,) = result.stderr.splitlines()
    assert line.startswith("holdfast: ")
    return line


def events(broker: BrokerProcess) -> dict[str, dict[str, object]]:
    """Return the last log line of every event of the present start."""
    lines = [json.loads(line) for line in broker.log().splitlines()]
    return {line["event"]: line for line in lines}


def hide_pyarrow(broker: BrokerProcess, directory: Path) -> None:
    """Let the next start find no pyarrow, as where the extra `history` is not installed."""
    _begin_with(
        broker,
        directory,
        "import sys\n"
        "class Hide:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.partition('.')[0] == 'pyarrow':\n"
        "            raise ModuleNotFoundError(f'No module named {name!r}')\n"
        "sys.meta_path.insert(0, Hide())\n",
    )


def watch_imports(
    broker: BrokerProcess, directory: Path, modules: Iterable[str]
) -> Callable[[], dict[int, set[str]]]:
    """Return a function that tells which of these modules the processes of the next start import.

    By process id: of the broker's own process and of those that it starts.
    """
    told = directory / "imports"
    told.touch()
    _begin_with(
        broker,
        directory,
        "import os, sys\n"
        f"told = os.open({str(told)!r}, os.O_WRONLY | os.O_APPEND)\n"
        "def watch(event, arguments):\n"
        f"    if event == 'import' and arguments[0] in {set(modules)!r}:\n"
        "        os.write(told, f'{os.getpid()} {arguments[0]}\\n'.encode())\n"
        "sys.addaudithook(watch)\n",
    )

    def imported() -> dict[int, set[str]]:
        found: dict[int, set[str]] = {}
        for line in told.read_text().splitlines():
            pid, module = line.split()
            found.setdefault(int(pid), set()).add(module)
        return found

    return imported


def _begin_with(broker: BrokerProcess, directory: Path, code: str) -> None:
    """Let the next start, and the processes of it, run this code before anything else."""
    place = directory / "before"
    place.mkdir()
    (place / "sitecustomize.py").write_text(code)
    broker.env["PYTHONPATH"] = os.pathsep.join((str(place), str(ROOT)))

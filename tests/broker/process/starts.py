"""What a broker process has logged, what one that cannot start says, and one without pyarrow."""

import json
import os
import subprocess
import sys
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
    hidden = directory / "hidden"
    hidden.mkdir()
    (hidden / "sitecustomize.py").write_text(
        "import sys\n"
        "class Hide:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.partition('.')[0] == 'pyarrow':\n"
        "            raise ModuleNotFoundError(f'No module named {name!r}')\n"
        "sys.meta_path.insert(0, Hide())\n"
    )
    broker.env["PYTHONPATH"] = os.pathsep.join((str(hidden), str(ROOT)))

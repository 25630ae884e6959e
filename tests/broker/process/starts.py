"""What a broker process has logged, and what one that cannot start says."""

import json
import os
import subprocess
import sys

from tests.durability.process import BrokerProcess


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

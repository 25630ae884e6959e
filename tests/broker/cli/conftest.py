"""Runs the command, and has a data directory for it to look into."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from storage.history import events
from storage.history.packed_rows import history_key
from storage.local.rocks import RocksStore
from storage.tables.tables import HISTORY, seal
from tests.broker.cli.commands import ROOT, Run
from tests.broker.history.test_queries import recorded
from tests.storage.history.history_cases import Tick


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Return a function that runs `holdfast` with arguments in an empty directory."""

    def run_command(
        *arguments: str, input: str = "", **environment: str
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "broker", *arguments],
            cwd=tmp_path,
            env={"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), **environment},
            input=input,
            capture_output=True,
            text=True,
            timeout=60,
        )

    return run_command


@pytest.fixture
def history(tmp_path: Path) -> Iterator[Path]:
    """A data directory with a history of a few events, one of a client with an accent."""
    umask = os.umask(0o077)  # as the broker's
    config = recorded(tmp_path)
    tick = Tick()
    tick.record(events.SESSION_EXPIRED, who="mètre\0", words={1: 7})
    store = RocksStore(Path(config.shell.data_dir) / "db")
    store.write([(HISTORY, history_key(1, 8), seal(tick.pack(8)))])
    store.close()
    os.umask(umask)
    yield Path(config.shell.data_dir)

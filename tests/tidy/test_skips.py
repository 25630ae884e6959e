"""A test that is skipped for what is missing fails where nothing may be missing."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import real_servers
from tests.skips import may_be_skipped

ROOT = Path(__file__).resolve().parents[2]
TESTS = """
import pytest

@pytest.mark.skipif(True, reason="fish is not installed")
def test_marked():
    pass

def test_called():
    pytest.skip("no Chromium here")

@pytest.mark.skipif(True, reason="root may read everything")
def test_of_the_user():
    pass
"""


@pytest.mark.parametrize(
    ("required", "counted"), [("1", "1 failed, 1 skipped, 1 error"), ("0", "3 skipped")]
)
def test_a_skip_for_what_is_missing_fails_where_all_is_to_be_there(
    tmp_path: Path, required: str, counted: str
) -> None:
    path = tmp_path / "test_some.py"
    path.write_text(TESTS)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "tests.skips", "--rootdir", tmp_path, path],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), real_servers.VARIABLE: required},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert counted in done.stdout.splitlines()[-1]
    assert ("no Chromium here" in done.stdout) is (required == "1")


def test_what_no_installation_changes_may_be_skipped() -> None:
    assert may_be_skipped("Skipped: the pure build has none")
    assert not may_be_skipped("Skipped: no Java: scripts/setup --test says how to get it")

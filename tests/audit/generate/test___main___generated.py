"""The command."""

import subprocess
import sys
from pathlib import Path

from audit.generate.history import load


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "audit.generate", *arguments]
    root = Path(__file__).resolve().parents[3]
    return subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)


def test_it_writes_a_history_and_says_what_is_in_it(tmp_path: Path) -> None:
    faults = tmp_path / "faults"
    faults.write_text("out_of_order\npassed_over\n")
    out = tmp_path / "h"
    done = run("--events", "2000", "--out", str(out), "--faults", str(faults))
    assert (done.returncode, done.stderr) == (0, "")
    manifest = load(out / "_manifest.json")
    assert {injection.kind for injection in manifest.injections} == {
        "before_its_acceptance",
        "out_of_order",
        "passed_over",
    }
    assert f"{manifest.events} events of 2 nodes" in done.stdout
    assert "3 faults" in done.stdout


def test_it_refuses_in_one_line(tmp_path: Path) -> None:
    faults = tmp_path / "faults"
    faults.write_text("gremlins\n")
    done = run("--out", str(tmp_path / "h"), "--faults", str(faults))
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "gremlins" in done.stderr

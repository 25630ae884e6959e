"""A process of ours imports our packages, whatever else has their names."""

import os
import subprocess
from pathlib import Path

import pytest

from broker import build, own_process
from broker.version import VERSION


def test_no_package_of_the_same_name_is_taken_instead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for place in ("here", "on-the-path"):
        (tmp_path / place / "broker").mkdir(parents=True)
        (tmp_path / place / "broker" / "__init__.py").write_text("raise SystemExit('not ours')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "on-the-path"))
    ran = subprocess.run(
        [*own_process.command("broker"), "--version"],
        env=own_process.environment(),
        cwd=tmp_path / "here",
        capture_output=True,
        text=True,
    )
    assert ran.stdout == f"holdfast {VERSION}, {build.find()}\n", ran.stderr


def test_the_path_of_this_process_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    ours = str(own_process.PACKAGES)
    monkeypatch.setenv("PYTHONPATH", "a:b")
    assert own_process.environment() == {**os.environ, "PYTHONPATH": f"{ours}:a:b"}
    monkeypatch.delenv("PYTHONPATH")
    assert own_process.environment()["PYTHONPATH"] == ours

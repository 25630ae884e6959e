"""An installation in an environment of its own, and what must work in it beside other packages.

The other packages have all the names of ours, and `holdfast`: one distribution of them is installed
beside ours, and the working directory and PYTHONPATH hold another copy.
"""

import json
import os
import re
import subprocess
import sys
import sysconfig
import venv
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tests.durability.rawclient import RawClient

NAMES: Final = ("audit", "broker", "conformance", "holdfast", "mqtt", "session", "storage")
OTHER: Final = "other-packages"  # the name of their distribution
HISTORY: Final = {
    "HOLDFAST__HISTORY__DETAIL": "full",
    "HOLDFAST__HISTORY__NODE": "n1",
    "HOLDFAST__METRICS__ENABLED": "false",
}


def clean() -> dict[str, str]:
    """Return our environment without what decides about the build or names other sources."""
    unwanted = {"HOLDFAST_BUILD", "CC", "PYTHONPATH"}
    return {name: value for name, value in os.environ.items() if name not in unwanted}


class Installation:
    """A virtual environment. What our dependencies are comes from the one that runs the tests."""

    def __init__(self, place: Path, *, is_made: bool = False) -> None:
        """Make it, unless it `is_made`."""
        self.python: str = str(place / "bin" / "python")
        self.command: str = str(place / "bin" / "holdfast")
        if not is_made:
            venv.create(place, symlinks=True)
        (self.packages,) = place.glob("lib/python*/site-packages")
        if not is_made:
            # A line of such a file is a folder alone: our own editable installation stays out.
            (self.packages / "dependencies.pth").write_text(sysconfig.get_path("purelib"))

    def pip(self, *arguments: str) -> None:
        """Run pip for this environment, without an index and without dependencies."""
        no_index = ["--no-deps", "--no-index", "--no-build-isolation"]
        options = no_index if arguments[0] == "install" else ["--yes"]
        ran = subprocess.run(
            [sys.executable, "-m", "pip", "--python", self.python, *arguments, *options],
            env={**clean(), "HOLDFAST_BUILD": "pure"},
            capture_output=True,
            text=True,
        )
        assert ran.returncode == 0, ran.stdout + ran.stderr

    def files(self) -> set[str]:
        """Return every file of site-packages, and the scripts."""
        folders = (self.packages, Path(self.command).parent)
        return {str(path) for folder in folders for path in folder.rglob("*") if path.is_file()}


def other_wheel(directory: Path) -> Path:
    """Write a wheel whose packages have the names of ours."""
    path = directory / "other_packages-1.0-py3-none-any.whl"
    info = "other_packages-1.0.dist-info"
    files = {f"{name}/__init__.py": "WHOSE = 'other'\n" for name in NAMES}
    files["broker/__main__.py"] = "raise SystemExit('the other broker')\n"
    files[f"{info}/METADATA"] = f"Metadata-Version: 2.1\nName: {OTHER}\nVersion: 1.0\n"
    files[f"{info}/WHEEL"] = "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    files[f"{info}/RECORD"] = "".join(f"{name},,\n" for name in [*files, f"{info}/RECORD"])
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return path


class Surroundings:
    """A working directory, which is in PYTHONPATH as well, with packages called as ours are."""

    def __init__(self, installed: Installation, directory: Path) -> None:
        self.installed = installed
        self.directory = directory
        self.environment = {**clean(), "PYTHONPATH": str(directory)}
        for name in NAMES:
            (directory / name).mkdir(parents=True)
            (directory / name / "__init__.py").write_text("raise SystemExit('not ours')\n")

    def run(self, *command: str, status: int = 0, **environment: str) -> str:
        """Run a command here; return what it printed."""
        ran = subprocess.run(
            command,
            cwd=self.directory,
            env={**self.environment, **environment},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )
        assert ran.returncode == status, ran.stdout + ran.stderr
        return ran.stdout

    @contextmanager
    def broker(self, data: Path, **environment: str) -> Iterator[int]:
        """Serve from here; yields the port, drains at the end."""
        process = subprocess.Popen(
            [self.installed.command, "serve", "-p", "0", "--data-dir", str(data)],
            cwd=self.directory,
            env={**self.environment, **environment},
            stderr=subprocess.PIPE,
            text=True,
        )
        assert process.stderr is not None
        try:
            line = process.stderr.readline()
            assert '"ready"' in line, line + process.stderr.read()
            yield json.loads(line)["port"]
        finally:
            process.terminate()
            said = process.stderr.read()
            process.stderr.close()
        assert process.wait(60) == 0, said


def works_beside_others(installed: Installation, tmp_path: Path, version: str) -> Path:
    """Use the command where every name of ours is somebody else's; return the history it wrote.

    `version` is a pattern of what it says of the build.
    """
    here = Surroundings(installed, tmp_path / "surroundings")
    line = re.compile(rf"holdfast \S+, {version}\n")
    assert line.fullmatch(here.run(installed.command, "--version"))
    assert line.fullmatch(here.run(installed.python, "-m", "holdfast_mqtt", "--version"))
    assert "nothing was lost" in here.run(installed.command, "demo")

    exported = tmp_path / "exported"  # by the broker's own process for that
    with here.broker(tmp_path / "data", **HISTORY, HOLDFAST__HISTORY__DIR=str(exported)) as port:
        client = RawClient(port, "ann")
        client.durable()
        client.subscribe("a", qos=1)
        client.publish("a", b"x", qos=1)
        client.acknowledge(client.expect_publish())
        client.disconnect()
    assert list(exported.rglob("*.parquet"))
    copied = tmp_path / "copied"
    data = ("--data-dir", str(tmp_path / "data"))
    here.run(
        *(installed.command, "history", "export", "--to", str(copied), *data),
        **HISTORY, HOLDFAST__HISTORY__DIR=str(exported),
    )  # fmt: skip
    shown = here.run(
        installed.command, "conformance", "--adapter", "holdfast", "-q", "-k", "MQTT-3.1.0-1"
    )
    assert "holdfast" in shown
    return exported


def audit_judges(installed: Installation, tmp_path: Path, history: Path) -> None:
    """Audit a history in the same surroundings: Spark's workers find our packages, too."""
    here = Surroundings(installed, tmp_path / "audit-surroundings")
    said = here.run(
        *(installed.command, "audit", "run", "--memory", "1g"),
        *("--history", str(history), "--out", str(tmp_path / "audited")),
    )
    verdict = json.loads((tmp_path / "audited" / "verdict.json").read_text())
    assert verdict["status"] == "ok", said


def others_are_themselves(installed: Installation, tmp_path: Path) -> None:
    """Import each of the others' packages in a Python that is not ours."""
    script = f"import {', '.join(NAMES)}; print({', '.join(f'{n}.WHOSE' for n in NAMES)})"
    ran = subprocess.run(
        [installed.python, "-c", script],
        cwd=tmp_path,
        env=clean(),
        capture_output=True,
        text=True,
        check=True,
    )
    assert ran.stdout.split() == ["other"] * len(NAMES)

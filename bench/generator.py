"""Compile the load generator and the sink, and run the generator against a broker.

A `Line` is what the generator printed, unchanged. The generator counts every message: `ok` in a
line means that nothing was lost, repeated or reordered beyond what the QoS allows.
Read next: `bench.scenarios`; mqttload.md has the generator's options and fields.
"""

import json
import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any, Final

from bench.brokers import ROOT, BenchError, Running

Line = dict[str, Any]  # what the generator printed about one run

RUN_SECONDS_MAX: Final = 900
# The header of a state file of `mqttload offline`, and the size of its client id prefix.
STATE_MAGIC: Final = b"MQLOFF1\0"
STATE_PREFIX: Final = 48
MAGIC: Final = (0x4D514C44).to_bytes(4, "little")


class Generator:
    """The compiled programs mqttload and sink."""

    def __init__(self, directory: Path) -> None:
        """Compile both into `directory`. Raises `BenchError` without a C compiler."""
        self.program: Path = build(directory, "mqttload")
        self.sink: Path = build(directory, "sink")
        self.lines: list[Line] = []  # the caller empties it

    def run(self, scenario: str, broker: Running, **options: object) -> Line:
        """Run one scenario; `sub_qos=1` becomes `--sub-qos=1`."""
        command = self.command(scenario, broker, **options)
        try:
            ran = subprocess.run(command, capture_output=True, text=True, timeout=RUN_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            raise BenchError(f"{broker.kind}: no end in sight: {' '.join(command[1:])}") from None
        if ran.returncode == 2 or not ran.stdout.strip():
            raise BenchError(f"the generator could not run: {ran.stderr.strip()}")
        line: Line = json.loads(ran.stdout)
        name_beside(line, list(broker.beside()))
        self.lines.append(line)
        return line

    def command(self, scenario: str, broker: Running, **options: object) -> list[str]:
        """Return the command line of one run."""
        pids = ",".join(map(str, broker.pids()))
        command = [str(self.program), scenario, f"--port={broker.port}", f"--pid={pids}"]
        groups = broker.beside().values()
        if groups:
            beside = "/".join(",".join(map(str, group)) for group in groups)
            command.append(f"--beside={beside}")
        return command + [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]


def name_beside(line: Line, names: list[str]) -> None:
    """Put the CPU seconds of the groups of `--beside` under their names."""
    for part in (line, *line.values()):
        if isinstance(part, dict) and "beside_s" in part:
            part["beside_s"] = dict(zip(names, part["beside_s"], strict=True))


def build(directory: Path, name: str) -> Path:
    """Compile bench/NAME.c into `directory` and return the program."""
    compiler = shutil.which("cc")
    if not compiler:
        raise BenchError("a C compiler is missing: scripts/setup --bench")
    target = directory / name
    source = ROOT / "bench" / f"{name}.c"
    subprocess.run([compiler, "-O2", "-o", str(target), str(source)], check=True)
    return target


def write_state(path: Path, *, run: int, prefix: str, sessions: int, messages: int) -> None:
    """Write a state file for existing sessions to which nothing was published yet."""
    numbers = (run, sessions, messages, 0, 1, 4, 128, 0)  # shared, QoS, version, payload, -
    header = STATE_MAGIC + b"".join(number.to_bytes(4, "little") for number in numbers)
    path.write_bytes(
        header + prefix.encode().ljust(STATE_PREFIX, b"\0") + bytes(sessions * messages)
    )


def payload_mark(run: int) -> bytes:
    """Return the bytes at the start of every payload of a run."""
    return MAGIC + run.to_bytes(4, "little")


def trouble(line: Line) -> str:
    """Return what went wrong in a run, "" if nothing did."""
    if line.get("ok", True):
        return ""
    found: list[str] = []
    for part in (line, *(line.get(name, {}) for name in ("create", "publish", "drain"))):
        found += [
            f"{name} {part[name]}"
            for name in ("lost", "dup", "ooo", "unacked", "nacked")
            if part.get(name)
        ]
    found += [f"{name} {count}" for name, count in line["errors"].items() if count]
    return ", ".join(found) or "not ok"


def sync_times_ms(directory: Path | None, count: int = 100) -> list[float]:
    """Return the sorted times of `fdatasync` after appending 4 KiB to a file there."""
    path = Path(directory or tempfile.gettempdir()) / f"holdfast-sync-{os.getpid()}"
    times = []
    with open(path, "wb", buffering=0) as file:
        for _ in range(count):
            file.write(b"\xa5" * 4096)
            began = time.perf_counter()
            os.fdatasync(file.fileno())
            times.append((time.perf_counter() - began) * 1000)
    path.unlink()
    return sorted(times)

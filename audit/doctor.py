"""Check what an audit needs and how to get it. Standard library only.

Packages are looked up without importing them, so the answer comes at once, and also where nothing
is installed. `NEEDS` is what the extra `audit` pins.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Final

PYTHON_MIN: Final = (3, 11)
JAVA_MIN: Final = 17
JAVA_ANSWERS_S: Final = 30
# Package -> (lowest version, first version that is too new).
NEEDS: Final[dict[str, tuple[tuple[int, ...], tuple[int, ...]]]] = {
    "pyspark": ((4, 2), (5,)),
    "pyarrow": ((18,), (27,)),
    "pandas": ((2, 2), (3,)),
    "numpy": ((1, 26), (3,)),
    "jinja2": ((3, 1, 6), (4,)),
}
GIB: Final = 1 << 30
MEMORY_MIN: Final = 3 * GIB  # 2 GiB for the driver, the rest for Python workers and the system
SCRATCH_MIN: Final = 2 * GIB  # shuffles of 10 million events take about 1 GiB

_SEGMENT: Final = re.compile(r"-\d{8}-\d{16}-\d{16}\.parquet$")  # how its name ends
# By file, not by name: what an index has under a name may be somebody else's.
PIP: Final = "pip install '.[audit]' in a checkout of Holdfast, or 'FILE.whl[audit]' with its wheel"
_JAVA_HELP: Final = {
    "debian": "apt-get install openjdk-17-jre-headless (or default-jre-headless)",
    "macos": "brew install openjdk@17, then export JAVA_HOME=$(brew --prefix openjdk@17)",
    "conda": "conda install -c conda-forge 'openjdk>=17'",
    "other": "install a Java runtime, 17 or newer, or set JAVA_HOME to one",
}


@dataclass(frozen=True)
class Finding:
    """The result of one check. `help` says how to get what is missing, "" if nothing is."""

    name: str
    state: str  # "ok", "missing" or "warning"
    found: str
    help: str = ""


def examine(*, history: str | None, out: str) -> list[Finding]:
    """Return a finding for everything an audit needs."""
    findings = [_python(), java()]
    findings += [_package(name) for name in NEEDS]
    findings += [_memory(), _scratch(), _writable(out)]
    if history is not None:
        findings.append(_history(history))
    return findings


def system() -> str:
    """Return the kind of system, which decides how packages are installed."""
    if os.environ.get("CONDA_PREFIX"):
        return "conda"
    if sys.platform == "darwin":
        return "macos"
    return "debian" if shutil.which("apt-get") else "other"


def java_help() -> str:
    """Return how to install Java on this system."""
    return _JAVA_HELP[system()]


def java() -> Finding:
    """Find the Java that Spark will start: that of JAVA_HOME, or the first on the PATH."""
    home = os.environ.get("JAVA_HOME")
    command = str(Path(home, "bin", "java")) if home else shutil.which("java")
    if command is None:
        return Finding("Java", "missing", "no java on the PATH, and no JAVA_HOME", java_help())
    try:
        answer = subprocess.run(
            [command, "-version"], capture_output=True, text=True, timeout=JAVA_ANSWERS_S
        )
    except (OSError, subprocess.TimeoutExpired) as problem:
        where = f"JAVA_HOME={home}" if home else command
        return Finding("Java", "missing", f"{where}: {problem}", java_help())
    version = java_version(answer.stderr + answer.stdout)
    if version is None:
        return Finding("Java", "missing", f"{command} does not tell its version", java_help())
    if version < JAVA_MIN:
        return Finding("Java", "missing", f"{command} is Java {version}", java_help())
    return Finding("Java", "ok", f"Java {version}, {command}")


def java_version(text: str) -> int | None:
    """Return the major version in the answer of `java -version`: 8 for "1.8.0_402"."""
    found = re.search(r'version "(?:1\.)?(\d+)', text)
    return int(found.group(1)) if found else None


def version_of(text: str) -> tuple[int, ...]:
    """Return the leading numbers of a version: (4, 3, 0) for "4.3.0.dev1"."""
    numbers = re.match(r"\d+(?:\.\d+)*", text)
    return tuple(map(int, numbers.group(0).split("."))) if numbers else ()


def _python() -> Finding:
    found = f"Python {sys.version_info.major}.{sys.version_info.minor}, {sys.executable}"
    if sys.version_info[:2] < PYTHON_MIN:
        return Finding("Python", "missing", found, "Python 3.11 or newer is needed")
    return Finding("Python", "ok", found)


def _package(name: str) -> Finding:
    lowest, too_new = NEEDS[name]
    try:
        text = metadata.version(name)
    except metadata.PackageNotFoundError:
        return Finding(name, "missing", "not installed", PIP)
    version = version_of(text)
    if not lowest <= version < too_new:
        wanted = f">={'.'.join(map(str, lowest))},<{'.'.join(map(str, too_new))}"
        return Finding(name, "missing", text, f"pip install '{name}{wanted}'")
    return Finding(name, "ok", text)


def _memory() -> Finding:
    """Check the free memory, also against a container's limit."""
    numbers = [number for number in (_available(), _container_limit()) if number is not None]
    if not numbers:
        return Finding("memory", "warning", "cannot be found out here", "3 GiB should be free")
    free = min(numbers)
    text = f"{free / GIB:.1f} GiB available"
    if free < MEMORY_MIN:
        return Finding(
            "memory", "warning", text,
            "10 million events want 3 GiB; --memory 1g takes less and is slower",
        )  # fmt: skip
    return Finding("memory", "ok", text)


def _available() -> int | None:
    try:
        text = Path("/proc/meminfo").read_text()
    except OSError:
        pass
    else:
        found = re.search(r"MemAvailable:\s+(\d+) kB", text)
        if found:
            return int(found.group(1)) * 1024
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return None


def _container_limit() -> int | None:
    try:
        text = Path("/sys/fs/cgroup/memory.max").read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None


def _scratch() -> Finding:
    place = os.environ.get("SPARK_LOCAL_DIRS", tempfile.gettempdir()).split(",")[0]
    try:
        free = shutil.disk_usage(place).free
    except OSError as problem:
        return Finding("temporary space", "missing", str(problem), "set SPARK_LOCAL_DIRS")
    text = f"{free / GIB:.1f} GiB in {place}"
    if free < SCRATCH_MIN:
        return Finding("temporary space", "warning", text, "set SPARK_LOCAL_DIRS to a larger disk")
    return Finding("temporary space", "ok", text)


def _writable(out: str) -> Finding:
    if "://" in out:
        return Finding("results", "ok", f"{out}: on a cluster, not looked at")
    place = Path(out).absolute()
    while not place.exists():
        place = place.parent
    if place.is_dir() and os.access(place, os.W_OK):
        return Finding("results", "ok", f"{out} can be written")
    return Finding(
        "results", "missing", f"{out}: {place} cannot be written", "choose another --out"
    )


def _history(history: str) -> Finding:
    if "://" in history:
        return Finding("history", "ok", f"{history}: on a cluster, not looked at")
    place = Path(history)
    if not place.is_dir():
        return Finding("history", "missing", f"{history}: no such folder",
                       "the broker's setting history.directory names it")  # fmt: skip
    number = sum(1 for path in place.rglob("*.parquet") if _SEGMENT.search(path.name))
    if not number:
        return Finding("history", "warning", f"{history}: no segment yet",
                       "they are sealed once a minute where history.detail is not off")  # fmt: skip
    return Finding("history", "ok", f"{history}: {number:,} segment{'s' * (number != 1)}")


def missing_packages(find: Callable[[str], object]) -> list[str]:
    """Return the packages of the extra that `find` (importlib.util.find_spec) does not find."""
    return [name for name in NEEDS if find(name) is None]

"""Try mutants: plant each in a copy of the tree and run stages of tests until one fails.

The work tree is only read. Each worker has a copy of its own, so a mutant never meets another. A
stage must pass on the unchanged copy first; how long that takes gives its time limit.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Final

from tests.mutants.mutations import Mutant
from tests.mutants.stages import Stage

WORKERS: Final = 2
# Others may use the machine beside it, so a limit is generous; what takes longer is a loop.
LIMIT_FACTOR: Final = 5
LIMIT_ADDED_S: Final = 20
BASELINE_LIMIT_S: Final = 3600
NO_TESTS: Final = 5  # pytest's exit code


class BaselineFails(Exception):
    """A stage fails on the unchanged tree, so it can judge nothing."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a mutant: the stage that noticed it, if any."""

    mutant: Mutant
    stage: str | None

    def __str__(self) -> str:
        verdict = f"killed by {self.stage}" if self.stage else "SURVIVED"
        return f"{verdict}  {self.mutant.path}:{self.mutant.line}  {self.mutant.change}"


class Copy:
    """A copy of the tree, with a scratch directory of its own, in which one file is changed."""

    def __init__(self, root: Path, names: Iterable[str], place: Path) -> None:
        self.tree = place / "tree"
        self._scratch = place / "tmp"
        self._scratch.mkdir(parents=True)
        self._process: subprocess.Popen[bytes] | None = None
        for name in names:
            target = self.tree / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(root / name, target, follow_symlinks=False)
        if (root / ".venv").exists():
            (self.tree / ".venv").symlink_to((root / ".venv").resolve())

    @contextlib.contextmanager
    def planted(self, mutant: Mutant) -> Iterator[None]:
        """Change the file for as long as the context lasts."""
        path = self.tree / mutant.path
        source = path.read_bytes()
        path.write_text(mutant.applied(source.decode()))
        self._forget(path)
        try:
            yield
        finally:
            path.write_bytes(source)
            self._forget(path)

    def run(self, stage: Stage, limit_s: float, *, cache: bool = False) -> int | None:
        """Run the tests of a stage; returns the exit code, None past the limit."""
        environment = {
            **os.environ,
            "PYTHONPATH": str(self.tree),
            "TMPDIR": str(self._scratch),
            "PYTHONHASHSEED": "0",
        }
        # Byte code is told apart by the second: a mutant's must never be found later.
        environment |= {} if cache else {"PYTHONDONTWRITEBYTECODE": "1"}
        process = self._process = subprocess.Popen(
            stage.command,
            cwd=self.tree,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            return process.wait(limit_s)
        except subprocess.TimeoutExpired:
            return None
        finally:
            self.stop()
            process.wait()
            self._process = None
            shutil.rmtree(self._scratch, ignore_errors=True)
            self._scratch.mkdir(exist_ok=True)

    def stop(self) -> None:
        """End the tests that run, and what they started."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)

    def _forget(self, path: Path) -> None:
        for stale in (path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"):
            stale.unlink()


class Baselines:
    """How long each stage takes on the unchanged tree, tried once each and told."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell
        self._guard = threading.Lock()
        self._locks: dict[Stage, threading.Lock] = {}
        self._seconds: dict[Stage, float | None] = {}

    def limit_s(self, stage: Stage, tree: Copy) -> float | None:
        """Return the time limit of a stage, None if it has no tests; raises BaselineFails."""
        with self._guard:
            lock = self._locks.setdefault(stage, threading.Lock())
        with lock:
            if stage not in self._seconds:
                self._seconds[stage] = self._measured(stage, tree)
            seconds = self._seconds[stage]
        return None if seconds is None else LIMIT_FACTOR * seconds + LIMIT_ADDED_S

    def _measured(self, stage: Stage, tree: Copy) -> float | None:
        began = time.monotonic()
        code = tree.run(stage, BASELINE_LIMIT_S, cache=True)
        seconds = time.monotonic() - began
        if code == NO_TESTS:
            return None
        if code != 0:
            raise BaselineFails(f"fails on the unchanged tree: {' '.join(stage.command)}")
        self._tell(f"unchanged, {stage.name}: {seconds:.0f} s, {stage.command[-1].strip()[:80]}")
        return seconds


def try_all(
    root: Path,
    names: Iterable[str],
    mutants: list[Mutant],
    stages: Callable[[str], list[Stage]],
    tell: Callable[[str], None],
) -> list[Outcome]:
    """Try the mutants, telling each outcome as it comes; returns them in the order given.

    `names` are the files of the tree, `stages` gives those for a path. Raises BaselineFails.
    """
    names = list(names)
    baselines = Baselines(tell)
    free: SimpleQueue[Copy] = SimpleQueue()

    def attempt(mutant: Mutant) -> Outcome:
        tree = free.get()
        try:
            outcome = _attempt(tree, mutant, stages(mutant.path), baselines)
        finally:
            free.put(tree)
        tell(str(outcome))
        return outcome

    with tempfile.TemporaryDirectory(prefix="mutants-") as place:
        copies = [
            Copy(root, names, Path(place, str(number)))
            for number in range(min(WORKERS, len(mutants)))
        ]
        for tree in copies:
            free.put(tree)
        pool = ThreadPoolExecutor(WORKERS)
        try:
            return list(pool.map(attempt, mutants))
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
            for tree in copies:
                tree.stop()
            pool.shutdown()


def _attempt(tree: Copy, mutant: Mutant, stages: list[Stage], baselines: Baselines) -> Outcome:
    for stage in stages:
        limit_s = baselines.limit_s(stage, tree)
        if limit_s is None:
            continue
        with tree.planted(mutant):
            code = tree.run(stage, limit_s)
        if code != 0:
            return Outcome(mutant, stage.name if code is not None else f"{stage.name}, too slow")
    return Outcome(mutant, None)

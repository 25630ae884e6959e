"""No thread outlives the file of tests that started it.

One that does runs into the tests of other files, and fails there in an order of files that nobody
has tried. `no_thread_outlives_its_file` holds it against the file where it was started.
"""

import threading
import time
from collections.abc import Iterable, Iterator
from typing import Final

import pytest

PATIENCE_S: Final = 5.0  # for threads that are about to end; most have ended

# Threads that may stay, by the package whose code they run, and why.
LASTING: Final = {
    "py4j": "talks to the Java of Spark, which tests of all files share and the session ends",
    "pyspark": "the same: Spark's own thread for accumulators",
    "execnet": "pytest-xdist's, from before the first test",
    "xdist": "pytest-xdist's",
}
# The same by name, where the code is everybody's.
LASTING_NAMES: Final = {
    "asyncio_thread": "the loop of Cassandra's driver, one for connections of tests of all files",
}


def runs(thread: threading.Thread) -> str:
    """Return the module of what a thread runs: of its class, or of the function it was given."""
    target = getattr(thread, "_target", None)
    if target is None:
        return type(thread).__module__
    owner = getattr(target, "__self__", None)
    return str(type(owner).__module__ if owner is not None else target.__module__)


def left_over(before: Iterable[threading.Thread], patience_s: float) -> list[threading.Thread]:
    """Return threads that are not of `before`, may not stay and do not end in time."""
    deadline = time.monotonic() + patience_s
    left = []
    for thread in set(threading.enumerate()) - set(before):
        if runs(thread).partition(".")[0] in LASTING or thread.name in LASTING_NAMES:
            continue
        thread.join(max(0.0, deadline - time.monotonic()))
        if thread.is_alive():
            left.append(thread)
    return left


@pytest.fixture(autouse=True, scope="module")
def no_thread_outlives_its_file() -> Iterator[None]:
    """Fail the last test of a file if a thread that its tests started still runs."""
    before = threading.enumerate()
    yield
    left = left_over(before, PATIENCE_S)
    assert not left, "still running after the tests of this file: " + ", ".join(
        f"{thread.name} ({runs(thread)})" for thread in left
    )

"""Runs the files of tests in a random order, the tests of a file in their own.

`HOLDFAST_TEST_ORDER=random` draws an order, which the header of the run names; that number in its
place repeats it. The libraries for this shuffle the tests within a file as well, which have an
order on purpose: the plain case first.

In any order, files come first that share a server of a process: pytest-xdist gives what is first to
one worker, so one such server is started and not one for each worker (Cassandra takes 40 seconds of
processor time). They are among the longest, too, and nobody waits for them at the end.
"""

import os
import random
import secrets
from collections.abc import MutableSequence
from types import ModuleType
from typing import Final

import pytest

VARIABLE: Final = "HOLDFAST_TEST_ORDER"
NUMBERS: Final = 1 << 32
# Modules whose server the tests of one process share.
SHARED_SERVERS: Final = frozenset({"tests.broker.backends.cassandra_server"})


def settle() -> None:
    """Draw the order if it is to be random; workers of pytest-xdist inherit the number."""
    wanted = os.environ.get(VARIABLE)
    if wanted == "random":
        os.environ[VARIABLE] = str(secrets.randbelow(NUMBERS))
    elif wanted is not None and not wanted.isdecimal():
        raise pytest.UsageError(f"{VARIABLE}={wanted!r}: expected 'random' or a number")


def header() -> str | None:
    """Return the line that says how to repeat this order, None if it is the usual one."""
    number = os.environ.get(VARIABLE)
    return number and f"files in random order; to repeat it: {VARIABLE}={number}"


def arrange(items: MutableSequence[pytest.Item]) -> None:
    """Sort the tests by file: first those of shared servers, in the order that was drawn if any."""
    number = os.environ.get(VARIABLE)
    files = {str(item.path): getattr(item, "module", None) for item in items}
    places = dict.fromkeys(files, 0)
    if number is not None:
        names = sorted(files)
        random.Random(int(number)).shuffle(names)
        places = {file: place for place, file in enumerate(names)}
    keys = {file: (not shares_server(files[file]), places[file]) for file in files}
    items[:] = sorted(items, key=lambda item: keys[str(item.path)])


def shares_server(module: ModuleType | None) -> bool:
    """Return whether a file of tests imports one of `SHARED_SERVERS`, or anything of one."""
    values = [] if module is None else list(vars(module).values())
    return any(
        getattr(value, word, None) in SHARED_SERVERS
        for value in values
        for word in ("__module__", "__name__")
    )

"""Runs the files of tests in a random order, the tests of a file in their own.

`HOLDFAST_TEST_ORDER=random` draws an order, which the header of the run names; that number in its
place repeats it. The libraries for this shuffle the tests within a file as well, which have an
order on purpose: the plain case first.
"""

import os
import random
import secrets
from collections.abc import MutableSequence
from typing import Final

import pytest

VARIABLE: Final = "HOLDFAST_TEST_ORDER"
NUMBERS: Final = 1 << 32


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
    """Sort the tests by file, the files in the order that was drawn, if one was."""
    number = os.environ.get(VARIABLE)
    if number is None:
        return
    files = sorted({str(item.path) for item in items})
    random.Random(int(number)).shuffle(files)
    places = {file: place for place, file in enumerate(files)}
    items[:] = sorted(items, key=lambda item: places[str(item.path)])

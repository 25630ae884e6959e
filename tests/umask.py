"""The umask is after each test what it was before.

Commands of the broker set it, since what they write is for its owner alone. Called within the
process of the tests, they would set it for the tests of all later files, too.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import pytest


def current() -> int:
    """Return the umask. The system has no call that only reads it."""
    umask = os.umask(0o077)
    os.umask(umask)
    return umask


@contextmanager
def restored() -> Iterator[None]:
    """Set the umask at the end as it was at the beginning."""
    before = current()
    try:
        yield
    finally:
        os.umask(before)


@pytest.fixture(autouse=True)
def no_umask_outlives_its_test() -> Iterator[None]:
    """Keep what one test sets from the next."""
    with restored():
        yield

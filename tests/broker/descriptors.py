"""A process that may open nothing more."""

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def no_files_left() -> Iterator[None]:
    """Let this process open no further file or socket."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest = os.dup(0)
    os.close(lowest)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

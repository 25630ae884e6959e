"""Named places where a test can kill the process: `HOLDFAST_FAILPOINT=name[:count]`.

The process gets SIGKILL when the place is reached for the count-th time (the first by default). A
crash at any of these places must lose nothing that was acknowledged. Costs one attribute look-up
while no failpoint is armed.
"""

import os
import signal
from collections.abc import Callable
from typing import Final

BEFORE_WRITE: Final = "before_write"
AFTER_WRITE_BEFORE_SYNC: Final = "after_write_before_sync"
AFTER_SYNC_BEFORE_REPLY: Final = "after_sync_before_reply"
# The history export, in order: first the process that writes segments, then the broker. A crash
# there must neither lose nor repeat a row of the history.
HISTORY_BEFORE_SEGMENT: Final = "history_before_segment"
HISTORY_BEFORE_RENAME: Final = "history_before_rename"
HISTORY_AFTER_RENAME: Final = "history_after_rename"
HISTORY_BEFORE_TRIM: Final = "history_before_trim"
HISTORY_AMID_TRIM: Final = "history_amid_trim"
HISTORY: Final = (
    HISTORY_BEFORE_SEGMENT,
    HISTORY_BEFORE_RENAME,
    HISTORY_AFTER_RENAME,
    HISTORY_BEFORE_TRIM,
    HISTORY_AMID_TRIM,
)
NAMES: Final = (BEFORE_WRITE, AFTER_WRITE_BEFORE_SYNC, AFTER_SYNC_BEFORE_REPLY, *HISTORY)

# Called with the name of each place that is reached, unless None. A test may set its own.
hook: Callable[[str], None] | None = None


def arm(spec: str) -> None:
    """Kill this process when the place named in `spec` ("name" or "name:count") is reached."""
    name, _, count = spec.partition(":")
    if name not in NAMES or not (count == "" or (count.isdecimal() and int(count) > 0)):
        raise ValueError(
            f"failpoint {spec!r}: expected NAME[:COUNT] with NAME of {', '.join(NAMES)}"
        )
    left = int(count or 1)

    def kill(reached: str) -> None:
        nonlocal left
        if reached == name:
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    global hook
    hook = kill


def disarm() -> None:
    """Disarm every failpoint."""
    global hook
    hook = None


if "HOLDFAST_FAILPOINT" in os.environ:
    arm(os.environ["HOLDFAST_FAILPOINT"])

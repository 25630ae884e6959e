"""Reads the clocks of this machine: boot id, boot-time clock, wall clock."""

import time
from pathlib import Path
from typing import Final

BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")


def boot_id() -> str:
    """Return the kernel's id of this boot, "" if it cannot be read (which matches no boot).

    A container shares the id and the boot-time clock with its host.
    """
    try:
        return BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:
        return ""


def boottime_ms() -> int:
    """Return the milliseconds since boot, including time suspended."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000


def wall_ms() -> int:
    """Return the milliseconds since 1970 by the wall clock."""
    return time.time_ns() // 1_000_000

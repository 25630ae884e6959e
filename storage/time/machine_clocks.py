"""Reads the clocks of this machine: boot id, boot-time clock, wall clock."""

import time
from pathlib import Path
from typing import Final

BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")


def boot_id() -> str:
    """Return the kernel's id of this boot, or "" where it cannot be read: always another boot.

    A container shares the id and the boot-time clock with its host.
    """
    try:
        return BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:
        return ""


def boottime_ms() -> int:
    """Return the milliseconds since boot, time spent suspended included."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000


def wall_ms() -> int:
    """Return the milliseconds since 1970 as the wall clock has it."""
    return time.time_ns() // 1_000_000

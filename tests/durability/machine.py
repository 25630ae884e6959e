"""A broker and the machine it runs on, whose power can be cut at any moment.

Read next: `powercut`, which says what a cut takes, and `iofault`, which lets the broker die at a
chosen call.
"""

import contextlib
import os
import random
import signal
import time
from collections.abc import Mapping
from pathlib import Path

from tests.durability.iofault import Faults
from tests.durability.powercut import SHORT, apply_power_cut, baseline
from tests.durability.process import POLL_SECONDS, BrokerFailed, BrokerProcess, holdfast


class Machine:
    """A broker and the machine it runs on, whose power can be cut."""

    def __init__(
        self, shim: Path, directory: Path, durability: str, more: Mapping[str, str] | None = None
    ) -> None:
        self._side = directory / "side"
        self.faults = Faults(shim, directory / "rules", side=self._side)
        environment = self.faults.environment() | {"HOLDFAST__STORAGE__DURABILITY": durability}
        environment |= more or {}
        self.broker: BrokerProcess = holdfast(directory / "broker", env=environment)
        self.broker.data_dir.mkdir(parents=True)
        baseline(self.broker.data_dir, self._side)
        self.broker.start()

    def cut_power(self, how: str = SHORT, source: random.Random | None = None) -> int:
        """Kill, take back what was not synced, start with what is left; return how much was taken.

        A database below its own watermark would refuse to start: none may ever be.
        """
        if self.broker.is_running():
            self.broker.kill()
        self._end_the_others()
        lost = apply_power_cut(self.broker.data_dir, self._side, how=how, source=source)
        self.broker.start()
        return lost

    def die_at(self, nth: int, path: str) -> None:
        """Let the broker die at the nth call from now on that changes a file with this in its name.

        The power fails with it: the files are left as the cut leaves them.
        """
        self.faults.set(f"mode=kill ops=all path={path} nth={nth}")

    def die_while_starting(self, nth: int, how: str, source: random.Random) -> None:
        """Cut the power, and again at the nth change of a file during the start."""
        self.broker.kill()
        self._end_the_others()
        apply_power_cut(self.broker.data_dir, self._side, how=how, source=source)
        self.die_at(nth, "/data/")
        self.broker.launch()
        try:
            self.broker.wait_until_ready()
        except BrokerFailed:
            assert self.broker.exit_code() == -signal.SIGKILL, self.broker.tail()
        self.faults.clear()

    def _end_the_others(self) -> None:
        """End what the broker has started: a power cut leaves no process that goes on writing."""
        mark = f"HOLDFAST_IOFAULT_SIDE={self._side}".encode()
        while True:
            left = [pid for pid in os.listdir("/proc") if pid.isdigit() and _has(pid, mark)]
            if not left:
                return
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)
            time.sleep(POLL_SECONDS)


def _has(pid: str, mark: bytes) -> bool:
    """Return whether a process runs with this variable; one that has ended has none."""
    try:
        return mark in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False

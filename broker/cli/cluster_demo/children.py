"""What the show of a cluster has in common with its child processes: ports, steps, patience.

Read next: `broker.cli.cluster_demo.play`.
"""

import contextlib
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Final, NoReturn

from broker.cli.demo import DemoError

# Below the range from which Linux takes the ports of clients: one that tries a port on which nobody
# listens yet must not get that port as its own.
PORTS: Final = range(20_000, 32_000)
PAUSE_S: Final = 0.1
LOG_BYTES: Final = 20_000
ERASE: Final = "\r\x1b[K"


def free_ports(count: int) -> list[int]:
    """Return loopback ports on which nothing listens. Raises `DemoError`."""
    found: list[int] = []
    for port in random.sample(PORTS, len(PORTS)):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            found.append(port)
        if len(found) == count:
            return found
    raise DemoError(f"no {count} free ports from {PORTS.start} to {PORTS.stop - 1}")


def wait_for(what: str, is_done: Callable[[], bool], seconds: float) -> float:
    """Wait, and show for how long on a terminal; return the seconds. Raises `DemoError`."""
    began = time.monotonic()
    shown = -1
    is_terminal = sys.stdout.isatty()
    try:
        while not is_done():
            passed = int(time.monotonic() - began)
            if passed > seconds:
                raise DemoError(f"{what}: still not so after {seconds:g} s")
            if is_terminal and passed != shown:
                shown = passed
                sys.stdout.write(f"{ERASE}... {what}, {passed} s")
                sys.stdout.flush()
            time.sleep(PAUSE_S)
    finally:
        if shown >= 0:
            sys.stdout.write(ERASE)
            sys.stdout.flush()
    return time.monotonic() - began


def end(process: "subprocess.Popen[bytes]") -> None:
    """End a child with SIGKILL and wait. Idempotent."""
    process.kill()
    process.wait()


@contextlib.contextmanager
def ended_by_sigterm() -> Iterator[None]:
    """Have SIGTERM end the show as Ctrl-C does: everything that it started ends, too."""
    before = signal.signal(signal.SIGTERM, _interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _interrupt(number: int, frame: object) -> NoReturn:
    raise KeyboardInterrupt

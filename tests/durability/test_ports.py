"""Ports for the brokers of tests: suites that run side by side do not share any."""

import subprocess
import sys

from tests.durability.process import BLOCK, PORTS, ROOT, free_port

COUNT = BLOCK + 50
PROGRAM = f"""
from tests.durability.process import free_port
print(*[free_port() for _ in range({COUNT})], flush=True)
input()
"""


def test_processes_side_by_side_have_different_ports() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as other:
        assert other.stdout is not None
        theirs = {int(port) for port in other.stdout.readline().split()}
        mine = {free_port() for _ in range(COUNT)}
        other.communicate("\n")
    assert len(theirs) == len(mine) == COUNT
    assert not theirs & mine
    assert all(PORTS[0] <= port < PORTS[1] for port in theirs | mine)

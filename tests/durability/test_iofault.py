"""The I/O fault shim itself: what it must not do to a process that it is loaded into."""

import os
import subprocess
import sys
from pathlib import Path

from tests.durability.iofault import Faults, build

SIGNALS = 3000
# It writes without a break while a child sends it signals. Python's handler of a signal in C writes
# to a descriptor, as in every event loop.
SCRIPT = f"""
import os, signal, socket, subprocess
reader, writer = socket.socketpair()
writer.setblocking(False)
signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
signal.signal(signal.SIGUSR1, lambda *_: None)
null = os.open("/dev/null", os.O_WRONLY)
loop = 'i=0; while [ $i -lt {SIGNALS} ]; do kill -USR1 $PPID || exit 1; i=$((i+1)); done'
child = subprocess.Popen(["/bin/sh", "-c", loop])
while child.poll() is None:
    os.write(null, b"x")
print("done", child.returncode)
"""


def test_a_signal_amid_a_call_does_not_stop_the_process(tmp_path: Path) -> None:
    faults = Faults(build(tmp_path), tmp_path / "faults")
    faults.set("mode=eio ops=pread path=/nowhere/")
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        env={**os.environ, **faults.environment()},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.stdout, done.stderr) == ("done 0\n", "")

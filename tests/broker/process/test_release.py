"""What is left in a process that goes on after its broker has ended, as when a node is deposed."""

import signal
import subprocess
import sys
from pathlib import Path

SCRIPT = """
import asyncio, contextlib, gc, sys
from broker.configuration.load import load
from broker.observe.structured_log import Log
from broker.process import collector, server
from broker.process.cluster import following, signals
from broker.process.reload import HangUps
from session.engine import Engine

flags = {"listener.port": 0, "metrics.port": 0, "storage.data_dir": sys.argv[1]}
config = load(environment={}, flags=flags)
log, hang_ups = Log(level="info"), HangUps()

async def run(opened):
    status = await server._serve(opened, hang_ups, None, ())
    signals.give_back(asyncio.get_running_loop())
    return status

def serve():
    with contextlib.ExitStack() as stack:
        opened = following.open_broker(config, log, stack, None)
        assert server._run(run(opened)) == 0
        hang_ups.rest()

def engines():
    return sum(type(each) is Engine for each in gc.get_objects())

serve()
hidden = gc.get_freeze_count()
collector.release()
gc.unfreeze()  # what is still frozen would not be seen
print(hidden > 1000, engines())
"""


def test_a_broker_that_has_ended_is_freed(tmp_path: Path) -> None:
    """It is cycles, and was frozen: otherwise each hand-over would cost the memory of a broker."""
    with subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(tmp_path / "data")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        said = []
        for line in process.stderr:
            said.append(line)
            if '"ready"' in line:
                process.send_signal(signal.SIGTERM)
                break
        out, err = process.communicate(timeout=120)
        assert out == "True 0\n", "".join(said) + err

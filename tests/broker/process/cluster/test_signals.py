"""What SIGTERM does to a process whose loop has ended, as between two loops of a node."""

import signal
import subprocess
import sys

import pytest

SCRIPT = """
import asyncio, signal, sys, uvloop
from broker.process.cluster import signals

async def run():
    loop = asyncio.get_running_loop()
    for number in signals.ENDING:
        loop.add_signal_handler(number, print, "the loop had it")
    signals.give_back(loop)

factory = {"uvloop": uvloop.new_event_loop, "asyncio": asyncio.new_event_loop}[sys.argv[1]]
with asyncio.Runner(loop_factory=factory) as runner:
    runner.run(run())
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("loop", ["uvloop", "asyncio"])
def test_a_signal_ends_the_process_once_it_was_given_back(loop: str) -> None:
    for number, status in ((signal.SIGTERM, -signal.SIGTERM), (signal.SIGINT, -signal.SIGINT)):
        with subprocess.Popen(
            [sys.executable, "-c", SCRIPT, loop],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        ) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            process.send_signal(number)
            assert process.wait(30) == status

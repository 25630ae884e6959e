"""`holdfast demo`: real brokers, kill -9 in the middle of a stream, and a count of what was kept.

Needs nothing but this package: the brokers are child processes of this one, on a free loopback port
and in a temporary directory. Must never claim more than it has counted.
"""

import contextlib
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from typing import Final

from broker import own_process
from broker.cli.demo_client import Client, ClientError

OFFLINE_MESSAGES: Final = 500  # published while the subscriber is offline, all acknowledged
STREAM_MESSAGES: Final = 500  # then sent without a pause ...
KILL_AFTER: Final = 150  # ... until so many of them are acknowledged, and the broker is killed
START_TIMEOUT_S: Final = 30.0
QUIET_S: Final = 1.0  # no delivery for so long means that there are no more
PORT: Final = re.compile(r"port=([0-9]+)")
RECOVERED: Final = re.compile(r"recovered ([0-9]+) sessions? in ([0-9.]+ ?s)")


class DemoError(Exception):
    """The show could not be played; one line saying why."""


class BrokerProcess:
    """One real broker as a child process."""

    def __init__(self, data_dir: str, port: int) -> None:
        self.port: int = port
        self.recovered: str = ""
        environment = {
            name: value
            for name, value in own_process.environment().items()
            if not name.startswith("HOLDFAST_")
        }
        environment["HOLDFAST__METRICS__ENABLED"] = "false"
        # The process that exports the history outlives a killed broker for a moment, and would
        # write into a directory that is being removed.
        environment["HOLDFAST__HISTORY__DETAIL"] = "off"
        command = [*own_process.command("broker"), "serve", "-p", str(port)]
        self._process = subprocess.Popen(
            [*command, "--data-dir", data_dir],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        self._wait_until_ready()

    @property
    def pid(self) -> int:
        """The child's process id."""
        return self._process.pid

    def _wait_until_ready(self) -> None:
        assert self._process.stderr is not None
        deadline = time.monotonic() + START_TIMEOUT_S
        descriptor = self._process.stderr.fileno()
        said = ""
        while time.monotonic() < deadline:
            if not select.select([descriptor], [], [], deadline - time.monotonic())[0]:
                break
            data = os.read(descriptor, 65_536)
            said += data.decode(errors="replace")
            for line in said.splitlines():
                found = PORT.search(line)
                if "ready" in line and found is not None:
                    self.port = int(found[1])
                    recovered = RECOVERED.search(line)
                    self.recovered = recovered[0] if recovered is not None else ""
                    return
            if not data:
                break
        self.kill()
        last = said.strip().splitlines()[-1:] or ["it said nothing"]
        raise DemoError(f"the broker did not start: {last[0]}")

    def kill(self) -> None:
        """End the child with SIGKILL: it gets no chance to do anything."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGKILL)
        self._process.wait()
        assert self._process.stderr is not None
        self._process.stderr.close()


def play() -> int:
    """Play the show on stdout; return 0 when everything acknowledged was kept, else 1."""
    began = time.monotonic()
    data_dir = tempfile.mkdtemp(prefix="holdfast-demo-")
    try:
        with _brokers(data_dir) as start:
            return _play(start, began)
    except (ClientError, TimeoutError, OSError) as problem:
        raise DemoError(f"the show was interrupted: {problem}") from None
    finally:
        shutil.rmtree(data_dir, ignore_errors=True)


class _Starter:
    """Starts brokers one after the other on the same port and ends the last one."""

    def __init__(self, data_dir: str) -> None:
        self._data_dir = data_dir
        self.running: BrokerProcess | None = None
        self.port: int = 0

    def start(self) -> BrokerProcess:
        self.running = BrokerProcess(self._data_dir, self.port)
        self.port = self.running.port
        return self.running


@contextlib.contextmanager
def _brokers(data_dir: str) -> Iterator[_Starter]:
    starter = _Starter(data_dir)
    try:
        yield starter
    finally:
        if starter.running is not None:
            starter.running.kill()


def _play(starter: _Starter, began: float) -> int:
    broker = starter.start()
    say(f"broker started         pid {broker.pid}, 127.0.0.1:{broker.port}, fsync before every ack")

    boat = Client("boat-7")
    boat.connect(broker.port)
    subscribe(boat)
    harbour = Client("harbour")
    harbour.connect(broker.port)
    publish(harbour)
    broker.kill()
    harbour.close()
    acknowledged = len(harbour.acknowledged)
    done = acknowledged - OFFLINE_MESSAGES
    say(f"kill -9 {broker.pid:<14} during {STREAM_MESSAGES} more: {done} acknowledged so far")

    broker = starter.start()
    say(f"broker started again   pid {broker.pid}, {broker.recovered}")
    promised = list(harbour.acknowledged)
    harbour.connect(broker.port)
    harbour.finish()
    say("harbour reconnected    and finished what was in flight")

    boat.connect(broker.port)
    return receive(boat, promised, began)


def subscribe(boat: Client) -> None:
    """Subscribe to all orders, and go offline."""
    boat.subscribe("orders/boat-7/#", 2)
    boat.disconnect()
    say("boat-7 subscribed      orders/boat-7/# at QoS 2, then went offline")


def publish(harbour: Client) -> None:
    """Publish what is acknowledged, and then a stream of which a part is."""
    for number in range(OFFLINE_MESSAGES):
        order(harbour, number)
    harbour.finish()
    say(f"harbour published      {OFFLINE_MESSAGES} messages, QoS 1 and 2, all acknowledged")
    for number in range(OFFLINE_MESSAGES, OFFLINE_MESSAGES + STREAM_MESSAGES):
        order(harbour, number)
    while len(harbour.acknowledged) < OFFLINE_MESSAGES + KILL_AFTER:
        harbour.step()


def receive(boat: Client, promised: list[bytes], began: float) -> int:
    """Receive what there is, print what was kept of `promised`, and return the exit status."""
    say(f"boat-7 reconnected     session present: {'yes' if boat.session_present else 'NO'}")
    boat.receive_all(quiet_s=QUIET_S)
    boat.disconnect()
    return judge(boat, promised, began)


def order(harbour: Client, number: int) -> None:
    """Publish order `number`: even ones at QoS 1, odd ones at QoS 2."""
    harbour.publish("orders/boat-7/course", b"%d" % number, 1 + number % 2)


def judge(boat: Client, promised: list[bytes], began: float) -> int:
    """Print what was kept and return the exit status."""
    times = Counter(publish.payload for publish in boat.received)
    firsts = list(dict.fromkeys(int(publish.payload) for publish in boat.received))
    sent = OFFLINE_MESSAGES + STREAM_MESSAGES
    lost = [payload for payload in promised if payload not in times]
    missing = sent - len(times)
    twice = [payload for payload, count in times.items() if count > 1 and int(payload) % 2]
    by_qos = [[number for number in firsts if number % 2 == odd] for odd in (0, 1)]
    in_order = all(numbers == sorted(numbers) for numbers in by_qos)
    repeated = sum(count - 1 for payload, count in times.items() if int(payload) % 2 == 0)
    say("")
    say(f"  acknowledged before the kill   {len(promised):>5}")
    say(f"  of these lost                  {len(lost):>5}   must be 0")
    say(f"  sent in all, and missing now   {missing:>5}   must be 0 (the publisher sent again)")
    say(f"  QoS 2 delivered twice          {len(twice):>5}   must be 0")
    say(f"  QoS 1 delivered twice          {repeated:>5}   allowed (the publisher sent again)")
    say(f"  in order                       {'yes' if in_order else 'NO':>5}")
    say("")
    is_kept = not lost and not missing and not twice and in_order and boat.session_present
    verdict = "nothing was lost" if is_kept else "SOMETHING WENT WRONG"
    say(f"{verdict}, in {time.monotonic() - began:.1f} s")
    return 0 if is_kept else 1


def say(line: str) -> None:
    """Print one line of the show at once."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()

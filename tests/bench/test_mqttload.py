"""A generator that reports "nothing lost" is worth something only if it reports a loss.

Each case plants one fault in a server that is right but for it, and reads what mqttload says.
"""

import json
import selectors
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bench.generator import build

MESSAGES = 200
FAULTY = 100  # the delivery that goes wrong
PATIENCE_S = 60.0

Fault = Callable[[list[bytes]], list[bytes]]

pytestmark = pytest.mark.skipif(not shutil.which("cc"), reason="needs a C compiler")


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Compile the generator and the sink."""
    directory = tmp_path_factory.mktemp("bench")
    build(directory, "mqttload")
    build(directory, "sink")
    return directory


class Server:
    """A broker for one publisher and one subscriber, in this thread while the generator runs."""

    def __init__(self, change: Fault) -> None:
        self._change = change  # what becomes of all PUBLISH packets for the subscriber
        self._kept: list[bytes] = []
        self._subscriber: socket.socket | None = None
        self._selector = selectors.DefaultSelector()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._input: dict[socket.socket, bytes] = {}
        self.port: int = self._listener.getsockname()[1]

    def serve(self, process: subprocess.Popen[str]) -> None:
        """Answer until the generator has ended."""
        while process.poll() is None:
            for key, _ in self._selector.select(0.01):
                stream = key.fileobj
                assert isinstance(stream, socket.socket)
                if stream is self._listener:
                    client, _ = stream.accept()
                    self._input[client] = b""
                    self._selector.register(client, selectors.EVENT_READ)
                else:
                    self._receive(stream)

    def close(self) -> None:
        for stream in (self._listener, *self._input):
            stream.close()
        self._selector.close()

    def _receive(self, stream: socket.socket) -> None:
        data = stream.recv(65_536)
        if not data:
            self._selector.unregister(stream)
            stream.close()  # or the generator waits for that
            return
        self._input[stream] += data
        for packet in self._packets(stream):
            self._handle(stream, packet)

    def _packets(self, stream: socket.socket) -> Iterator[bytes]:
        """Yield whole packets; none here is longer than two bytes of length can say."""
        data = self._input[stream]
        while len(data) >= 3:
            size, head = data[1], 2
            if size & 0x80:
                size, head = size & 0x7F | data[2] << 7, 3
            if len(data) < head + size:
                break
            yield data[: head + size]
            data = data[head + size :]
        self._input[stream] = data

    def _handle(self, stream: socket.socket, packet: bytes) -> None:
        kind = packet[0] >> 4
        if kind == 1:
            stream.sendall(b"\x20\x02\x00\x00")
        elif kind == 8:
            self._subscriber = stream
            stream.sendall(b"\x90\x03" + packet[2:4] + b"\x01")
        elif kind == 3:
            # A topic of 14 to 23 characters and 128 B of payload: two bytes of length.
            end = 5 + int.from_bytes(packet[3:5], "big")
            stream.sendall(b"\x40\x02" + packet[end : end + 2])
            self._kept.append(packet)
            if len(self._kept) == MESSAGES:
                assert self._subscriber is not None
                self._subscriber.sendall(b"".join(self._change(self._kept)))


def run(programs: Path, change: Fault) -> dict[str, Any]:
    """Return what the generator says of a faulty server; its window lets it send all at once."""
    server = Server(change)
    command = [str(programs / "mqttload"), "pubsub", f"--port={server.port}", "--qos=1"]
    command += [f"--messages={MESSAGES}", f"--window={MESSAGES}", "--idle=0.3", "--timeout=10"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        server.serve(process)
        out, errors = process.communicate(timeout=PATIENCE_S)
    server.close()
    assert process.returncode in (0, 1), errors
    line: dict[str, Any] = json.loads(out)
    assert line["ok"] == (process.returncode == 0)
    return line


def corrupt(packets: list[bytes]) -> list[bytes]:
    wrong = packets[FAULTY][:-1] + bytes([packets[FAULTY][-1] ^ 1])
    return [*packets[:FAULTY], wrong, *packets[FAULTY + 1 :]]


@pytest.mark.parametrize(
    ("change", "counts"),
    [
        (lambda p: p, {"lost": 0, "dup": 0, "ooo": 0, "corrupt": 0}),
        (lambda p: p[:FAULTY] + p[FAULTY + 3 :], {"lost": 3, "dup": 0}),
        (lambda p: p[:FAULTY] + p[FAULTY - 2 :], {"lost": 0, "dup": 2}),
        (lambda p: [p[1], p[0], *p[2:]], {"lost": 0, "ooo": 1}),
        (corrupt, {"lost": 0, "corrupt": 1}),
    ],
    ids=["right", "loses", "repeats", "reorders", "corrupts"],
)
def test_the_generator_counts_what_a_server_does_wrong(
    programs: Path, change: Fault, counts: dict[str, int]
) -> None:
    line = run(programs, change)
    assert line["acked"] == MESSAGES
    found = {**line, **line["errors"]}
    assert {name: found[name] for name in counts} == counts
    # QoS 1 may repeat; everything else is a failure.
    assert line["ok"] == (not any(n for name, n in counts.items() if name != "dup"))


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("pattern", ["pair", "fanout", "fanin", "split"])
def test_the_sink_passes_for_a_broker(programs: Path, qos: int, pattern: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    sides = {
        "pair": ["--pubs=3", "--subs=3"],
        "fanout": ["--pubs=1", "--subs=3"],
        "fanin": ["--pubs=3", "--subs=1"],
        "split": ["--pubs=4", "--subs=2"],
    }
    with subprocess.Popen([programs / "sink", str(port)]) as sink:
        try:
            generator = str(programs / "mqttload")
            subprocess.run(
                [generator, "wait", f"--port={port}", "--for=10"], check=True, capture_output=True
            )
            command = [generator, "pubsub", f"--port={port}", f"--pattern={pattern}"]
            command += [f"--qos={qos}", "--messages=300", "--idle=2", *sides[pattern]]
            ran = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
        finally:
            sink.kill()
    line = json.loads(ran.stdout)
    assert line["ok"] is True
    assert line["lost"] == 0
    assert line["delivered"] == 300 * (3 if pattern == "fanout" else 1)

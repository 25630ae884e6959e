"""Check that a slow disk delays only what needs a sync: PINGRESP and QoS 0 stay fast.

Every fsync and fdatasync of the broker takes 2 s longer (tests/durability/iofault.c, preloaded).
Publishers send QoS 1 to durable sessions, so that a sync is always running. At the same time one
client pings, and others exchange QoS 0 messages with clean sessions. The 99th percentile of these
must stay under 50 ms. The QoS 1 acknowledgements must take the 2 s, or the check proved nothing.
Started by `bench/run.py --slow-disk`.
"""

import json
import shutil
import socket
import subprocess
import time
from pathlib import Path
from typing import Any, Final

from bench.brokers import ROOT, BenchError, Broker

SYNC_DELAY_MS: Final = 2000
P99_MS_MAX: Final = 50.0  # for PINGRESP and QoS 0
SECONDS: Final = 20  # ten slow syncs
WRITERS: Final = 10
WRITER_RATE: Final = 50  # QoS 1 messages a second each
PROBE_PAIRS: Final = 10
PROBE_RATE: Final = 50  # QoS 0 messages a second each
PINGS_PER_SECOND: Final = 100

Line = dict[str, Any]


def measure(generator: Path, scratch: Path, *, kind: str, disk: Path | None) -> Line:
    """Return the latencies with the plain disk and with every sync 2 s slower."""
    shim = _build_shim(scratch)
    normal, slow = (
        _latencies(generator, scratch, shim, kind=kind, delay_ms=delay_ms, disk=disk)
        for delay_ms in (0, SYNC_DELAY_MS)
    )
    result: Line = {"broker_kind": kind, "normal": normal, "slow": slow}
    result["disk_was_slow"] = slow["qos1_ack_ms"]["p50"] >= SYNC_DELAY_MS / 2
    result["ok"] = bool(
        result["disk_was_slow"]
        and slow["ping_ms"]["p99"] < P99_MS_MAX
        and slow["qos0_ms"]["p99"] < P99_MS_MAX
    )
    return result


def rows(result: Line) -> list[str]:
    """Return the result as Markdown lines."""
    text = [
        f"### A disk that takes {SYNC_DELAY_MS / 1000:g} s to sync ({result['broker_kind']})",
        "",
        "| | p50 ms | p99 ms | max ms |",
        "| --- | --- | --- | --- |",
    ]
    names = {"ping_ms": "PINGRESP", "qos0_ms": "QoS 0 delivery", "qos1_ack_ms": "QoS 1 PUBACK"}
    for name, title in names.items():
        for disk in ("normal", "slow"):
            entry = result[disk][name]
            text.append(
                f"| {title}, {disk} disk | {entry['p50']:.1f} | {entry['p99']:.1f} "
                f"| {entry['max']:.1f} |"
            )
    verdict = "holds" if result["ok"] else "does NOT hold"
    if not result["disk_was_slow"]:
        verdict = "was not tested: the injected delay did not reach the acknowledgements"
    text += ["", f"PINGRESP and QoS 0 under {P99_MS_MAX:g} ms at p99: {verdict}."]
    return text


def _build_shim(directory: Path) -> Path:
    source = ROOT / "tests" / "durability" / "iofault.c"
    compiler = shutil.which("cc")
    if not compiler:
        raise BenchError("a C compiler is missing: scripts/setup --bench")
    shim = directory / "iofault.so"
    command = [compiler, "-O2", "-shared", "-fPIC", "-o", str(shim), str(source), "-ldl"]
    subprocess.run(command, check=True)
    return shim


def _latencies(
    generator: Path, scratch: Path, shim: Path, *, kind: str, delay_ms: int, disk: Path | None
) -> Line:
    """Run writers, QoS 0 pairs and a pinging client together and return their latencies."""
    control = scratch / "iofault.rules"
    control.unlink(missing_ok=True)
    environment = {"LD_PRELOAD": str(shim), "HOLDFAST_IOFAULT_CONTROL": str(control)}
    with Broker(kind, environment=environment, directory=disk) as broker:
        try:
            if delay_ms:
                control.write_text(f"mode=delay ops=fsync,fdatasync ms={delay_ms}\n")
            writers = _start(
                generator, broker, qos=1, pairs=WRITERS, rate=WRITER_RATE, durable=True
            )
            probes = _start(
                generator, broker, qos=0, pairs=PROBE_PAIRS, rate=PROBE_RATE, durable=False
            )
            pings = _ping(broker.port, SECONDS)
            qos0, qos1 = _finish(probes), _finish(writers)
        finally:
            control.unlink(missing_ok=True)  # else stopping the broker takes seconds
    return {
        "ping_ms": _summary(pings),
        "qos0_ms": {name: qos0["lat_us"][name] / 1000 for name in ("p50", "p99", "max")},
        "qos1_ack_ms": {name: qos1["ack_us"][name] / 1000 for name in ("p50", "p99", "max")},
        "lines": [qos0, qos1],
    }


def _start(
    generator: Path, broker: Broker, *, qos: int, pairs: int, rate: int, durable: bool
) -> subprocess.Popen[str]:
    command = [
        str(generator),
        "pubsub",
        f"--port={broker.port}",
        f"--pubs={pairs}",
        f"--subs={pairs}",
        f"--qos={qos}",
        f"--rate={rate}",
        f"--seconds={SECONDS}",
        "--warmup=3",
        "--window=1000",
        "--idle=10",
        f"--persistent={int(durable)}",
    ]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def _finish(process: subprocess.Popen[str]) -> Line:
    out, errors = process.communicate(timeout=SECONDS * 5 + 60)
    if process.returncode == 2 or not out.strip():
        raise BenchError(f"the generator could not run: {errors.strip()}")
    line: Line = json.loads(out)
    return line


def _ping(port: int, seconds: float) -> list[float]:
    """Ping at a steady rate and return the round trips in ms, each from its scheduled time."""
    connect = b"\x10\x10\x00\x04MQTT\x04\x02\x00\x3c\x00\x04ping"
    times: list[float] = []
    with socket.create_connection(("127.0.0.1", port), 10) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.sendall(connect)
        if _receive(connection, 4) != b"\x20\x02\x00\x00":
            raise BenchError("the pinging client was not let in")
        start = time.monotonic()
        for number in range(int(seconds * PINGS_PER_SECOND)):
            due = start + number / PINGS_PER_SECOND
            time.sleep(max(0.0, due - time.monotonic()))
            connection.sendall(b"\xc0\x00")
            if _receive(connection, 2) != b"\xd0\x00":
                raise BenchError("something else than a PINGRESP came back")
            times.append((time.monotonic() - due) * 1000)
        connection.sendall(b"\xe0\x00")
    return times


def _receive(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        chunk = connection.recv(size - len(data))
        if not chunk:
            raise BenchError("the broker closed the pinging client's connection")
        data += chunk
    return data


def _summary(times: list[float]) -> dict[str, float]:
    ordered = sorted(times)
    return {
        "p50": ordered[len(ordered) // 2],
        "p99": ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))],
        "max": ordered[-1],
    }

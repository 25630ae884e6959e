"""Holdfast, durable with fsync, beside Debian's mosquitto in memory: same machine, same run.

    python bench/run.py                  5 rounds, QoS 0, 1 and 2, 50 and 100 pairs of clients
    python bench/run.py --quick          3 short rounds
    python bench/run.py --qos 1 --pairs 50 --rounds 7
    python bench/run.py --slow-disk      only the check with a disk that takes 2 s to sync

Each cell is a fresh broker on an empty directory; the brokers take turns, in changing order, and
the median of the rounds counts. Writes bench/results/NAME.json (every line the generator printed)
and NAME.md. Exit 0 when every delivery was accounted for, 1 when a broker lost or repeated
something.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.brokers import (
    COMPILED,
    HOLDFAST,
    MOSQUITTO,
    ROOT,
    BenchError,
    Broker,
    build_generator,
    compile_holdfast,
    version_of,
)
from bench.slow_disk import measure as measure_slow_disk
from bench.slow_disk import rows as slow_disk_rows

RESULTS: Final = ROOT / "bench" / "results"
PAYLOAD_BYTES: Final = 128
BUSY: Final = 0.9  # of one core: what keeps a side from doing more

Line = dict[str, Any]  # what the generator printed about one run


def load(generator: Path, broker: Broker, *, qos: int, pairs: int, seconds: float) -> Line:
    """Run one cell: `pairs` publishers, each with a subscriber of its own, for `seconds`."""
    durable = broker.kind != MOSQUITTO
    command = [
        str(generator),
        "pubsub",
        f"--port={broker.port}",
        "--pattern=pair",
        f"--pubs={pairs}",
        f"--subs={pairs}",
        f"--qos={qos}",
        f"--payload={PAYLOAD_BYTES}",
        f"--seconds={seconds}",
        "--warmup=1",
        f"--persistent={int(durable)}",
        f"--pid={broker.pid}",
    ]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=seconds * 10 + 120)
    if ran.returncode == 2 or not ran.stdout.strip():
        raise BenchError(f"the generator could not run: {ran.stderr.strip()}")
    line: Line = json.loads(ran.stdout)
    return line


def measure(generator: Path, arguments: argparse.Namespace) -> list[Line]:
    """Run every cell in every round and return the generator's lines, labelled."""
    lines: list[Line] = []
    for number in range(arguments.rounds):
        # Whoever comes second finds a warmer machine: take turns at that, too.
        order = arguments.brokers if number % 2 == 0 else arguments.brokers[::-1]
        for qos in arguments.qos:
            for pairs in arguments.pairs:
                for kind in order:
                    with Broker(
                        kind, durability=arguments.durability, directory=arguments.disk
                    ) as broker:
                        line = load(
                            generator, broker, qos=qos, pairs=pairs, seconds=arguments.seconds
                        )
                    line.update(broker_kind=kind, round=number + 1)
                    lines.append(line)
                    say(
                        f"round {number + 1}/{arguments.rounds} qos {qos} pairs {pairs:>3} "
                        f"{kind:<17} {line['delivered_per_s']:>9,.0f} msg/s "
                        f"broker {cpu_share(line):4.0%} generator {generator_share(line):4.0%}"
                        + ("" if line["ok"] else "  NOT OK: " + trouble(line))
                    )
    return lines


def cpu_share(line: Line) -> float:
    """Return the broker's CPU time as a share of one core (above 1: several threads)."""
    return float(line["broker"]["cpu_s"]) / max(float(line["secs"]), 1e-9)


def generator_share(line: Line) -> float:
    """Return the generator's CPU time as a share of one core; it has one thread."""
    return float(line["gen_cpu_s"]) / max(float(line["secs"]), 1e-9)


def trouble(line: Line) -> str:
    """Return in words what was wrong with a run."""
    counts = {name: line[name] for name in ("lost", "dup", "ooo", "unacked") if line[name]}
    errors = {name: count for name, count in line["errors"].items() if count}
    return ", ".join(f"{name} {count}" for name, count in {**counts, **errors}.items())


def cell(lines: list[Line], kind: str, qos: int, pairs: int) -> Line | None:
    """Return the medians of one cell over its rounds, or None if it was not run."""
    runs = [
        line
        for line in lines
        if (line["broker_kind"], line["qos"], line["pubs"]) == (kind, qos, pairs)
    ]
    if not runs:
        return None
    rates = sorted(run["delivered_per_s"] for run in runs)
    acks = [run["ack_us"]["p99"] for run in runs if "ack_us" in run]
    return {
        "per_s": statistics.median(rates),
        "low": rates[0],
        "high": rates[-1],
        "us_per_message": statistics.median(run["broker"]["us_per_delivered"] for run in runs),
        "broker_cpu": statistics.median(cpu_share(run) for run in runs),
        "generator_cpu": statistics.median(generator_share(run) for run in runs),
        "ack_p99_ms": statistics.median(acks) / 1000 if acks else None,
        "rss_mib": statistics.median(run["broker"]["hwm_kb"] for run in runs) / 1024,
        "ok": all(run["ok"] for run in runs),
    }


def limit(entry: Line) -> str:
    """Return which side kept the rate of a cell from being higher."""
    sides = [
        side
        for side, share in (("broker", entry["broker_cpu"]), ("generator", entry["generator_cpu"]))
        if share >= BUSY
    ]
    return " and ".join(sides) or "waiting"


def table(lines: list[Line], arguments: argparse.Namespace) -> list[str]:
    """Return the comparison as markdown lines."""
    rows = [
        "| QoS | pairs | broker | messages/s (range) | ratio | CPU µs/message | broker CPU "
        "| generator CPU | limit | ack p99 ms | peak RSS MiB |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for qos in arguments.qos:
        for pairs in arguments.pairs:
            base = cell(lines, MOSQUITTO, qos, pairs)
            for kind in (MOSQUITTO, HOLDFAST, COMPILED):
                entry = cell(lines, kind, qos, pairs)
                if entry is None:
                    continue
                ratio = f"**{entry['per_s'] / base['per_s']:.2f}**" if base else "-"
                ack = "-" if entry["ack_p99_ms"] is None else f"{entry['ack_p99_ms']:.1f}"
                rows.append(
                    f"| {qos} | {pairs} | {kind} | {entry['per_s']:,.0f} "
                    f"({entry['low']:,.0f} to {entry['high']:,.0f}) | {ratio} "
                    f"| {entry['us_per_message']:.2f} | {entry['broker_cpu']:.0%} "
                    f"| {entry['generator_cpu']:.0%} | {limit(entry)} | {ack} "
                    f"| {entry['rss_mib']:.0f} |" + ("" if entry["ok"] else " NOT OK")
                )
    return rows


def report(lines: list[Line], slow: Line | None, about: Line) -> str:
    """Return the whole result as a markdown document."""
    arguments = argparse.Namespace(**about["arguments"])
    text = [
        f"# Holdfast beside mosquitto, {about['date']}",
        "",
        f"- {about['machine']}; load average before the run {about['load_average']}",
        *(f"- {version}" for version in about["versions"]),
        f"- Holdfast: durable sessions, `durability = {arguments.durability}` "
        "(an acknowledgement waits for the fsync of its message);"
        " mosquitto: default configuration, in memory, clean sessions",
        f"- command: `{about['command']}`",
        "",
    ]
    if lines:
        text += [
            f"One publisher to one subscriber per pair, {PAYLOAD_BYTES} B payload, window 20, "
            f"{arguments.seconds:g} s after 1 s of warm-up, median of {arguments.rounds} rounds, "
            "fresh broker and directory each time, brokers taking turns.",
            "",
            *table(lines, arguments),
            "",
            f"`limit` is the side that used {BUSY:.0%} of a core or more; `waiting` means neither.",
            "",
        ]
    if slow:
        text += [*slow_disk_rows(slow), ""]
    return "\n".join(text)


def document(about: Line, lines: list[Line], slow: Line | None) -> str:
    """Return everything as JSON, one line per run so that results can be compared by diff."""
    runs = ",\n".join("  " + json.dumps(line) for line in lines)
    return (
        f'{{\n "about": {json.dumps(about)},\n "lines": [\n{runs}\n ],\n'
        f' "slow_disk": {json.dumps(slow)}\n}}\n'
    )


def machine() -> str:
    """Return what the measurement ran on, as far as a reader needs it."""
    model = "unknown CPU"
    for entry in Path("/proc/cpuinfo").read_text().splitlines():
        if entry.startswith("model name"):
            model = entry.partition(":")[2].strip()
            break
    return f"{os.cpu_count()} cores, {model}, {platform.system()} {platform.release()}"


def say(text: str) -> None:
    """Report progress on stderr."""
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def parse() -> argparse.Namespace:
    """Return the command line, with everything that --quick leaves open filled in."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--quick", action="store_true", help="3 rounds of 3 s instead of 5 of 8 s")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--seconds", type=float)
    parser.add_argument("--qos", type=int, nargs="+", default=[0, 1, 2], choices=[0, 1, 2])
    parser.add_argument("--pairs", type=int, nargs="+", default=[50, 100])
    parser.add_argument("--brokers", nargs="+", default=[MOSQUITTO, HOLDFAST, COMPILED])
    parser.add_argument("--durability", default="fsync", help="fsync, os or interval:MS")
    parser.add_argument("--disk", type=Path, help="directory on the disk to measure")
    parser.add_argument("--slow-disk", action="store_true", help="only the slow-disk check")
    parser.add_argument("--no-slow-disk", action="store_true", help="without the slow-disk check")
    parser.add_argument("--name", help="of the files in bench/results, default: the date")
    arguments = parser.parse_args()
    arguments.rounds = arguments.rounds or (3 if arguments.quick else 5)
    arguments.seconds = arguments.seconds or (3.0 if arguments.quick else 8.0)
    arguments.name = arguments.name or time.strftime("%Y-%m-%d-%H%M")
    return arguments


def main() -> int:
    """Measure, write the two result files, and print the table."""
    arguments = parse()
    about: Line = {
        "date": time.strftime("%Y-%m-%d"),
        "machine": machine(),
        "load_average": f"{os.getloadavg()[0]:.2f}",
        "command": "python bench/run.py " + " ".join(sys.argv[1:]),
        "arguments": {**vars(arguments), "disk": str(arguments.disk) if arguments.disk else None},
    }
    try:
        if COMPILED in arguments.brokers:
            compile_holdfast()
        about["versions"] = [version_of(kind) for kind in arguments.brokers]
        with tempfile.TemporaryDirectory() as directory:
            generator = build_generator(Path(directory))
            lines = [] if arguments.slow_disk else measure(generator, arguments)
            slow = None
            ours = [kind for kind in arguments.brokers if kind != MOSQUITTO]
            if ours and not arguments.no_slow_disk:
                slow = measure_slow_disk(
                    generator, Path(directory), kind=ours[-1], disk=arguments.disk
                )
    except BenchError as problem:
        say(f"bench: {problem}")
        return 2
    text = report(lines, slow, about)
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{arguments.name}.md").write_text(text)
    (RESULTS / f"{arguments.name}.json").write_text(document(about, lines, slow))
    sys.stdout.write(text)
    say(f"written: bench/results/{arguments.name}.md and .json")
    return 0 if all(line["ok"] for line in lines) and (slow is None or slow["ok"]) else 1


if __name__ == "__main__":
    sys.exit(main())

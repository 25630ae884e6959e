"""Compare Holdfast with other brokers on the same machine with the same load generator.

    python bench/run.py                  every work, 5 rounds: about half an hour
    python bench/run.py --quick          every work, small and once: about two minutes
    python bench/run.py --only qos1 qos2 --rounds 3
    python bench/run.py --sessions 100000
    python bench/run.py --curves         how cost grows, one run per point
    python bench/run.py --slow-disk      only the check with a disk that takes 2 s to sync
    python bench/run.py --cluster        beside a cluster: works, takeovers, ten minutes
    python bench/run.py --document bench/results/NAME.json [bench/results/NAME-curves.json]

Each measurement starts a fresh broker on an empty directory. The brokers take turns in changing
order, and the median of the rounds counts. Writes bench/results/NAME.json, NAME.md and NAME.svg.
Exit status: 0 if no broker lost or repeated a message, 1 if one did, 2 if the benchmark could not
run. The table shows which goals were met; a missed goal does not change the exit status.
"""

import argparse
import json
import os
import platform
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench import cluster_table, curves, document, scenarios, slow_disk, table, takeover
from bench.brokers import (
    CLUSTERS,
    COMPILED,
    COMPILED_KAFKA,
    MOSQUITTO,
    NATS,
    OTHERS,
    OURS,
    ROOT,
    SINK,
    BenchError,
    compile_holdfast,
    installed,
    program,
    version_of,
)
from bench.generator import Generator, sync_times_ms
from bench.goals import BY_KEY, Cell, limit, written

RESULTS: Final = ROOT / "bench" / "results"
QUICK_SECONDS: Final = 1.0
CLUSTER_ROUNDS: Final = 2
CLUSTER_SECONDS: Final = 3.0
FULL_SECONDS: Final = 5.0
SESSIONS: Final = 1_000_000
QUICK_SESSIONS: Final = 20_000


def measure(context: scenarios.Context, arguments: argparse.Namespace) -> list[Cell]:
    """Run every scenario on every broker in every round and return the results.

    Ctrl-C ends it after the current run; the results so far are returned.
    """
    cells: list[Cell] = []
    try:
        cells.extend(_turns(context, arguments))
    except KeyboardInterrupt:
        say("interrupted: this is what there is")
    return cells


def _turns(context: scenarios.Context, arguments: argparse.Namespace) -> Iterator[Cell]:
    chosen = [s for s in scenarios.ALL if not arguments.only or s.key in arguments.only]
    for number in range(arguments.rounds):
        for scenario in chosen:
            if number >= scenario.rounds_max:
                continue
            kinds = [kind for kind in (*arguments.brokers, SINK) if kind in scenario.kinds]
            if number and SINK in kinds:
                kinds.remove(SINK)  # one run is enough for the generator's limit
            # The second broker runs on a warmer machine, so the order alternates.
            for kind in kinds if number % 2 == 0 else kinds[::-1]:
                yield from one(context, scenario, kind, number + 1)


def one(
    context: scenarios.Context, scenario: scenarios.Scenario, kind: str, number: int
) -> list[Cell]:
    """Run one scenario on one broker; if it cannot run, report it as failed cells."""
    context.generator.lines.clear()
    began = time.monotonic()
    try:
        outcome = scenario.measure(context, kind)
    except BenchError as problem:
        say(f"round {number} {scenario.key} {kind}: {problem}")
        return [
            {
                "work": work,
                "broker": kind,
                "round": number,
                "metrics": {},
                "ok": False,
                "trouble": f"{kind}, {work}: {str(problem).splitlines()[0]}",
                "lines": [],
            }
            for work in scenario.works
        ]
    took = time.monotonic() - began
    cells = []
    for work, metrics in outcome.works.items():
        main = BY_KEY[work].main
        say(
            f"round {number} {work:<9} {kind:<17} {written(main, metrics[main]):>14} "
            f"{metrics.get('us', 0):7.2f} us/msg  limit {limit(metrics, os.cpu_count() or 1):<9} "
            f"({took:.0f} s)" + ("" if outcome.ok else f"  NOT OK: {outcome.trouble}")
        )
        cells.append(
            {
                "work": work,
                "broker": kind,
                "round": number,
                "metrics": {name: round(value, 4) for name, value in metrics.items()},
                "ok": outcome.ok,
                "trouble": f"{kind}, {work}: {outcome.trouble}" if outcome.trouble else "",
                "lines": list(context.generator.lines),
            }
        )
    return cells


def scaled(context: scenarios.Context) -> dict[str, float]:
    """Return the works that ran below the size of their goals, and the factor of each."""
    sizes = {"sessions": context.sessions / SESSIONS}
    if context.is_quick:
        sizes |= {"publish": 0.1, "drain": 0.1, "queued": 0.1, "storm": 0.25, "wildcards": 0.2}
    return {work: size for work, size in sizes.items() if size < 1}


def about(context: scenarios.Context, arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the settings and environment of a run; call it before the run."""
    syncs = sync_times_ms(context.disk)
    return {
        "date": time.strftime("%Y-%m-%d"),
        "machine": machine(),
        "cores": os.cpu_count() or 1,
        "load_average": f"{os.getloadavg()[0]:.2f}",
        "sync_ms": {"p50": syncs[len(syncs) // 2], "p99": syncs[int(len(syncs) * 0.99)]},
        "command": " ".join(["python bench/run.py", *sys.argv[1:]]),
        "versions": [version_of(kind) for kind in arguments.brokers],
        "durability": arguments.durability,
        "rounds": arguments.rounds,
        "seconds": arguments.seconds,
        "quick": arguments.quick,
        "scaled": scaled(context),
    }


def machine() -> str:
    """Return a short description of the machine."""
    model = "unknown CPU"
    for entry in Path("/proc/cpuinfo").read_text().splitlines():
        if entry.startswith("model name"):
            model = entry.partition(":")[2].strip()
            break
    return f"{os.cpu_count()} cores, {model}, {platform.system()} {platform.release()}"


def as_json(result: Mapping[str, Any]) -> str:
    """Return the result as JSON, one line per run so that diff can compare results."""
    parts = []
    for name, value in result.items():
        if isinstance(value, list):
            runs = ",\n".join("  " + json.dumps(line) for line in value)
            parts.append(f' "{name}": [\n{runs}\n ]')
        else:
            parts.append(f' "{name}": {json.dumps(value)}')
    return "{\n" + ",\n".join(parts) + "\n}\n"


def say(text: str) -> None:
    """Report progress on stderr."""
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def parse() -> argparse.Namespace:
    """Return the command line with defaults filled in, which --quick changes."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="small, short and once")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--seconds", type=float, help="of each live measurement")
    parser.add_argument("--only", nargs="+", choices=[s.key for s in scenarios.ALL], default=[])
    parser.add_argument(
        "--brokers", nargs="+", choices=[*OTHERS, *OURS, *CLUSTERS], help="default: all here"
    )
    parser.add_argument("--sessions", type=int, help="offline sessions, default 1,000,000")
    parser.add_argument("--durability", default="fsync", help="fsync, os or interval:MS")
    parser.add_argument("--disk", type=Path, help="directory on the disk to measure")
    parser.add_argument("--curves", nargs="*", choices=list(curves.BY_KEY), help="default: all")
    parser.add_argument("--slow-disk", action="store_true", help="only the slow-disk check")
    parser.add_argument("--cluster", action="store_true", help="compare with a cluster")
    parser.add_argument("--no-takeover", action="store_true", help="with --cluster: only works")
    parser.add_argument(
        "--document", nargs="+", type=Path, help="results to put into the documents"
    )
    parser.add_argument("--name", help="of the files in bench/results, default: the date")
    arguments = parser.parse_args()
    quick = arguments.quick
    if arguments.cluster:
        arguments.rounds = arguments.rounds or (1 if quick else CLUSTER_ROUNDS)
        arguments.seconds = arguments.seconds or (QUICK_SECONDS if quick else CLUSTER_SECONDS)
        arguments.only = arguments.only or cluster_table.KEYS
        arguments.brokers = arguments.brokers or [
            *(COMPILED, COMPILED_KAFKA),
            *([NATS] if program(NATS) else []),
        ]
    arguments.rounds = arguments.rounds or (1 if quick else 5)
    arguments.seconds = arguments.seconds or (QUICK_SECONDS if quick else FULL_SECONDS)
    arguments.sessions = arguments.sessions or (QUICK_SESSIONS if quick else SESSIONS)
    arguments.name = arguments.name or time.strftime("%Y-%m-%d-%H%M")
    arguments.brokers = arguments.brokers or [*installed(), *OURS]
    return arguments


def run(arguments: argparse.Namespace, directory: Path) -> dict[str, Any]:
    """Measure what the command line asks for."""
    context = scenarios.Context(
        Generator(directory),
        seconds=arguments.seconds,
        is_quick=arguments.quick,
        sessions=arguments.sessions,
        durability=arguments.durability,
        disk=arguments.disk,
    )
    result: dict[str, Any] = {"about": about(context, arguments)}
    ours = [kind for kind in arguments.brokers if kind in OURS]
    try:
        if arguments.curves is not None:
            keys = arguments.curves or list(curves.BY_KEY)
            result["points"] = curves.measure(context, arguments.brokers, keys, say)
            return result
        result["cells"] = [] if arguments.slow_disk else measure(context, arguments)
        if arguments.cluster:
            result["takeovers"] = _takeovers(context, arguments)
            return result
        result["slow_disk"] = None
        if ours and (arguments.slow_disk or not (arguments.quick or arguments.only)):
            result["slow_disk"] = slow_disk.measure(
                context.generator.program, directory, kind=ours[-1], disk=arguments.disk
            )
    finally:
        context.close()
    return result


def _takeovers(context: scenarios.Context, arguments: argparse.Namespace) -> list[takeover.Turn]:
    """Measure takeovers of the clusters that are measured, with as many sessions as are asked."""
    if arguments.no_takeover:
        return []
    kinds = [kind for kind in arguments.brokers if kind in CLUSTERS]
    sizes = tuple(size for size in takeover.SIZES if size <= context.sessions)
    return takeover.measure(context, kinds, sizes, say)


def save(result: Mapping[str, Any], name: str) -> str:
    """Write the result's files and return it as text."""
    RESULTS.mkdir(exist_ok=True)
    if "takeovers" in result:
        title = f"# A cluster beside one node, {result['about']['date']}"
        text = "\n".join([title, "", *cluster_table.report(result), ""])
        (RESULTS / f"{name}.json").write_text(as_json(result))
        (RESULTS / f"{name}.md").write_text(text)
        say(f"written: bench/results/{name}.json and .md")
        return text
    if "points" in result:
        (RESULTS / f"{name}-curves.json").write_text(as_json(result))
        say(f"written: bench/results/{name}-curves.json")
        return ""
    title = f"# Holdfast beside {MOSQUITTO}, {result['about']['date']}"
    lines = [title, "", *(table.report(result) if result["cells"] else [])]
    if result["slow_disk"]:
        lines += ["", *slow_disk.rows(result["slow_disk"])]
    text = "\n".join([*lines, ""])
    (RESULTS / f"{name}.json").write_text(as_json(result))
    (RESULTS / f"{name}.md").write_text(text)
    if result["cells"]:
        (RESULTS / f"{name}.svg").write_text(document.ratios_plot(result))
    say(f"written: bench/results/{name}.json, .md and .svg")
    return text


def main() -> int:
    """Measure, write the result files, and print the table."""
    arguments = parse()
    if arguments.document:
        for name in document.write(arguments.document):
            say(f"written: {name}")
        return 0
    try:
        if {COMPILED, COMPILED_KAFKA} & set(arguments.brokers):
            compile_holdfast()
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # the brokers end with it
        with tempfile.TemporaryDirectory() as directory:
            result = run(arguments, Path(directory))
    except BenchError as problem:
        say(f"bench: {problem}")
        return 2
    sys.stdout.write(save(result, arguments.name))
    runs = [each for key in ("cells", "points", "takeovers") for each in result.get(key, [])]
    slow = result.get("slow_disk")
    return 0 if all(one["ok"] for one in runs) and (slow is None or slow["ok"]) else 1


if __name__ == "__main__":
    sys.exit(main())

"""The command line: `holdfast audit run | watch | doctor`.

Exit status: 0 = ok, 2 = violated, 3 = unknown: the verdict. 1 = no verdict, because the audit
failed; 64 = wrong usage (the usual 2 would look like a verdict); 130 = interrupted. Progress goes
to stderr, the verdict to stdout. Heavy modules are imported only when needed, and those of the
extra only after a check that it is installed.
"""

import argparse
import contextlib
import fcntl
import logging
import os
import re
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

from audit import doctor

if TYPE_CHECKING:
    from audit.run import Progress

EXIT_FAILED: Final = 1
EXIT_USAGE: Final = 64  # EX_USAGE of sysexits.h
EXIT_INTERRUPTED: Final = 130  # 128 + SIGINT, as shells report it

TRACE: Final = "HOLDFAST_AUDIT_TRACE"  # if set, errors of Spark are shown in full
LINE_MAX: Final = 400  # characters of an error
UNTESTED_MAX: Final = 5  # stretches of time that could not be tested, named with the verdict
OUT_DEFAULT: Final = "holdfast-audit"
MEMORY_DEFAULT: Final = "2g"
MEMORY_MIN_MIB: Final = 600  # Spark needs 450 MiB, and does not count all of Java's heap
_MASTER: Final = re.compile(
    r"local(\[(\*|[1-9]\d*)(, *[1-9]\d*)?\])?|local-cluster\[.+\]|(spark|k8s)://.+|yarn"
)
_SIGNS: Final = {"ok": "✓", "warning": "!", "missing": "✕"}
_EPILOG: Final = (
    "Exit status: 0 ok, 2 violated, 3 unknown; 1 no verdict (it could not be done), "
    "64 asked for in a wrong way, 130 interrupted. More in docs/audit.md."
)


class AuditError(Exception):
    """An expected failure: one line for the operator."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """Exit with 64, because argparse's default of 2 means `violated` here."""
        self.print_usage(sys.stderr)
        self.exit(EXIT_USAGE, f"{self.prog}: {message}\n")


def main(arguments: Sequence[str] | None = None, *, prog: str = "holdfast audit") -> int:
    """Run the command with `arguments` (default: those of the process); return its exit status."""
    options = build_parser(prog).parse_args(arguments)
    try:
        status: int = options.run(options)
    except AuditError as problem:
        print(f"{prog}: {problem}", file=sys.stderr)
        return EXIT_FAILED
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    return status


def build_parser(prog: str) -> argparse.ArgumentParser:
    """Return the parser of the command."""
    parser = _Parser(
        prog=prog,
        description="Hold a session history against nineteen invariants, and say what it shows.",
        epilog=_EPILOG,
    )
    actions = parser.add_subparsers(required=True, metavar="ACTION", parser_class=_Parser)
    run = actions.add_parser("run", help="audit what is new in a history", epilog=_EPILOG)
    _add_common(run)
    run.add_argument("--from", dest="start", type=_moment, metavar="TIME",
                     help="from this hour on (ISO 8601, UTC unless it says otherwise)")  # fmt: skip
    run.add_argument("--from-db", metavar="DIR",
                     help="a checkpoint or data directory: audit what it has and no segment, too; "
                     "the batch does not count")  # fmt: skip
    run.add_argument("--to", dest="end", type=_moment, metavar="TIME", help="up to this hour")
    run.set_defaults(run=run_once)
    watch = actions.add_parser(
        "watch", help="the same as a stream: what is new, or everything as it comes", epilog=_EPILOG
    )
    _add_common(watch)
    watch.add_argument(
        "--every", type=_seconds, metavar="SECONDS",
        help="look again so often (60s, 5m) until interrupted; without it: once, what is there",
    )  # fmt: skip
    watch.set_defaults(run=run_watch)
    check = actions.add_parser("doctor", help="say what an audit needs, and how to get it")
    check.add_argument("--history", metavar="DIR", help="look at this history, too")
    check.add_argument("--out", metavar="DIR", default=OUT_DEFAULT, help=argparse.SUPPRESS)
    check.set_defaults(run=run_doctor)
    return parser


def _add_common(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--history", metavar="DIR", required=True,
                        help="folder of the segments: a path, or s3a://, hdfs:// ...")  # fmt: skip
    parser.add_argument("--out", metavar="DIR", default=OUT_DEFAULT,
                        help=f"results, and what the next run needs ({OUT_DEFAULT})")  # fmt: skip
    parser.add_argument("--master", metavar="URL", type=_master, help="Spark master (local[*])")
    parser.add_argument("--memory", metavar="SIZE", type=_memory, default=MEMORY_DEFAULT,
                        help=f"of the driver ({MEMORY_DEFAULT})")  # fmt: skip
    parser.add_argument("--horizon", metavar="SECONDS", type=_seconds,
                        help="what is owed for longer to a session that could have had it is "
                        "lost (300)")  # fmt: skip
    parser.add_argument("-q", "--quiet", action="store_true", help="no progress")


def _moment(text: str) -> datetime:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no time: expected 2026-01-31T12:00"
        ) from None
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)


def _seconds(text: str) -> int:
    number, unit = (text[:-1], text[-1]) if text[-1:] in ("s", "m", "h") else (text, "s")
    if not number.isdecimal() or int(number) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is no duration: expected 60, 60s, 5m or 1h")
    return int(number) * {"s": 1, "m": 60, "h": 3600}[unit]


def _memory(text: str) -> str:
    number, unit = text[:-1], text[-1:].lower()
    if not (number.isdecimal() and unit in ("m", "g")):
        raise argparse.ArgumentTypeError(f"{text!r} is no size: expected 2g or 1500m")
    if int(number) * (1024 if unit == "g" else 1) < MEMORY_MIN_MIB:
        raise argparse.ArgumentTypeError(f"{text}: Spark needs {MEMORY_MIN_MIB}m or more")
    return text


def _master(text: str) -> str:
    if not _MASTER.fullmatch(text):
        raise argparse.ArgumentTypeError(
            f"{text!r} is no Spark master: expected local[*], local[2], spark://HOST:PORT, "
            "k8s://URL or yarn"
        )
    return text


def run_once(options: argparse.Namespace) -> int:
    """Audit the new segments, write the report, and return the verdict's exit status."""
    began = time.monotonic()
    if options.start is not None and options.end is not None and options.start >= options.end:
        raise AuditError(f"no time lies between {options.start} and {options.end}")
    _need(options)
    with _only_one(options.out), _spark(options) as spark:
        from audit import run as runs
        from audit.database.reader import SourceError

        progress = _progress(options, began)
        try:
            verdict = runs.run(
                spark, options.history, options.out, options.start, options.end,
                progress=progress, settings=_settings(options), from_db=options.from_db,
            )  # fmt: skip
        except runs.NothingToAudit as problem:
            hours = options.start is not None or options.end is not None
            raise AuditError(f"{problem}{' of these hours' * hours}") from None
        except SourceError as problem:
            raise AuditError(str(problem)) from None
        place = _report(spark, options.out, verdict.document, time.monotonic() - began)
    _say(verdict.document, place)
    return verdict.exit_code


def run_watch(options: argparse.Namespace) -> int:
    """Audit a history as a stream; return the worst verdict of all its batches."""
    began = time.monotonic()
    _need(options)
    with _only_one(options.out), _spark(options) as spark:
        from audit import stream

        progress = _progress(options, began)
        worst: int | None = None

        def done(document: dict[str, Any], exit_code: int) -> None:
            nonlocal worst
            place = _report(spark, options.out, document, time.monotonic() - began)
            _say(document, place)
            # violated (2) is worse than unknown (3), which is worse than ok (0).
            worst = exit_code if worst is None else max(worst, exit_code, key=(0, 3, 2).index)

        stream.watch(
            spark, options.history, options.out,
            every_s=options.every, progress=progress, settings=_settings(options), done=done,
        )  # fmt: skip
        if worst is None and options.every is not None:
            return EXIT_INTERRUPTED  # before any batch
        if worst is None:
            worst = _last_verdict(spark, options, progress)
    return worst


def _last_verdict(spark: Any, options: argparse.Namespace, progress: "Progress") -> int:
    """Print the verdict of the last batch again, because there was nothing new."""
    from audit import run as runs
    from audit.files import join

    try:
        verdict = runs.run(spark, options.history, options.out, progress=progress, only=())
    except runs.NothingToAudit as problem:
        raise AuditError(str(problem)) from None
    _say(verdict.document, join(options.out, "report.html"))
    return verdict.exit_code


def run_doctor(options: argparse.Namespace) -> int:
    """Print what an audit needs and whether it is there; return 1 if something is missing."""
    findings = doctor.examine(history=options.history, out=options.out)
    width = max(len(finding.name) for finding in findings)
    for finding in findings:
        print(f"{_SIGNS[finding.state]} {finding.name:<{width}}  {finding.found}")
        if finding.help:
            print(f"  {'':<{width}}  -> {finding.help}")
    missing = [finding.name for finding in findings if finding.state == "missing"]
    if missing:
        print(f"An audit cannot run: {', '.join(missing)} missing.")
        return EXIT_FAILED
    print("An audit can run.")
    return 0


def _need(options: argparse.Namespace) -> None:
    """Check the options and the machine before anything is started or written."""
    missing = doctor.missing_packages(find_spec)
    if missing:
        raise AuditError(f"{', '.join(missing)} not installed: {doctor.PIP}")
    if "://" not in options.history and not Path(options.history).is_dir():
        what = "no folder, but a file" if Path(options.history).exists() else "no such folder"
        raise AuditError(f"{options.history}: {what}")
    if "://" not in options.out and Path(options.out).is_file():
        raise AuditError(f"{options.out}: a file; results need a folder")
    if not _is_submitted():
        found = doctor.java()
        if found.state != "ok":
            raise AuditError(f"Java 17 or newer is needed: {found.found}. {found.help}")


def _is_submitted() -> bool:
    """Return whether spark-submit has already started the JVM."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


@contextlib.contextmanager
def _only_one(out: str) -> Iterator[None]:
    """Lock a local folder of results: two runs at once would mix their batches."""
    if "://" in out:
        yield
        return
    try:
        Path(out).mkdir(parents=True, exist_ok=True)
        lock = os.open(Path(out, ".lock"), os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as problem:
        raise AuditError(f"{out}: cannot be written: {problem.strerror}") from None
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise AuditError(f"{out}: another audit is at work in it") from None
        yield
    finally:
        os.close(lock)


@contextlib.contextmanager
def _spark(options: argparse.Namespace) -> Iterator[Any]:
    """Start Spark; turn its errors and those of the disk into one line."""
    try:
        from py4j.protocol import Py4JError  # type: ignore[import-untyped]
        from pyspark.errors import PySparkException

        from audit.spark import session
    except ImportError as problem:
        raise AuditError(f"{problem}: {doctor.PIP}") from None
    memory = None if _is_submitted() else options.memory
    spark = None
    silence = logging.NullHandler()
    if not os.environ.get(TRACE):
        logging.getLogger().addHandler(silence)  # otherwise py4j logs pages at Ctrl-C
    try:
        small = _is_small(options)
        with _uninterrupted():
            spark = session("holdfast audit", options.master, memory, small=small)
        yield spark
    except (PySparkException, Py4JError, OSError, ValueError) as problem:
        if os.environ.get(TRACE):
            raise
        raise AuditError(_one_line(problem)) from None
    finally:
        if spark is not None:
            spark.stop()
        logging.getLogger().removeHandler(silence)


def _is_small(options: argparse.Namespace) -> bool:
    """Return whether there are few rows to audit, and no stream of more of them."""
    from audit import run as runs
    from audit.pace import SMALL_ROWS_MAX

    if getattr(options, "every", None) is not None:
        return False
    hours = (getattr(options, name, None) for name in ("start", "end"))
    rows = runs.expected_rows(options.history, options.out, *hours)
    return rows is not None and rows <= SMALL_ROWS_MAX


@contextlib.contextmanager
def _uninterrupted() -> Iterator[None]:
    """Delay Ctrl-C until Spark has started: a JVM abandoned before that runs forever."""
    pressed = []
    held = signal.signal(signal.SIGINT, lambda number, frame: pressed.append(number))
    mine = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        # Keep a handler that Spark has set meanwhile: it also cancels its jobs.
        if signal.getsignal(signal.SIGINT) is mine:
            signal.signal(signal.SIGINT, held)
    if pressed:
        raise KeyboardInterrupt


def _one_line(problem: Exception) -> str:
    """Return the line with the cause in a Java stack, or the first line of another error."""
    lines = [line.strip() for line in str(problem).splitlines() if line.strip()]
    causes = [line for line in lines if line.startswith("Caused by: ")]
    text = causes[-1].removeprefix("Caused by: ") if causes else lines[0] if lines else ""
    if isinstance(problem, ValueError) and not causes:
        return text[:LINE_MAX]  # our own message
    return f"{type(problem).__name__}: {text[:LINE_MAX]} ({TRACE}=1 shows all)"


def _settings(options: argparse.Namespace) -> Any:
    from audit.input.batch_view import Settings

    return Settings() if options.horizon is None else Settings(horizon_s=options.horizon)


def _progress(options: argparse.Namespace, began: float) -> "Progress":
    def say(text: str) -> None:
        if not options.quiet:
            print(f"[{time.monotonic() - began:6.1f} s] {text}", file=sys.stderr, flush=True)

    return say


def _report(spark: Any, out: str, document: dict[str, Any], seconds: float) -> str:
    """Write report.html and the table of findings; return where the report is."""
    from audit.analytics import merge
    from audit.files import join, write_text
    from audit.pace import paced
    from audit.report import page as report

    made_us = int(datetime.now(UTC).timestamp() * 1e6)
    rows = sum(boot["last_seq"] - boot["first_seq"] + 1 for boot in document["boots"])
    with paced(spark, rows):
        picture = merge.picture(spark, out, document, made_us=made_us, seconds=seconds)
        merge.write_findings(spark, out, picture.findings)
    place = join(out, "report.html")
    write_text(spark, place, report.render(picture))
    return place


def _say(document: dict[str, Any], place: str) -> None:
    """Print the verdict: violations, what is unknown, and the place of the report."""
    from audit.report.text import untested_words

    print(f"verdict: {document['status']}")
    for name, found in document["invariants"].items():
        if found["status"] == "violated":
            times = f"{found['violated']:,} time{'s' * (found['violated'] != 1)}"
            print(f"  {name} violated {times}: {found['title']}")
    unknown = [n for n, found in document["invariants"].items() if found["status"] == "unknown"]
    if unknown:
        print(f"  cannot be told: {', '.join(unknown)}")
    untested = {
        untested_words(span): None
        for found in document["invariants"].values()
        for span in found.get("untested", [])
    }
    for words in list(untested)[:UNTESTED_MAX]:
        print(f"  not tested: {words}")
    if len(untested) > UNTESTED_MAX:
        print(f"  not tested: {len(untested) - UNTESTED_MAX} times more, see the report")
    print(f"report: {place}", flush=True)

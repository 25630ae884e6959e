"""The command line: `holdfast audit run | watch | explain | diff | views | convert | doctor`.

Exit status: 0 = ok, 2 = violated, 3 = unknown: the verdict. 1 = no verdict, because the audit
failed; 4 = ok, but it could not be told (--textfile, --webhook); 64 = wrong usage (the usual 2
would look like a verdict); 130 = interrupted. Progress goes to stderr, the verdict to stdout.

Heavy modules are imported only when needed, and those of the extra only after a check that it is
installed.
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
from audit.clients import places

if TYPE_CHECKING:
    from audit.checks.suppressions import Rule
    from audit.run import Progress

EXIT_FAILED: Final = 1
EXIT_DIFFERS: Final = 2  # of `diff`
EXIT_UNTOLD: Final = 4  # ok, but --textfile or --webhook failed
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
    "4 ok, but --textfile or --webhook failed, 64 asked for in a wrong way, 130 interrupted. "
    "More in docs/audit.md."
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
        description="Hold a session history against twenty invariants, and say what it shows.",
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
    run.add_argument("--clients", metavar="FILE", nargs="+", default=[],
                     help="what clients logged, JSON lines or Parquet: files or globs; "
                     "docs/audit-clients.md")  # fmt: skip
    run.add_argument("--to", dest="end", type=_moment, metavar="TIME", help="up to this hour")
    run.add_argument("--witness", metavar="FILE", action="append", default=[],
                     help="what a broker's `history.witness` file knows must be there; once for "
                     "each broker")  # fmt: skip
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
    _add_lookups(actions)
    convert = actions.add_parser(
        "convert", help="make the log of a client of what mosquitto_sub printed"
    )
    convert.add_argument("--client-id", metavar="ID", required=True, help="of mosquitto_sub (-i)")
    convert.add_argument("file", metavar="FILE", nargs="?", help="what it printed (stdin)")
    convert.set_defaults(run=run_convert)
    check = actions.add_parser("doctor", help="say what an audit needs, and how to get it")
    check.add_argument("--history", metavar="DIR", help="look at this history, too")
    check.add_argument("--out", metavar="DIR", default=OUT_DEFAULT, help=argparse.SUPPRESS)
    check.set_defaults(run=run_doctor)
    return parser


def _add_lookups(actions: "argparse._SubParsersAction[_Parser]") -> None:
    explain = actions.add_parser(
        "explain", help="say what became of a message or a session; needs no Spark"
    )
    explain.add_argument("--history", metavar="DIR", required=True,
                         help="folder of the segments: a path, or s3://")  # fmt: skip
    which = explain.add_mutually_exclusive_group(required=True)
    which.add_argument("--message", metavar="ID", type=_id, help="as the history names it: msg")
    which.add_argument("--session", metavar="ID", type=_id, help="as the history names it: session")
    explain.add_argument("--node", metavar="NODE", help="of this broker only")
    explain.set_defaults(run=run_explain)
    diff = actions.add_parser(
        "diff", help="compare two folders of results, or two nodes of a history",
        epilog="Exit status: 0 nothing differs, 2 something does, 1 it could not be compared, "
        "64 asked for in a wrong way.",
    )  # fmt: skip
    diff.add_argument(
        "a", metavar="A", help="a folder of results (--out), or with --history a node"
    )
    diff.add_argument("b", metavar="B", help="another one")
    diff.add_argument("--history", metavar="DIR", help="compare two of its nodes")
    diff.add_argument("--tolerance", metavar="SHARE", type=_share, default=0.05,
                      help="by which rows per accepted message may differ (0.05)")  # fmt: skip
    diff.set_defaults(run=run_diff)
    views = actions.add_parser("views", help="print SQL that makes views of the tables of results")
    views.add_argument("--out", metavar="DIR", default=OUT_DEFAULT,
                       help=f"the results ({OUT_DEFAULT})")  # fmt: skip
    views.add_argument("--dialect", choices=("duckdb", "spark"), default="duckdb")
    views.set_defaults(run=run_views)


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
    parser.add_argument("--verdict-only", action="store_true",
                        help="no tables, no report: the verdict alone")  # fmt: skip
    parser.add_argument("--suppressions", metavar="FILE",
                        help="TOML: which violations do not count, and why")  # fmt: skip
    parser.add_argument("--textfile", metavar="FILE", type=Path,
                        help="write the verdict as metrics for Prometheus, too")  # fmt: skip
    parser.add_argument("--webhook", metavar="URL", type=_url, help="POST the verdict there, too")
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


def _id(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is no number of a message or session")
    return int(text)


def _share(text: str) -> float:
    try:
        share = float(text)
    except ValueError:
        share = -1.0
    if not 0 <= share <= 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no share: expected 0 to 1")
    return share


def _url(text: str) -> str:
    from audit.outgoing import webhook

    if not webhook.is_url(text):
        raise argparse.ArgumentTypeError(f"{text!r} is no URL: expected https://HOST/PATH")
    return text


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
    if options.witness and (options.start is not None or options.end is not None):
        raise AuditError("--witness takes the whole history, without --from and --to")
    _need(options)
    witnesses = _witnesses(options.witness)
    rules = _rules(options)
    try:
        places.files(options.clients)
    except places.LogError as problem:
        raise AuditError(str(problem)) from None
    with _only_one(options.out), _spark(options) as spark:
        from audit import run as runs
        from audit.clients.part import parts
        from audit.database.reader import SourceError

        progress = _progress(options, began)
        given = (spark, options.history, options.out, options.start, options.end)
        try:
            verdict = runs.run(
                *given, progress=progress, settings=_settings(options), from_db=options.from_db,
                witnesses=witnesses,
                wishes=_wishes(options, rules),
                parts=parts(spark, options.clients, options.history, *given[3:]),
                always=bool(options.clients),
            )  # fmt: skip
        except places.LogError as problem:
            raise AuditError(str(problem)) from None
        except runs.NothingToAudit as problem:
            hours = options.start is not None or options.end is not None
            raise AuditError(f"{problem}{' of these hours' * hours}") from None
        except SourceError as problem:
            raise AuditError(str(problem)) from None
        place = _report(spark, options, verdict.document, time.monotonic() - began)
    _say(verdict.document, place)
    return _tell(options, verdict.document, place, verdict.exit_code)


def run_watch(options: argparse.Namespace) -> int:
    """Audit a history as a stream; return the worst verdict of all its batches."""
    began = time.monotonic()
    _need(options)
    rules = _rules(options)
    with _only_one(options.out), _spark(options) as spark:
        from audit import stream

        progress = _progress(options, began)
        worst: int | None = None

        def done(document: dict[str, Any], exit_code: int) -> None:
            nonlocal worst
            place = _report(spark, options, document, time.monotonic() - began)
            _say(document, place)
            told = _tell(options, document, place, exit_code)
            # violated (2) is worse than unknown (3), which is worse than ok (0, 4).
            worst = told if worst is None else max(worst, told, key=(0, 4, 3, 2).index)

        stream.watch(
            spark, options.history, options.out,
            every_s=options.every, progress=progress, settings=_settings(options), done=done,
            wishes=_wishes(options, rules),
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
    place = None if options.verdict_only else join(options.out, "report.html")
    _say(verdict.document, place)
    return _tell(options, verdict.document, place, verdict.exit_code)


def run_explain(options: argparse.Namespace) -> int:
    """Print what became of a message or a session; 1 if the history does not know it."""
    with _lookup():
        from audit.lookup import explain
        from audit.lookup.history import History

        history = History(options.history)
        if options.node is not None:
            history.need(options.node)
        if options.message is not None:
            what, lines = "message", explain.message(history, options.message, options.node)
        else:
            what, lines = "session", explain.session(history, options.session, options.node)
        for problem in history.damaged:
            print(f"holdfast audit: cannot be read: {problem}", file=sys.stderr)
        if not lines:
            number = options.message if what == "message" else options.session
            raise AuditError(f"no row of this history is about {what} {number}")
        print("\n".join(lines))
    return 0


def run_diff(options: argparse.Namespace) -> int:
    """Print two sides in a table; return 2 if they differ."""
    with _lookup():
        from audit.lookup import diff
        from audit.lookup.history import History

        if options.history is None:
            a, b = diff.results(options.a), diff.results(options.b)
        else:
            history = History(options.history)
            a, b = (diff.of_node(history, node) for node in (options.a, options.b))
            for problem in history.damaged:
                print(f"holdfast audit: cannot be read: {problem}", file=sys.stderr)
        lines, different = diff.compare(a, b, options.tolerance)
    print("\n".join(lines))
    print(f"{different} differ" if different else "nothing differs")
    return EXIT_DIFFERS if different else 0


def run_views(options: argparse.Namespace) -> int:
    """Print the views of the tables that are there."""
    from audit.analytics import views

    statements = views.sql(options.out, options.dialect)
    if not statements:
        raise AuditError(f"{options.out}: no tables in it: expected the --out of `audit run`")
    print(statements, end="")
    return 0


@contextlib.contextmanager
def _lookup() -> Iterator[None]:
    """Turn what a look-up may fail with into one line."""
    missing = [name for name in ("pyarrow", "numpy") if find_spec(name) is None]
    if missing:
        raise AuditError(f"{', '.join(missing)} not installed: {doctor.PIP}")
    from audit.lookup.history import LookupFailed

    try:
        yield
    except LookupFailed as problem:
        raise AuditError(str(problem)) from None


def run_convert(options: argparse.Namespace) -> int:
    """Print the log of a client, line by line."""
    from audit.clients.mosquitto import LineError, converted

    name = options.file or "stdin"
    try:
        with contextlib.ExitStack() as stack:
            lines = sys.stdin
            if options.file is not None:
                lines = stack.enter_context(open(options.file, encoding="utf-8"))
            for line in converted(lines, options.client_id):
                print(line)
    except (LineError, UnicodeDecodeError) as problem:
        raise AuditError(f"{name}: {problem}") from None
    except OSError as problem:
        raise AuditError(f"{name}: {problem.strerror}") from None
    return 0


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
    if options.textfile is not None and not options.textfile.absolute().parent.is_dir():
        raise AuditError(f"--textfile {options.textfile}: no such folder")
    if not _is_submitted():
        found = doctor.java()
        if found.state != "ok":
            raise AuditError(f"Java 17 or newer is needed: {found.found}. {found.help}")


def _witnesses(paths: Sequence[str]) -> list[Any]:
    """Return the contents of the witness files."""
    from storage.history.witness import WitnessError, read

    try:
        return [read(path) for path in paths]
    except WitnessError as problem:
        raise AuditError(str(problem)) from None


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


def _rules(options: argparse.Namespace) -> "list[Rule]":
    """Return the rules of --suppressions; one line for a file that is not as expected."""
    if options.suppressions is None:
        return []
    from audit.checks import suppressions

    try:
        return suppressions.parse(Path(options.suppressions).read_text("utf-8"))
    except (OSError, UnicodeDecodeError) as problem:
        said = problem.strerror if isinstance(problem, OSError) else "no UTF-8"
        raise AuditError(f"--suppressions {options.suppressions}: {said}") from None
    except suppressions.SuppressionError as problem:
        raise AuditError(f"--suppressions {options.suppressions}: {problem}") from None


def _wishes(options: argparse.Namespace, rules: "list[Rule]") -> Any:
    from audit.run import Wishes

    return Wishes(options.verdict_only, rules, datetime.now(UTC).date())


def _report(
    spark: Any, options: argparse.Namespace, document: dict[str, Any], seconds: float
) -> str | None:
    """Write report.html and the table of findings; return where the report is, if one is wanted."""
    if options.verdict_only:
        return None
    from audit.analytics import merge
    from audit.files import join, write_text
    from audit.pace import paced
    from audit.report import page as report

    made_us = int(datetime.now(UTC).timestamp() * 1e6)
    rows = sum(boot["last_seq"] - boot["first_seq"] + 1 for boot in document["boots"])
    with paced(spark, rows):
        picture = merge.picture(spark, options.out, document, made_us=made_us, seconds=seconds)
        merge.write_findings(spark, options.out, picture.findings)
    place = join(options.out, "report.html")
    write_text(spark, place, report.render(picture))
    return place


def _tell(
    options: argparse.Namespace, document: dict[str, Any], place: str | None, exit_code: int
) -> int:
    """Tell the verdict to whom the options name; return the exit status, 4 for ok but untold."""
    from audit.outgoing import textfile, webhook

    made_us = int(datetime.now(UTC).timestamp() * 1e6)
    failed = False
    if options.textfile is not None:
        try:
            textfile.write(options.textfile, document, made_us)
        except OSError as problem:
            failed = True
            said = f"--textfile {options.textfile}: {problem.strerror}"
            print(f"holdfast audit: {said}", file=sys.stderr)
    if options.webhook is not None:
        try:
            webhook.send(options.webhook, webhook.body(document, place, made_us))
        except webhook.WebhookFailed as problem:
            failed = True
            print(f"holdfast audit: --webhook: {problem}", file=sys.stderr)
    return EXIT_UNTOLD if failed and exit_code == 0 else exit_code


def _say(document: dict[str, Any], place: str | None) -> None:
    """Print the verdict: violations, what is unknown, and the place of the report, if any."""
    from audit.report.text import chain_words, untested_words

    print(f"verdict: {document['status']}")
    for name, found in document["invariants"].items():
        quiet = found.get("suppressed", 0)
        if found["status"] == "violated":
            number = found["violated"] - quiet
            times = f"{number:,} time{'s' * (number != 1)}"
            print(f"  {name} violated {times}: {found['title']}")
        if quiet:
            print(f"  {name} suppressed {quiet:,} time{'s' * (quiet != 1)}")
    unknown = [n for n, found in document["invariants"].items() if found["status"] == "unknown"]
    if unknown:
        print(f"  cannot be told: {', '.join(unknown)}")
    for line in chain_words(document):
        print(f"  {line}")
    untested = {
        untested_words(span): None
        for found in document["invariants"].values()
        for span in found.get("untested", [])
    }
    for words in list(untested)[:UNTESTED_MAX]:
        print(f"  not tested: {words}")
    if len(untested) > UNTESTED_MAX:
        print(f"  not tested: {len(untested) - UNTESTED_MAX} times more, see the report")
    for rule in document.get("suppressions", []):
        if rule["state"] == "expired":
            print(
                f"  suppression expired on {rule['expires']}: {rule['invariant']}, {rule['whom']}"
            )
    if place is not None:
        print(f"report: {place}", flush=True)

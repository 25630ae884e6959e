"""The command line: `holdfast conformance`, or `python -m conformance`.

Exit status: 0 if nothing failed, 1 if something failed or there is no broker, 2 for wrong usage,
130 if interrupted. Progress goes to stderr, the report to stdout or to the given files.
"""

import argparse
import contextlib
import datetime
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from conformance import adapters, wire
from conformance.adapters.base import AdapterError
from conformance.check import PATIENCE_S
from conformance.progress import Printer
from conformance.reports import RENDERERS
from conformance.results import Report
from conformance.runner import Plan, discover, run, searchable
from conformance.selection import SelectionError, compile_expression
from conformance.statements import VERSION_NAMES, VERSIONS, load
from conformance.transport import PORTS, Transport, tls_context

EXIT_OK: Final = 0
EXIT_FAILED: Final = 1
EXIT_USAGE: Final = 2
PASSWORD_VARIABLE: Final = "CONFORMANCE_PASSWORD"
# Options that say where a running broker is and how it lets us in.
_TARGET: Final = "host port username password tls ca cert key websocket".split()
EXIT_INTERRUPTED: Final = 130  # 128 + SIGINT, as shells report it


def build_parser(prog: str) -> argparse.ArgumentParser:
    """Return the parser of the command."""
    parser = argparse.ArgumentParser(
        prog=prog,
        description="Check an MQTT broker against every normative statement of 3.1.1 and 5.0.",
    )
    target = parser.add_argument_group("the broker")
    target.add_argument("--host", help="address of a broker that is running (127.0.0.1)")
    target.add_argument("--port", type=_port, help="its port (1883, with TLS 8883)")
    target.add_argument("--username", metavar="NAME", help="user name of every client")
    target.add_argument(
        "--password",
        metavar="PASSWORD",
        help=f"its password (default: the environment variable {PASSWORD_VARIABLE})",
    )
    target.add_argument("--tls", action="store_true", help="use TLS (port 8883)")
    target.add_argument(
        "--ca", metavar="FILE", help="certificates to trust, PEM; implies --tls (the system's)"
    )
    target.add_argument("--cert", metavar="FILE", help="certificate to show, PEM; implies --tls")
    target.add_argument("--key", metavar="FILE", help="its private key (in the same file)")
    target.add_argument("--websocket", action="store_true", help="use MQTT over WebSocket")
    target.add_argument(
        "--adapter",
        metavar="NAME",
        help=f"start it with this adapter: {', '.join(adapters.BUILT_IN)}, MODULE:CLASS or "
        "FILE.py:CLASS; needed for checks that restart, kill or configure it",
    )
    parser.add_argument(
        "--version", choices=list(VERSION_NAMES.values()), help="only this version (default: both)"
    )
    parser.add_argument(
        "--strict",
        action="store_true",
        help="want the reason code where the text leaves sending it open",
    )
    parser.add_argument(
        "-k",
        metavar="EXPR",
        dest="selection",
        default="",
        help="only statements that match: parts of ids or module names, with and, or, not, ( )",
    )
    parser.add_argument(
        "-o",
        "--output-format",
        choices=list(RENDERERS),
        help="form of the report (default: by the ending of FILE, else a table)",
    )
    parser.add_argument(
        "--output",
        metavar="FILE",
        action="append",
        default=[],
        help="write the report here, not to stdout; several times for several forms of one run",
    )
    parser.add_argument(
        "--patience",
        type=_seconds,
        default=PATIENCE_S,
        metavar="SECONDS",
        help=f"how long to wait for what has to come ({PATIENCE_S:g})",
    )
    parser.add_argument("-q", "--quiet", action="store_true", help="no progress on stderr")
    return parser


def _port(text: str) -> int:
    port = int(text)
    if not 1 <= port <= 65_535:
        raise argparse.ArgumentTypeError(f"{port} is not a port: 1 to 65535")
    return port


def _seconds(text: str) -> float:
    seconds = float(text)
    if not 0 < seconds < math.inf:
        raise argparse.ArgumentTypeError(f"{text}: a number of seconds above 0")
    return seconds


def main(arguments: Sequence[str] | None = None, *, prog: str = "holdfast conformance") -> int:
    """Run the command line and return its exit status."""
    parser = build_parser(prog)
    options = parser.parse_args(arguments)
    try:
        plan = _plan(options)
    except (SelectionError, AdapterError) as problem:
        print(f"{prog}: {problem}", file=sys.stderr)
        return EXIT_USAGE
    for name in options.output:  # before a minute of checks, not after it
        if os.path.isdir(name) or not os.path.isdir(Path(name).absolute().parent):
            what = "is a directory" if os.path.isdir(name) else "no such directory"
            print(f"{prog}: --output {name}: {what}", file=sys.stderr)
            return EXIT_USAGE
    try:
        with _ended_by(signal.SIGTERM):
            report = _run(plan, options)
    except SelectionError as problem:
        print(f"{prog}: {problem}", file=sys.stderr)
        return EXIT_USAGE
    except AdapterError as problem:
        print(f"{prog}: {problem}", file=sys.stderr)
        return EXIT_FAILED
    except KeyboardInterrupt:
        print(f"{prog}: interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED
    return _write(report, options, prog)


# The format of a report by the suffix of its file.
_ENDINGS: Final = {".html": "html", ".htm": "html", ".json": "json", ".xml": "junit"}


def _write(report: Report, options: argparse.Namespace, prog: str) -> int:
    """Write the report to stdout or to its files, and return the exit status."""
    if not options.output:
        print(RENDERERS[options.output_format or "table"](report), end="")
        return report.exit_code
    status = report.exit_code
    for path in map(Path, options.output):
        form = options.output_format or _ENDINGS.get(path.suffix.lower(), "table")
        try:
            path.write_text(RENDERERS[form](report), "utf-8")
        except OSError as problem:
            print(f"{prog}: --output {path}: {problem.strerror}", file=sys.stderr)
            status = EXIT_FAILED
    print(report.summary())
    return status


@contextlib.contextmanager
def _ended_by(number: signal.Signals) -> Iterator[None]:
    """Let this signal end the run as Ctrl-C does, so that all its brokers are ended too."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread can set signal handlers
        return
    before = signal.signal(number, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(number, before)


def _plan(options: argparse.Namespace) -> Plan:
    given = [name for name in _TARGET if getattr(options, name)]
    if options.adapter is not None and given:
        raise SelectionError(f"--adapter starts a broker of its own: no --{given[0]} with it")
    if options.key and not options.cert:
        raise SelectionError("--key needs --cert as well")
    has_tls = bool(options.tls or options.ca or options.cert)
    try:
        tls = tls_context(options.ca, options.cert, options.key) if has_tls else None
    except OSError as problem:
        files = ", ".join(filter(None, (options.ca, options.cert, options.key)))
        why = problem.strerror or problem
        raise SelectionError(f"{files}: not usable as certificates and key: {why}") from None
    password = options.password
    if password is None and options.username is not None:
        password = os.environ.get(PASSWORD_VARIABLE)
    wire.LOGIN.username = options.username
    wire.LOGIN.password = None if password is None else password.encode()
    versions = tuple(v for v in VERSIONS if options.version in (None, VERSION_NAMES[v]))
    return Plan(
        versions=versions,
        select=compile_expression(options.selection),
        strict=options.strict,
        adapter=None if options.adapter is None else adapters.find(options.adapter),
        host=options.host or "127.0.0.1",
        port=options.port or PORTS[has_tls],
        transport=Transport(tls, options.websocket),
        patience=options.patience,
    )


def _run(plan: Plan, options: argparse.Namespace) -> Report:
    name = f"{plan.host}:{plan.port}" if plan.adapter is None else plan.adapter.describe()
    problems = discover(plan.versions)
    for problem in problems:
        print(f"conformance: {problem}", file=sys.stderr)
    if not any(plan.select(searchable(s)) for v in plan.versions for s in load(v)):
        raise SelectionError(f"-k {options.selection!r}: no statement matches")
    began = time.monotonic()
    results = run(plan, Printer(sys.stderr, quiet=options.quiet))
    now = datetime.datetime.now(datetime.UTC).replace(microsecond=0)
    return Report(
        broker=name,
        adapter=options.adapter or "",
        versions=plan.versions,
        strict=plan.strict,
        selection=options.selection,
        date=now.strftime("%Y-%m-%dT%H:%M:%SZ"),
        seconds=time.monotonic() - began,
        results=tuple(results),
        problems=tuple(problems),
    )

"""`holdfast canary`: clients that try a broker from outside, and say at once what goes wrong.

Must stay quick to import, as `broker.cli.main` must.
"""

import argparse
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from broker.cli.command import (
    EXIT_FAILED,
    EXIT_OK,
    EXIT_USAGE,
    CommandError,
    Commands,
    client_id,
    limit,
    print_lines,
    topic_name,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from broker.cli.canary.client import Server
    from broker.cli.canary.flight import Flight

TOPIC: Final = "holdfast/canary"
INTERVAL_S: Final = 5.0
TIMEOUT_S: Final = 30.0
DRAIN_S: Final = 5.0  # after Ctrl-C
TEXTFILE_S: Final = 5.0
SECONDS_MAX: Final = 86_400.0
PORTS: Final = {"mqtt": 1883, "mqtts": 8883}


def add(commands: Commands) -> None:
    """Add `canary`."""
    canary = commands.add_parser(
        "canary", help="try a broker from outside, message by message, and log what clients saw"
    )
    canary.add_argument("url", metavar="URL", type=_url, help="mqtt://HOST:PORT or mqtts://...")
    canary.add_argument("--username", metavar="NAME", type=client_id)
    canary.add_argument("--password-file", metavar="FILE", help="its first line is the password")
    canary.add_argument("--cafile", metavar="FILE", help="who may sign the broker's certificate")
    canary.add_argument("--cert", metavar="FILE", help="the client's certificate")
    canary.add_argument("--key", metavar="FILE", help="its key")
    canary.add_argument(
        "--interval", metavar="SECONDS", type=_seconds, default=INTERVAL_S,
        help=f"between two rounds of messages ({INTERVAL_S:g})",
    )  # fmt: skip
    canary.add_argument(
        "--timeout", metavar="SECONDS", type=_seconds, default=TIMEOUT_S,
        help=f"what takes longer is a problem ({TIMEOUT_S:g})",
    )  # fmt: skip
    canary.add_argument("--count", metavar="N", type=limit, help="end after N rounds")
    canary.add_argument("--topic", metavar="TOPIC", type=topic_name, default=TOPIC,
                        help=f"its messages are below it ({TOPIC})")  # fmt: skip
    canary.add_argument("--log", metavar="FILE", help="for holdfast audit run --clients")
    canary.add_argument("--textfile", metavar="FILE", help="metrics for Prometheus' node exporter")
    canary.set_defaults(run=run)


def _url(text: str) -> tuple[bool, str, int]:
    """Return whether TLS is asked for, host and port."""
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        port, parts = None, urlsplit("")
    if parts.scheme not in PORTS or not parts.hostname or parts.path not in ("", "/"):
        raise argparse.ArgumentTypeError(f"{text!r}: expected mqtt://HOST:PORT or mqtts://HOST")
    return parts.scheme == "mqtts", parts.hostname, port or PORTS[parts.scheme]


def _seconds(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0.01 <= number <= SECONDS_MAX:
        raise argparse.ArgumentTypeError(f"{text!r}: expected seconds, 0.01 to {SECONDS_MAX:g}")
    return number


def run(options: argparse.Namespace) -> int:
    """Try the broker until the rounds are over or Ctrl-C; status 1 if something went wrong."""
    import secrets
    import time

    from broker.cli.canary.flight import Flight
    from broker.cli.canary.log import CanaryLog
    from storage.time import machine_clocks

    server = _server(options)
    try:
        log = None if options.log is None else CanaryLog(options.log, machine_clocks.wall_ms)
    except OSError as problem:
        raise CommandError(f"{options.log}: {problem.strerror}") from None
    name = secrets.token_hex(3)
    flight = Flight(
        server, name, options.topic, log, time.monotonic,
        interval_s=options.interval, timeout_s=options.timeout,
        say=lambda line: print_lines([f"{_moment(machine_clocks.wall_ms())} {line}"], flush=True),
    )  # fmt: skip
    here = f"canary {name} at {server.name}, topics {options.topic}/{name}/#"
    try:
        try:
            print_lines([here], flush=True)
            _fly(flight, options, time.monotonic)
        except KeyboardInterrupt:
            _drain(flight, options, time.monotonic, DRAIN_S)
        flight.end()
        _tell(flight, options)
    except OSError as problem:
        raise CommandError(f"{problem.filename or options.log}: {problem.strerror}") from None
    finally:
        if log is not None:
            log.close()
    return _summary(flight)


def _server(options: argparse.Namespace) -> "Server":
    import ssl

    from broker.cli.canary.client import Server

    is_tls, host, port = options.url
    if not is_tls and (options.cafile or options.cert or options.key):
        raise CommandError("--cafile, --cert and --key need mqtts://", EXIT_USAGE)
    if options.key and not options.cert:
        raise CommandError("--key needs --cert", EXIT_USAGE)
    context = None
    if is_tls:
        try:
            context = ssl.create_default_context(cafile=options.cafile)
            if options.cert:
                context.load_cert_chain(options.cert, options.key)
        except OSError as problem:  # ssl.SSLError too
            files = ", ".join(filter(None, (options.cafile, options.cert, options.key)))
            raise CommandError(f"{files}: {problem.strerror or problem}", EXIT_USAGE) from None
    password = None
    if options.password_file is not None:
        try:
            with open(options.password_file, "rb") as file:
                password = file.readline().rstrip(b"\r\n")
        except OSError as problem:
            raise CommandError(f"{options.password_file}: {problem.strerror}", EXIT_USAGE) from None
    return Server(host, port, context, options.username, password)


def _fly(flight: "Flight", options: argparse.Namespace, clock: "Callable[[], float]") -> None:
    began = told_at = clock()
    while options.count is None or flight.rounds < options.count:
        flight.turn(publishes=True)
        is_vain = not flight.books.sums.connections and clock() - began > options.timeout
        if options.count is not None and is_vain:
            return  # nobody is there to end it by hand
        if clock() - told_at >= TEXTFILE_S:
            told_at = clock()
            _tell(flight, options)
    _drain(flight, options, clock, 2 * options.timeout)


def _drain(
    flight: "Flight", options: argparse.Namespace, clock: "Callable[[], float]", most_s: float
) -> None:
    """Wait for what is under way; a second Ctrl-C ends it."""
    until = clock() + most_s
    flight.wake()
    try:
        while not flight.is_done and clock() < until:
            flight.turn(publishes=False)
    except KeyboardInterrupt:
        return  # the summary says what was under way


def _tell(flight: "Flight", options: argparse.Namespace) -> None:
    from broker.cli.canary import textfile

    if options.textfile is not None:
        sums, waiting = flight.books.sums, flight.books.waiting()
        text = textfile.text_of(sums, waiting=waiting, is_connected=flight.is_up)
        textfile.write(options.textfile, text)


def _summary(flight: "Flight") -> int:
    sums = flight.books.sums
    print_lines(
        [
            f"{sums.published} published, {sums.acknowledged} acknowledged, "
            f"{sums.received} received, {sums.lost} lost, {sums.doubled} twice, "
            f"{flight.books.waiting()} under way; round trip at most "
            f"{sums.round_trip_max_s * 1000:.0f} ms; {sums.connections} connections, "
            f"{flight.outages} lost; {sums.problems} problems"
        ]
    )
    if not sums.connections:
        return EXIT_FAILED
    return EXIT_FAILED if sums.problems else EXIT_OK


def _moment(ms: int) -> str:
    from datetime import UTC, datetime

    return f"{datetime.fromtimestamp(ms / 1000, UTC):%Y-%m-%d %H:%M:%S}Z"

"""`holdfast trace`: watch one client, topic filter or address on a running broker, line by line.

Must stay quick to import, as `broker.cli.main` must.
"""

import argparse
import json
import time
from collections.abc import Iterator
from typing import Any, Final

from broker.cli.administration.asking import ask_broker
from broker.cli.command import (
    EXIT_OK,
    CommandError,
    Commands,
    add_config_flags,
    add_list_options,
    client_id,
    print_lines,
    print_list,
    topic_filter,
    whole_number,
    within_a_day,
)
from broker.operations.looking.listing import Listing

READ_S: Final = 0.2  # between two readings
FOR_MS: Final = 10 * 60_000
PAYLOAD_BYTES: Final = 64
ARROWS: Final = {"in": "->", "out": "<-", "": "  "}
MARKS: Final = "-> from the client, <- to the client"
TRACES: Final = Listing(
    (
        ("TRACE", "trace"),
        ("KIND", "kind"),
        ("VALUE", "value"),
        ("BY", "by"),
        ("SECONDS_LEFT", "seconds_left"),
        ("LINES_WAITING", "lines_waiting"),
    ),
    name="value",
)


def add(commands: Commands) -> None:
    trace = commands.add_parser("trace", help="watch a client, topic filter or address live")
    actions = trace.add_subparsers(dest="action", required=True, metavar="ACTION")
    for kind, argument, type_of, text in (
        ("client", "CLIENT_ID", client_id, "every packet of one client, and what it does not get"),
        ("topic", "FILTER", topic_filter, "what is published and delivered on matching topics"),
        ("address", "ADDRESS", str, "connections from an address or a network: 10.0.0.0/8"),
    ):
        parser = actions.add_parser(kind, help=text)
        parser.add_argument("value", type=type_of, metavar=argument)
        parser.add_argument(
            "--for",
            dest="for_ms",
            type=within_a_day,
            default=FOR_MS,
            metavar="TIME",
            help="how long (10m)",
        )
        parser.add_argument(
            "--payload", action="store_true", help=f"print up to {PAYLOAD_BYTES} bytes of payloads"
        )
        parser.add_argument(
            "-o", "--output", choices=("text", "json"), default="text", help="(text)"
        )
        add_config_flags(parser)
        parser.set_defaults(run=run)
    listing = actions.add_parser("list", help="print the traces that are on")
    add_list_options(listing, TRACES.orders, match="client ids, filters or addresses")
    stop = actions.add_parser("stop", help="end a trace")
    stop.add_argument("number", type=whole_number, metavar="NUMBER")
    for parser, does in ((listing, run_list), (stop, run_stop)):
        add_config_flags(parser)
        parser.set_defaults(run=does)


def run(options: argparse.Namespace) -> int:
    """Print what happens until the time is over, Ctrl-C, or the reader has gone."""
    request = {
        "do": "trace_add",
        "kind": options.action,
        "value": options.value,
        "for_ms": str(options.for_ms),
        "payload_bytes": str(PAYLOAD_BYTES if options.payload else 0),
    }
    begun = ask_broker(options, request)
    number = begun["trace"]
    over = ""
    try:
        if options.output == "text":
            seconds = options.for_ms // 1000
            print_lines([f"trace {number} is on for {seconds} s: {MARKS}"], flush=True)
            if begun.get("not_recorded"):
                print_lines([f"the history records no more: {begun['not_recorded']}"], flush=True)
        while not over:
            answer = ask_broker(options, {"do": "trace_read", "trace": number})
            lines = json.loads(answer["lines"])
            if options.output == "json":
                print_lines((json.dumps(each) for each in lines), flush=True)
            else:
                print_lines(map(text_of, lines), flush=True)
            print_lines(_left_out(options, int(answer["left_out"])), flush=True)
            over = answer["over"]
            if not over and not lines:
                time.sleep(READ_S)
    finally:
        if not over:
            _stop(options, number)
    if options.output == "text":
        print_lines([f"trace {number} has ended: {over}"])
    return EXIT_OK


def _stop(options: argparse.Namespace, number: str) -> None:
    """End the trace; a broker that cannot be asked any more has none."""
    try:
        ask_broker(options, {"do": "trace_remove", "trace": number})
    except CommandError:
        return


def _left_out(options: argparse.Namespace, count: int) -> Iterator[str]:
    if count and options.output == "json":
        yield json.dumps({"left_out": count})
    elif count:
        yield f"... {count} lines are left out here: more came than can be read"


def text_of(line: dict[str, Any]) -> str:
    """Return a line of a trace for people; names of clients are escaped."""
    from storage.history.words import printable

    words = [moment(line["at_ms"]), printable(line["client_id"]) or "-"]
    words.append(ARROWS[line["direction"]])
    words.append(line.get("packet", ""))
    if "packet_id" in line:
        words.append(f"id={line['packet_id']}")
    if "qos" in line:
        words.append(f"qos={line['qos']}")
    if "topic" in line:
        words.append(f"topic={printable(line['topic'])}" if line["topic"] else "topic unknown")
    if "reason_code" in line:
        words.append(f"reason={line['reason_code']:#04x}")
    if "size" in line:
        words.append(f"{line['size']} bytes")
    if "after_ms" in line:
        words.append(f"after {line['after_ms']} ms")
    if line.get("text"):
        words.append(printable(line["text"]))
    if line.get("payload"):
        words.append(repr(bytes.fromhex(line["payload"]))[1:])
    return " ".join(word for word in words if word)


def moment(ms: int) -> str:
    """Return a wall time of today: hours, minutes, seconds, UTC."""
    from datetime import UTC, datetime

    return f"{datetime.fromtimestamp(ms / 1000, UTC):%H:%M:%S}.{ms % 1000:03}Z"


def run_list(options: argparse.Namespace) -> int:
    """Print the traces that are on."""
    rows = json.loads(ask_broker(options, {"do": "trace_list"})["traces"])
    print_list(TRACES, options, rows)
    return EXIT_OK


def run_stop(options: argparse.Namespace) -> int:
    """End a trace; its command prints what came before and ends."""
    ask_broker(options, {"do": "trace_remove", "trace": str(options.number)})
    print_lines([f"trace {options.number} has ended"])
    return EXIT_OK

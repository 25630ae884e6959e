"""`holdfast pub`: publish one message through a running broker.

Must stay quick to import, as `broker.cli.main` must.
"""

import argparse
import base64
import json
import sys
from typing import BinaryIO, Final

from broker.cli.administration.asking import ask_broker
from broker.cli.command import (
    EXIT_OK,
    EXIT_USAGE,
    CommandError,
    Commands,
    add_config_flags,
    client_id,
    print_lines,
    topic_name,
    whole_number,
)

PAYLOAD_BYTES_MAX: Final = 256 << 10  # what the broker takes


def add(commands: Commands) -> None:
    pub = commands.add_parser(
        "pub", help="publish a message; its payload is a text, a file, or what comes from stdin"
    )
    pub.add_argument("topic", metavar="TOPIC", type=topic_name)
    source = pub.add_mutually_exclusive_group()
    source.add_argument("-m", "--message", metavar="TEXT", type=client_id, help="the payload")
    source.add_argument("-f", "--file", metavar="FILE", help="a file with the payload")
    pub.add_argument("-q", "--qos", type=int, choices=(0, 1, 2), default=1, help="(1)")
    pub.add_argument("-r", "--retain", action="store_true", help="keep it for new subscribers")
    pub.add_argument("--content-type", metavar="TEXT", type=client_id, default="")
    pub.add_argument(
        "--expiry", metavar="SECONDS", type=whole_number, help="Message Expiry Interval"
    )
    pub.add_argument(
        "--property",
        metavar="NAME=VALUE",
        type=_pair,
        action="append",
        default=[],
        help="a user property; may be said again",
    )
    pub.add_argument("--reason", metavar="TEXT", default="", help="for the history")
    add_config_flags(pub)
    pub.set_defaults(run=run)


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = client_id(text).partition("=")
    if not equals or not name:
        raise argparse.ArgumentTypeError(f"{text!r}: expected NAME=VALUE")
    return name, value


def run(options: argparse.Namespace) -> int:
    """Publish, and say who is there to get it; on return it is durable if it is kept."""
    request = {
        "do": "publish",
        "topic": options.topic,
        "payload": base64.b64encode(_payload(options)).decode(),
        "qos": str(options.qos),
        "retain": str(int(options.retain)),
        "content_type": options.content_type,
        "properties": json.dumps(options.property),
        "expiry_s": "" if options.expiry is None else str(options.expiry),
        "reason": options.reason,
    }
    answer = ask_broker(options, request)
    print_lines([f"{options.topic!r}: {_who(answer, is_retained=options.retain)}"])
    return EXIT_OK


def _payload(options: argparse.Namespace) -> bytes:
    if options.message is not None:
        message: str = options.message
        return message.encode()
    if options.file is None:
        return _read(sys.stdin.buffer)
    try:
        with open(options.file, "rb") as file:
            return _read(file)
    except OSError as problem:
        raise CommandError(f"{options.file}: {problem.strerror}", EXIT_USAGE) from None


def _read(source: BinaryIO) -> bytes:
    payload = source.read(PAYLOAD_BYTES_MAX + 1)
    if len(payload) > PAYLOAD_BYTES_MAX:
        raise CommandError(
            f"the payload is larger than {PAYLOAD_BYTES_MAX} bytes: publish it with an MQTT client",
            EXIT_USAGE,
        )
    return payload


def _who(answer: dict[str, str], *, is_retained: bool) -> str:
    """Return who is there to get the message, in words."""
    parts = []
    if answer["connected"] != "0":
        parts.append(f"{_count(answer['connected'], 'client')} connected with a subscription")
    if answer["groups"] != "0":
        parts.append(_count(answer["groups"], "shared subscription"))
    if answer["filters"] != "0" and answer["stored"] == "1":
        parts.append(f"stored for {_count(answer['filters'], 'topic filter')}")
    if not parts:
        parts.append("nobody is subscribed")
    if is_retained:
        parts.append("retained")
    return ", ".join(parts)


def _count(number: str, what: str) -> str:
    return f"{number} {what}" if number == "1" else f"{number} {what}s"

"""Parameters of the API: how each is written, and what is expected of it.

Read next: `broker.admin.api.endpoints`.
"""

import re
from collections.abc import Callable
from typing import Any, Final

from broker.admin.access.roles import NAME as NAME_PATTERN
from broker.admin.access.roles import NAME_EXPECTED
from broker.admin.api.endpoints import Parameter
from broker.admin.asking import LIMIT, LIMIT_MAX, NAME, ORDERS
from mqtt.topics import SHARE_PREFIX, filter_problem, topic_problem

TEXT_BYTES_MAX: Final = 65_535  # a field of MQTT holds no more
REASON_BYTES_MAX: Final = 1024
GLOB_CHARACTERS_MAX: Final = 256
DURATION: Final = re.compile(r"([0-9]{1,9})([smhd])")
UNITS_S: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
DURATION_PATTERN: Final = "^[0-9]{1,9}[smhd]$"
CURSOR_PATTERN: Final = "^[0-9a-f]+$"


def text(value: str) -> str:
    """Return text as MQTT has it."""
    if not value or "\0" in value or len(value.encode()) > TEXT_BYTES_MAX:
        raise ValueError(f"expected 1 to {TEXT_BYTES_MAX} bytes of UTF-8 without U+0000")
    return value


def _glob(value: str) -> str:
    if not value or len(value) > GLOB_CHARACTERS_MAX:
        raise ValueError(f"expected 1 to {GLOB_CHARACTERS_MAX} characters")
    return value


def topic_filter(value: str) -> str:
    """Return a topic filter that is not shared."""
    problem = filter_problem(text(value))
    if problem is not None:
        raise ValueError(problem)
    if value.startswith(SHARE_PREFIX):
        raise ValueError("expected a topic filter without $share/NAME/")
    return value


def topic_name(value: str) -> str:
    """Return a topic name."""
    problem = topic_problem(text(value))
    if problem is not None:
        raise ValueError(problem)
    return value


def duration_s(value: str) -> int:
    """Return a time with a unit, s."""
    found = DURATION.fullmatch(value)
    if found is None or not int(found[1]):
        raise ValueError("expected a time such as 45s, 30m, 12h or 90d")
    return int(found[1]) * UNITS_S[found[2]]


def _limit(value: str) -> int:
    if not value.isascii() or not value.isdecimal() or len(value) > 9:
        raise ValueError(f"expected a number from 1 to {LIMIT_MAX}")
    if not 1 <= int(value) <= LIMIT_MAX:
        raise ValueError(f"expected a number from 1 to {LIMIT_MAX}")
    return int(value)


def _flag(value: str) -> bool:
    if value not in ("true", "false"):
        raise ValueError("expected true or false")
    return value == "true"


def _reason(value: str) -> str:
    if len(value.encode()) > REASON_BYTES_MAX or "\0" in value:
        raise ValueError(f"expected at most {REASON_BYTES_MAX} bytes of UTF-8")
    return value


def _choice(*words: str) -> Callable[[str], str]:
    def parse(value: str) -> str:
        if value not in words:
            raise ValueError(f"expected one of {', '.join(words)}")
        return value

    return parse


def _cursor(value: str) -> str:
    if not re.fullmatch(CURSOR_PATTERN, value):
        raise ValueError("expected the `next` of another page of this list")
    return value


GLOB: Final[dict[str, Any]] = {
    "type": "string",
    "minLength": 1,
    "maxLength": GLOB_CHARACTERS_MAX,
}
STRING: Final[dict[str, Any]] = {"type": "string", "minLength": 1}


def in_path(name: str, help: str, parse: Callable[[str], Any] = text) -> Parameter:
    """Return a parameter that is a level of the path."""
    return Parameter(name, parse, STRING, help, in_path=True)


def access_name(value: str) -> str:
    """Return the name of a user of this API, or of a token."""
    if NAME_PATTERN.fullmatch(value) is None:
        raise ValueError(f"expected {NAME_EXPECTED}")
    return value


def _number(value: str) -> int:
    if not value.isascii() or not value.isdecimal() or len(value) > 18:
        raise ValueError("expected a number")
    return int(value)


KIND: Final = Parameter(
    "kind",
    _choice("client-id", "user", "address"),
    {"type": "string", "enum": ["client-id", "user", "address"]},
    "what is banned",
    in_path=True,
)
TRACE: Final = Parameter(
    "trace", _number, {"type": "integer", "minimum": 0}, "the number of a trace", in_path=True
)
CURSOR: Final = Parameter(
    "cursor",
    _cursor,
    {"type": "string", "pattern": CURSOR_PATTERN},
    "the `next` of the page before; without it the list begins",
)
LIMITED: Final = Parameter(
    "limit",
    _limit,
    {"type": "integer", "minimum": 1, "maximum": LIMIT_MAX, "default": LIMIT},
    "how many, at most",
    default=LIMIT,
)
MATCH: Final = Parameter("match", _glob, GLOB, "only client ids such as 'sensor-*'")
MATCH_TOPIC: Final = Parameter("match", topic_filter, STRING, "only topics that match this filter")
TOPIC: Final = Parameter("topic", topic_filter, STRING, "only topics that match this filter")
TOPIC_NAME: Final = Parameter("topic", topic_name, STRING, "the topic whose messages are missed")
SORT: Final = Parameter(
    "sort",
    _choice(*ORDERS),
    {"type": "string", "enum": list(ORDERS), "default": NAME},
    "most, oldest or longest first; by name bytes are not counted",
    default=NAME,
)
OFFLINE: Final = Parameter(
    "offline",
    _flag,
    {"type": "boolean", "default": False},
    "only those whose clients are away",
    default=False,
)
PAYLOADS: Final = Parameter(
    "payloads",
    _flag,
    {"type": "boolean", "default": False},
    "with the beginning of each payload (permission `payloads`)",
    default=False,
)
DRY_RUN: Final = Parameter(
    "dry_run",
    _flag,
    {"type": "boolean", "default": False},
    "only tell what would go",
    default=False,
)
KICK: Final = Parameter(
    "kick",
    _flag,
    {"type": "boolean", "default": False},
    "end its connection first, and keep the client out until it is done",
    default=False,
)
REASON: Final = Parameter(
    "reason",
    _reason,
    {"type": "string"},
    "told to the client (MQTT 5) and to the history",
    default="",
)
OLDER: Final = Parameter(
    "older",
    duration_s,
    {"type": "string", "pattern": DURATION_PATTERN},
    "only what is older: 2d",
)
SINCE: Final = Parameter(
    "since",
    duration_s,
    {"type": "string", "pattern": DURATION_PATTERN},
    "not older than: 2h",
)

"""What applications tell of subscriptions by way of a store: checked, numbered, told to the broker.

A change is `{"type": "subscribe", "clientid": "c", "topic": "a/#", "qos": 1}`, or "unsubscribe"
without `qos`. The broker answers for each one; only so many may be unanswered, so an application
that tells of too much waits, or is not heard by a store that forgets. Read next:
`broker.backends.redis.changes`.
"""

import json
import threading
from collections.abc import Callable
from typing import Any, Final, TypeAlias

UNANSWERED_MAX: Final = 64
TEXT_BYTES_MAX: Final = 65_535  # of a text in MQTT
CHANGE_BYTES_MAX: Final = 4 * TEXT_BYTES_MAX
SHOWN_CHARACTERS: Final = 200
SUBSCRIBE: Final = "subscribe"
UNSUBSCRIBE: Final = "unsubscribe"

Tell: TypeAlias = Callable[[dict[str, Any]], None]


class Unreadable(Exception):
    """What an application has written is no change; one line."""


def read(raw: bytes) -> dict[str, Any]:
    """Return a change as the broker is told of it. Raises `Unreadable`."""
    if len(raw) > CHANGE_BYTES_MAX:
        raise Unreadable(f"{len(raw)} bytes: expected at most {CHANGE_BYTES_MAX}")
    try:
        told = json.loads(raw)
    except (ValueError, RecursionError):
        raise Unreadable(f"{_shown(raw)}: expected JSON") from None
    if not isinstance(told, dict) or told.get("type") not in (SUBSCRIBE, UNSUBSCRIBE):
        raise Unreadable(f"{_shown(raw)}: expected an object with type subscribe or unsubscribe")
    for name in ("clientid", "topic"):
        value = told.get(name)
        if not isinstance(value, str) or not 0 < _size(value) <= TEXT_BYTES_MAX:
            raise Unreadable(f"{_shown(raw)}: expected a text as {name}")
    qos = told.get("qos", 0)
    if type(qos) is str and qos.isdecimal():
        qos = int(qos)
    if told["type"] == SUBSCRIBE and (type(qos) is not int or qos not in (0, 1, 2)):
        raise Unreadable(f"{_shown(raw)}: expected 0, 1 or 2 as qos")
    return {
        "client_id": told["clientid"],
        "topic": told["topic"],
        "qos": qos if told["type"] == SUBSCRIBE else None,
    }


def _size(value: str) -> int:
    """Return the bytes of a text, 0 if it is none in UTF-8."""
    try:
        return len(value.encode())
    except UnicodeEncodeError:
        return 0


def _shown(raw: bytes) -> str:
    text = raw[:SHOWN_CHARACTERS].decode(errors="replace")
    return repr(text) + ("..." if len(raw) > SHOWN_CHARACTERS else "")


class Window:
    """Changes that the broker has not answered for. Threads tell of them; another one answers."""

    def __init__(self, tell: Tell) -> None:
        self._tell: Final = tell
        self._changed: Final = threading.Condition()
        self._last_number = 0
        self._is_closed = False
        self._open: Final[dict[int, Callable[[], None]]] = {}  # what is done with the answer

    def wait_for_room(self) -> int:
        """Wait until a change may be told, or nobody listens any more; return how many may."""
        with self._changed:
            while len(self._open) >= UNANSWERED_MAX and not self._is_closed:
                self._changed.wait()
            return UNANSWERED_MAX - len(self._open)

    def tell(self, raw: bytes, done: Callable[[], None]) -> None:
        """Tell the broker of a change; `done` is called when it is durable, or is none."""
        try:
            change = read(raw)
        except Unreadable as problem:
            self._tell({"unreadable": str(problem)})
            done()
            return
        with self._changed:
            self._last_number += 1
            number = self._last_number
            self._open[number] = done
        self._tell({"change": number, **change})

    def close(self) -> None:
        """Let nobody wait any more."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def answered(self, numbers: list[int]) -> None:
        """Take the answers of the broker."""
        with self._changed:
            done = [self._open.pop(number) for number in numbers if number in self._open]
            self._changed.notify_all()
        for each in done:
            each()

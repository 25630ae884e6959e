"""What Kafka gets for a row: topic, key, headers and value.

The target topic may have names in it, such as `mqtt.${topic}`. Kafka takes few letters in a topic:
in a value, every other one becomes `_`, so different MQTT topics may share one of Kafka; the key
tells them apart. Pure. Read next: `broker.backends.kafka_sink`.
"""

import re
from collections.abc import Iterable
from typing import Any, Final

from broker.backends.actions import HOOKS
from broker.backends.json_rows import JsonRow
from broker.backends.templates import Template
from mqtt.message import Message

# Names in a target topic. Others, such as the message id, would make a topic for each row.
NAMES: Final = ("topic", "clientid", "username", "qos", "hook", "node")
TOPIC_CHARACTERS_MAX: Final = 249
HEADERS: Final = ("id", "hook", "msgid", "qos")
# In values not `.` either: Kafka does not let two topics differ in `.` and `_` alone.
_REPLACED: Final = re.compile(r"[^A-Za-z0-9_-]")
_TEXT: Final = re.compile(r"[A-Za-z0-9._-]*")


class KafkaRows:
    """How one backend sends its rows."""

    def __init__(self, node: str, topic: str, key: str, value: str) -> None:
        """`key` is "topic" or "clientid"; `value` is "json" or "payload"."""
        template = Template(topic)
        self._texts: Final = [text.decode() for text in template.texts]
        self._names: Final = template.names
        self._node: Final = node
        self._key: Final = key
        self._is_raw: Final = value == "payload"
        # The one topic for all rows, None if rows choose.
        self.fixed: Final = None if self._names else topic

    def topic(self, row: JsonRow) -> str:
        """Return the topic for a row. Raises ValueError if Kafka cannot have such a one."""
        pieces = [self._texts[0]]
        for name, text in zip(self._names, self._texts[1:], strict=True):
            value = self._node if name == "node" else str(row.fields.get(name, ""))
            pieces += (_REPLACED.sub("_", value) or "_", text)
        found = "".join(pieces)
        if len(found) > TOPIC_CHARACTERS_MAX:
            raise ValueError(
                f"a topic of {len(found)} characters; Kafka takes {TOPIC_CHARACTERS_MAX}"
            )
        return found

    def key(self, row: JsonRow) -> bytes:
        """Return the key of a row; one without a topic has its client."""
        fields: dict[str, Any] = row.fields
        return str(fields.get(self._key) or fields["clientid"]).encode()

    def value(self, row: JsonRow) -> bytes:
        """Return the value of a row: JSON, or the payload alone if it has one."""
        if self._is_raw and isinstance(row.row, Message):
            return row.row.payload
        return row.body

    def headers(self, row: JsonRow) -> list[tuple[str, bytes]]:
        """Return the headers of a row."""
        fields = row.fields
        return [(name, str(fields[name]).encode()) for name in HEADERS if name in fields]


def topic_problem(topic: str, hooks: Iterable[str]) -> str | None:
    """Return what a target topic should be for the rows of these hooks, None if it is right."""
    template = Template(topic)
    for name in template.names:
        if name not in NAMES:
            return f"names of {', '.join('${' + each + '}' for each in NAMES)}, not ${{{name}}}"
        without = [hook for hook in hooks if name != "hook" and name not in HOOKS[hook].parameters]
        if without:
            return f"names that all hooks of its rules have: {without[0]} has no ${{{name}}}"
    texts = [text.decode() for text in template.texts]
    if not all(map(_TEXT.fullmatch, texts)):
        return "letters, digits and . _ - besides names such as ${topic}"
    size = sum(map(len, texts)) + len(template.names)
    if topic in ("", ".", "..") or size > TOPIC_CHARACTERS_MAX:
        return f"a topic of 1 to {TOPIC_CHARACTERS_MAX} characters"
    return None

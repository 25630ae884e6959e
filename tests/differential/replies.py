"""What a broker answers, as far as two brokers can be compared: kinds, reason codes, deliveries.

Lenient on purpose: it reads what any broker sends. Left out is what each may choose: property
values, its own packet ids, reason strings. Read next: `tests.differential.player`.
"""

from typing import Final, NamedTuple

KINDS: Final = {
    1: "CONNECT",
    2: "CONNACK",
    3: "PUBLISH",
    4: "PUBACK",
    5: "PUBREC",
    6: "PUBREL",
    7: "PUBCOMP",
    8: "SUBSCRIBE",
    9: "SUBACK",
    10: "UNSUBSCRIBE",
    11: "UNSUBACK",
    12: "PINGREQ",
    13: "PINGRESP",
    14: "DISCONNECT",
    15: "AUTH",
}


class Reply(NamedTuple):
    """One packet of a broker; `packet_id` is for the player, `text` is what is compared."""

    kind: str
    packet_id: int
    qos: int
    text: str


class Stream:
    """Cuts what a broker sends into replies."""

    def __init__(self) -> None:
        self.version = 4
        self._data = b""
        self._aliases: dict[int, bytes] = {}

    def feed(self, data: bytes) -> list[Reply]:
        """Return the replies that got complete."""
        self._data += data
        found: list[Reply] = []
        while (frame := self._frame()) is not None:
            first, body = frame
            found.append(self._reply(first, body))
        return found

    def _frame(self) -> tuple[int, bytes] | None:
        size, position = 0, 1
        while True:
            if position >= len(self._data):
                return None
            byte = self._data[position]
            size |= (byte & 0x7F) << 7 * (position - 1)
            position += 1
            if byte < 0x80:
                break
        if len(self._data) < position + size:
            return None
        first, body = self._data[0], self._data[position : position + size]
        self._data = self._data[position + size :]
        return first, body

    def _reply(self, first: int, body: bytes) -> Reply:
        kind = KINDS.get(first >> 4, "?")
        number = int.from_bytes(body[:2], "big")
        code = f"{body[2]:02x}" if len(body) > 2 else "00"
        if kind == "CONNACK":
            return Reply(kind, 0, 0, f"CONNACK sp={body[0]} {body[1]:02x}")
        if kind == "PUBLISH":
            return self._publish(first, body)
        if kind in ("PUBACK", "PUBREC", "PUBCOMP"):
            return Reply(kind, number, 0, f"{kind} {number} {code}")
        if kind == "PUBREL":
            return Reply(kind, number, 0, f"PUBREL {code}")
        if kind in ("SUBACK", "UNSUBACK"):
            codes = body[2:]
            if self.version == 5:
                codes = codes[_properties_size(codes) :]
            return Reply(kind, number, 0, f"{kind} {number} {codes.hex(' ')}".rstrip())
        if kind == "DISCONNECT":
            return Reply(kind, 0, 0, f"DISCONNECT {body[0] if body else 0:02x}")
        if kind == "AUTH":
            return Reply(kind, 0, 0, f"AUTH {body[0] if body else 0:02x}")
        return Reply(kind, 0, 0, kind)

    def _publish(self, first: int, body: bytes) -> Reply:
        qos = first >> 1 & 3
        size = int.from_bytes(body[:2], "big")
        topic, rest = body[2 : 2 + size], body[2 + size :]
        number = 0
        if qos:
            number, rest = int.from_bytes(rest[:2], "big"), rest[2:]
        if self.version == 5:
            size = _properties_size(rest)
            alias = _alias(rest[2 if rest[0] >= 0x80 else 1 : size])
            if alias:
                topic = self._aliases[alias] = topic or self._aliases.get(alias, b"?")
            rest = rest[size:]
        flags = "".join([" retain" if first & 1 else "", " dup" if first & 8 else ""])
        words = f"PUBLISH {topic.decode('utf-8', 'replace')} {rest.decode('utf-8', 'replace')!r}"
        return Reply("PUBLISH", number, qos, f"{words} qos={qos}{flags}")


def _properties_size(data: bytes) -> int:
    """Return the size of a property block with its length, which is at most two bytes here."""
    if not data:
        return 0
    if data[0] < 0x80:
        return 1 + data[0]
    return 2 + (data[0] & 0x7F) + (data[1] << 7)


def _alias(block: bytes) -> int:
    """Return the topic alias in the properties of a PUBLISH, 0 if there is none."""
    position = 0
    while position < len(block):
        identifier = block[position]
        position += 1
        if identifier == 0x23:
            return int.from_bytes(block[position : position + 2], "big")
        if identifier == 0x01:
            position += 1
        elif identifier == 0x02:
            position += 4
        elif identifier == 0x0B:  # a variable byte integer
            while block[position] >= 0x80:
                position += 1
            position += 1
        else:  # strings, and a pair of them
            for _ in range(2 if identifier == 0x26 else 1):
                position += 2 + int.from_bytes(block[position : position + 2], "big")
    return 0

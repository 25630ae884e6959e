"""Traces: what a running broker tells about one client, topic filter or address, for a time.

A trace keeps lines until somebody reads them. It has a limit of lines and of lines a second, beyond
which it only counts, so that no trace costs a broker its memory; one that nobody reads ends. While
there is no trace nothing here runs. Must never change what the broker does. Used on the loop's
thread only. Read next: `broker.operations.tracing.taps`.
"""

import ipaddress
import json
from collections import deque
from collections.abc import Iterator
from typing import Any, Final, TypeAlias

from mqtt.topics import filter_problem, matches

Line: TypeAlias = dict[str, Any]

CLIENT: Final = "client"
TOPIC: Final = "topic"
ADDRESS: Final = "address"
KINDS: Final = (CLIENT, TOPIC, ADDRESS)

TRACES_MAX: Final = 8
FOR_MS_MAX: Final = 24 * 3600 * 1000
LINES_MAX: Final = 2000  # that wait for a reader
LINES_PER_SECOND_MAX: Final = 1000
UNREAD_MS_MAX: Final = 30_000  # a trace that nobody has read for so long ends
TOPICS_REMEMBERED_MAX: Final = 4096  # whether a topic matches
PAYLOAD_BYTES_MAX: Final = 256  # of a payload that are told
# Lines carry names that clients chose: of each so many characters.
NAME_CHARACTERS_MAX: Final = 512
TEXT_CHARACTERS_MAX: Final = 1024

Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network


class TraceError(Exception):
    """A trace that cannot be; one line for the operator."""


class Trace:
    """One trace, and its lines that nobody has read yet."""

    def __init__(
        self, number: int, kind: str, value: str, by: str, until_ms: int, payload_bytes: int
    ) -> None:
        """Raises `TraceError` for a value that is none of its kind."""
        self.number: Final = number
        self.kind: Final = kind
        self.value: Final = value
        self.by: Final = by
        self.until_ms: Final = until_ms
        self.payload_bytes: Final = payload_bytes
        self.over: str = ""  # why it has ended
        self.left_out: int = 0  # lines since the last reading that there was no room for
        self.read_ms: int = 0
        self._network: Network | None = None
        if kind == TOPIC:
            problem = filter_problem(value)
            if problem is not None:
                raise TraceError(problem)
        elif kind == ADDRESS:
            self._network = _network(value)
        elif kind != CLIENT:
            raise TraceError(f"trace of {kind[:40]!r}: expected {', '.join(KINDS)}")
        self._lines: Final[deque[str]] = deque()  # JSON: who reads them all waits for no other work
        self._second: int = 0
        self._lines_in_second: int = 0
        self._matching: Final[dict[str, bool]] = {}

    def wants_client(self, client_id: str, remote: str) -> bool:
        """Return whether all packets of this client are told."""
        if self.kind == CLIENT:
            return client_id == self.value
        return self._network is not None and _is_in(remote, self._network)

    def wants_topic(self, topic: str) -> bool:
        """Return whether what is published to this topic is told."""
        if self.kind != TOPIC:
            return False
        known = self._matching.get(topic)
        if known is None:
            if len(self._matching) >= TOPICS_REMEMBERED_MAX:
                self._matching.clear()
            known = self._matching[topic] = bool(topic) and matches(self.value, topic)
        return known

    def has_room(self, now_ms: int) -> bool:
        """Return whether another line may be made; else one more is left out."""
        second = now_ms // 1000
        if second != self._second:
            self._second, self._lines_in_second = second, 0
        if len(self._lines) < LINES_MAX and self._lines_in_second < LINES_PER_SECOND_MAX:
            self._lines_in_second += 1
            return True
        self.left_out += 1
        return False

    def add(self, line: Line) -> None:
        """Keep a line until it is read; ask `has_room` before."""
        self._lines.append(json.dumps(line))

    def take(self, bytes_max: int) -> tuple[str, int]:
        """Return the oldest lines as a JSON list, and how many were left out.

        The list has at most so many bytes and one line.

        Those were left out behind the lines that still wait: they are told with the last of them.
        """
        found: list[str] = []
        size = 0
        while self._lines and size < bytes_max:
            line = self._lines.popleft()
            size += len(line)
            found.append(line)
        left_out = 0
        if not self._lines:
            left_out, self.left_out = self.left_out, 0
        return f"[{', '.join(found)}]", left_out

    @property
    def waiting(self) -> int:
        """How many lines wait for a reader."""
        return len(self._lines)


class Traces:
    """All traces of a broker."""

    def __init__(self) -> None:
        self.all: Final[dict[int, Trace]] = {}  # that have not ended
        self._ended: Final[dict[int, Trace]] = {}  # whose last lines somebody may still read
        self._last = 0

    def __bool__(self) -> bool:
        return bool(self.all)

    def __iter__(self) -> Iterator[Trace]:
        return iter(self.all.values())

    def add(
        self, kind: str, value: str, by: str, *, now_ms: int, for_ms: int, payload_bytes: int
    ) -> Trace:
        """Begin a trace. Raises `TraceError`."""
        if not 0 < for_ms <= FOR_MS_MAX:
            raise TraceError(f"a trace of {for_ms} ms: expected 1 ms to 24 h")
        if len(self.all) >= TRACES_MAX:
            raise TraceError(f"{TRACES_MAX} traces are on already: `holdfast trace stop` ends one")
        payload_bytes = min(payload_bytes, PAYLOAD_BYTES_MAX)
        self._last += 1
        trace = Trace(self._last, kind, value, by, now_ms + for_ms, payload_bytes)
        trace.read_ms = now_ms
        self.all[trace.number] = trace
        return trace

    def find(self, number: int) -> Trace | None:
        """Return a trace that is on, or that has ended and was not read to its end."""
        return self.all.get(number) or self._ended.get(number)

    def end(self, trace: Trace, why: str) -> None:
        """End a trace; its lines can still be read."""
        if self.all.pop(trace.number, None) is None:
            return
        trace.over = why
        self._ended[trace.number] = trace
        while len(self._ended) > TRACES_MAX:
            del self._ended[next(iter(self._ended))]

    def forget(self, trace: Trace) -> None:
        """Drop a trace that has ended and was read."""
        self._ended.pop(trace.number, None)

    def look(self, now_ms: int) -> None:
        """End traces whose time is over, and those that nobody reads."""
        for trace in list(self.all.values()):
            if now_ms >= trace.until_ms:
                self.end(trace, "its time is over")
            elif now_ms - trace.read_ms > UNREAD_MS_MAX:
                self.end(trace, f"nobody has read it for {UNREAD_MS_MAX // 1000} s")


def _network(value: str) -> Network:
    try:
        return ipaddress.ip_network(value, strict=False)
    except ValueError:
        raise TraceError(
            f"address {value[:100]!r}: expected one such as 10.0.0.7, 10.0.0.0/8 or fd00::/8"
        ) from None


def _is_in(remote: str, network: Network) -> bool:
    """Return whether a peer, such as 10.0.0.1:5 or [::1]:5, is in a network."""
    host, _, _ = remote.rpartition(":")
    try:
        address = ipaddress.ip_address(host.removeprefix("[").removesuffix("]").split("%")[0])
    except ValueError:
        return False
    if address.version == 6 and address.ipv4_mapped is not None and network.version == 4:
        return address.ipv4_mapped in network
    return address.version == network.version and address in network


def cut_names(line: Line) -> Line:
    """Shorten what clients chose, so that a line has a limit."""
    for key, characters_max in (
        ("topic", NAME_CHARACTERS_MAX),
        ("client_id", NAME_CHARACTERS_MAX),
        ("text", TEXT_CHARACTERS_MAX),
    ):
        text = line.get(key)
        if isinstance(text, str) and len(text) > characters_max:
            line[key] = text[:characters_max] + "..."
    return line

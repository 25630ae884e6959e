"""The options of one backend, an external store, and of one rule: what is done there, and when.

Holds values and checks whether they go together; must open nothing. `broker.configuration.load`
fills them from `[backends.NAME]` and `[[rules]]`. Which hooks and actions there are is not known
here. Read next: docs/backends.md.
"""

from collections.abc import Iterator
from typing import Final

from mqtt.topics import SHARE_PREFIX, filter_problem

REDIS: Final = "redis"
TYPES: Final = (REDIS,)

SINGLE: Final = "single"
SENTINEL: Final = "sentinel"
MODES: Final = (SINGLE, SENTINEL)

SCORES: Final = ("time", "one")

BACKENDS_MAX: Final = 16  # each is a process and a label value of the metrics
RULES_MAX: Final = 256  # each is tried for every row

_TLS_KEYS: Final = ("tls_ca", "tls_certificate", "tls_key")


class Backend:
    """One external store's settings; attributes are named after the keys."""

    def __init__(self, name: str) -> None:
        self.section: str = f"backends.{name}"
        self.name: str = name
        self.type: str = REDIS
        self.servers: tuple[str, ...] = ()  # host:port
        self.mode: str = SINGLE
        self.sentinel_name: str | None = None  # what the sentinels call the group of servers
        self.database: int = 0
        self.username: str | None = None
        self.password: str = ""
        self.password_file: str | None = None
        self.tls: bool = False
        self.tls_ca: str | None = None  # None = the system's
        self.tls_certificate: str | None = None
        self.tls_key: str | None = None  # None = in the certificate's file
        self.tls_verify: bool = True
        self.node: str | None = None  # None = the node of the history
        self.required: bool = False
        self.rewind_keep_ms: int = 15 * 60_000
        self.score: str = "time"
        self.timeout_ms: int = 5000
        self.expires_s: int = 0  # 0 = what the message itself says
        self.max_returned_count: int = 500
        self.time_range_ms: int = 0  # 0 = whatever their age

    def problems(self) -> Iterator[str]:
        """Yield what does not go together, each one line naming the keys."""
        section = self.section
        if not self.servers:
            yield f"{section}.servers is missing: expected host:port"
        elif self.mode == SINGLE and len(self.servers) > 1:
            yield (
                f"{section}.servers: expected one server, not {len(self.servers)}, in the mode "
                f"{SINGLE}; several are the sentinels of {section}.mode = '{SENTINEL}'"
            )
        if self.mode == SENTINEL and self.sentinel_name is None:
            yield f"{section}.sentinel_name is missing: the mode {SENTINEL} needs one"
        if self.mode != SENTINEL and self.sentinel_name is not None:
            yield f"{section}.sentinel_name has no meaning in the mode {self.mode}"
        if self.password and self.password_file is not None:
            yield f"{section}.password and {section}.password_file: expected one of them"
        if not self.tls:
            for key in _TLS_KEYS:
                if getattr(self, key) is not None:
                    yield f"{section}.{key} needs {section}.tls = true as well"
            if not self.tls_verify:
                yield f"{section}.tls_verify needs {section}.tls = true as well"
        if self.tls_key is not None and self.tls_certificate is None:
            yield f"{section}.tls_key needs {section}.tls_certificate as well"


class WrittenRule:
    """One `[[rules]]` as written; attributes are named after the keys."""

    def __init__(self, number: int, origin: str) -> None:
        self.number: int = number  # from 1 on, in the order of the file
        self.section: str = f"rules[{number}]"
        self.origin: str = origin
        self.on: str | None = None
        self.topic: str | None = None
        self.backend: str | None = None
        self.action: str | None = None
        self.commands: tuple[str, ...] = ()
        self.expires_s: int = 0  # 0 = what the backend says
        self.max_returned_count: int = 0  # the same
        self.time_range_ms: int = 0  # the same

    def problems(self) -> Iterator[str]:
        """Yield what does not go together, each one line naming the keys."""
        section = self.section
        for key in ("on", "backend"):
            if getattr(self, key) is None:
                yield f"{section}.{key} is missing"
        if self.action is not None and self.commands:
            yield f"{section}.action and {section}.commands: expected one of them"
        if self.action is None and not self.commands:
            yield f"{section} has neither an action nor commands: expected one of them"
        if self.topic is not None:
            problem = filter_problem(self.topic)
            if problem is not None:
                yield f"{section}.topic: {problem}"
            elif self.topic.startswith(SHARE_PREFIX):
                yield f"{section}.topic = {self.topic!r}: expected a filter without a share name"

    def what(self) -> tuple[object, ...]:
        """Return what it does; two rules that do the same are one too many."""
        return self.on, self.topic, self.backend, self.action, self.commands

    def as_tuple(self) -> tuple[object, ...]:
        """Return everything it says."""
        return *self.what(), self.expires_s, self.max_returned_count, self.time_range_ms


def conflicts(backends: list[Backend], rules: list[WrittenRule]) -> Iterator[str]:
    """Yield conflicts between backends and rules, each one line."""
    if len(backends) > BACKENDS_MAX:
        yield f"{len(backends)} backends: expected at most {BACKENDS_MAX}"
    if len(rules) > RULES_MAX:
        yield f"{len(rules)} rules: expected at most {RULES_MAX}"
    names = [backend.name for backend in backends]
    first: dict[tuple[object, ...], WrittenRule] = {}
    for rule in rules:
        if rule.backend not in names:
            there = "one of " + ", ".join(names) if names else "a [backends.NAME], there is none"
            yield f"{rule.origin}: {rule.section}.backend = {rule.backend!r}: expected {there}"
        same = first.setdefault(rule.what(), rule)
        if same is not rule:
            yield f"{rule.origin}: {rule.section} says the same as {same.section}"

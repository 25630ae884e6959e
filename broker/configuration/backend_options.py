"""The options of one backend, an external store, and of one rule: what is done there, and when.

Holds values and checks whether they go together; must open nothing. `broker.configuration.load`
fills them from `[backends.NAME]` and `[[rules]]`. Which hooks and actions there are is not known
here. Read next: docs/backends.md.
"""

from collections.abc import Iterator, Mapping
from typing import Final

from mqtt.topics import SHARE_PREFIX, filter_problem

REDIS: Final = "redis"
CASSANDRA: Final = "cassandra"
DYNAMODB: Final = "dynamodb"
KAFKA: Final = "kafka"
WEBHOOK: Final = "webhook"
TYPES: Final = (REDIS, CASSANDRA, DYNAMODB, KAFKA, WEBHOOK)

SINGLE: Final = "single"
SENTINEL: Final = "sentinel"
CLUSTER: Final = "cluster"
MODES: Final = (SINGLE, SENTINEL, CLUSTER)

ADD: Final = "add"
MIRROR: Final = "mirror"
SYNCS: Final = (ADD, MIRROR)

SCORES: Final = ("time", "one")

CONSISTENCIES: Final = (
    "any", "one", "two", "three", "quorum", "all", "local_quorum", "each_quorum", "local_one",
)  # fmt: skip
LAYOUTS: Final = ("v1", "v2")
MESSAGE_KEYS: Final = ("topic", "clientid")
MESSAGE_VALUES: Final = ("json", "payload")
SASL_MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")

BACKENDS_MAX: Final = 16  # each is a process and a label value of the metrics
RULES_MAX: Final = 256  # each is tried for every row

# Other names of actions, as other brokers spell them; from the configuration on there is ours only.
ACTION_ALIASES: Final[Mapping[str, str]] = {"on_subscription_lookup": "on_subscribe_lookup"}

# The keys of a rule with own commands, by the type of its backend; None = there are none, and a
# rule without an action sends the row.
COMMANDS: Final[Mapping[str, str | None]] = {
    REDIS: "commands",
    CASSANDRA: "cql",
    DYNAMODB: "statements",
    KAFKA: None,
    WEBHOOK: None,
}
COMMAND_KEYS: Final = tuple(key for key in COMMANDS.values() if key is not None)

_CERTIFICATE_KEYS: Final = ("tls_ca", "tls_certificate", "tls_key")
_TLS: Final = ("tls", *_CERTIFICATE_KEYS, "tls_verify")
_OF_SENTINELS: Final = (
    "sentinel_name", "sentinel_username", "sentinel_password", "sentinel_password_file",
)  # fmt: skip
_LOGIN: Final = ("username", "password", "password_file")
# What happens when too much waits for a store.
DROP_OLDEST: Final = "drop_oldest"
REJECT: Final = "reject"
# With less, what is on its way to a store that keeps up would count as too much.
BACKLOG_BYTES_MIN: Final = 16 << 20

EVERY_TYPE: Final = (
    *("type", "node", "required", "timeout", "retry_first", "retry_max", "connections"),
    *("batch_rows", "linger", "backlog_bytes_max", "on_full"),
)
_FETCHED: Final = ("max_returned_count", "time_range")  # of a store that is asked for messages
_KEPT: Final = ("rewind_keep", "expires")  # of a store that keeps its cursor, and messages
# The keys that mean something, by type, besides those of every type.
KEYS: Final[Mapping[str, tuple[str, ...]]] = {
    REDIS: (
        "servers",
        "mode",
        *_OF_SENTINELS,
        "database",
        *_LOGIN,
        *_TLS,
        "score",
        "channel",
        "stream",
        *_KEPT,
        *_FETCHED,
    ),
    CASSANDRA: (
        *("servers", "keyspace", "table_prefix", "datacenter", "consistency", "sender_index"),
        *(*_LOGIN, *_TLS, *_KEPT, *_FETCHED),
    ),
    DYNAMODB: (
        *("region", "endpoint", "access_key_id", "secret_access_key", "secret_access_key_file"),
        *("table_prefix", "layout", "exact", *_KEPT),
    ),
    KAFKA: ("servers", "topic", "key", "value", *_LOGIN, "sasl_mechanism", *_TLS),
    WEBHOOK: ("url", "secret", "secret_file", "headers", *_LOGIN, *_CERTIFICATE_KEYS, "tls_verify"),
}
# How many writes are under way at once where nobody has said so.
CONNECTIONS: Final[Mapping[str, int]] = {CASSANDRA: 64}
# Why there cannot be more than one of some types.
ONE_CONNECTION: Final[Mapping[str, str]] = {
    REDIS: "the script that applies a batch moves the cursor as well, so batches come one by one",
    KAFKA: "the client of Kafka sends to all its servers at once by itself",
    WEBHOOK: "rows come in one order, a request at a time",
}
# Where a table of ours is named, and nobody has said how.
TABLE_PREFIXES: Final[Mapping[str, str]] = {DYNAMODB: "mqtt_"}

_REQUIRED: Final[Mapping[str, tuple[tuple[str, str], ...]]] = {
    REDIS: (("servers", "host:port"),),
    CASSANDRA: (("servers", "host:port"),),
    DYNAMODB: (),
    KAFKA: (("servers", "host:port"), ("topic", "the topic that gets the rows")),
    WEBHOOK: (("url", "http:// or https://"),),
}
_ONE_OF: Final = (
    ("password", "password_file"),
    ("sentinel_password", "sentinel_password_file"),
    ("secret", "secret_file"),
    ("secret_access_key", "secret_access_key_file"),
)
_CASSANDRA_NAME: Final = "letters, digits and '_'"


class Backend:
    """One external store's settings; attributes are named after the keys."""

    def __init__(self, name: str) -> None:
        self.section: str = f"backends.{name}"
        self.name: str = name
        self.type: str = REDIS
        self.servers: tuple[str, ...] = ()  # host:port
        self.mode: str = SINGLE
        self.sentinel_name: str | None = None  # what the sentinels call the group of servers
        self.sentinel_username: str | None = None  # of the sentinels, which have their own
        self.sentinel_password: str = ""
        self.sentinel_password_file: str | None = None
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
        self.batch_rows: int = 500
        self.linger_ms: int = 0
        self.connections: int = 0  # 0 = those of its type
        self.rewind_keep_ms: int = 15 * 60_000
        self.backlog_bytes_max: int = 0  # 0 = no limit
        self.on_full: str = DROP_OLDEST
        self.score: str = "time"
        self.channel: str | None = None  # where applications tell of subscriptions; None = nowhere
        self.stream: str | None = None  # the same
        self.timeout_ms: int = 5000
        self.retry_first_ms: int = 100
        self.retry_max_ms: int = 30_000
        self.expires_s: int = 0  # 0 = what the message itself says
        self.max_returned_count: int = 500
        self.time_range_ms: int = 0  # 0 = whatever their age
        self.keyspace: str = "mqtt"
        self.table_prefix: str | None = None  # None = the one of its type
        self.datacenter: str | None = None  # None = the one of the first server
        self.consistency: str = "local_quorum"
        self.sender_index: bool = False
        self.region: str | None = None  # None = what AWS's own settings say
        self.endpoint: str | None = None  # None = AWS
        self.access_key_id: str | None = None  # None = what AWS's own settings say
        self.secret_access_key: str = ""
        self.secret_access_key_file: str | None = None
        self.layout: str = "v1"
        self.exact: bool = True
        self.topic: str | None = None
        self.key: str = "topic"
        self.value: str = "json"
        self.sasl_mechanism: str = "PLAIN"
        self.url: str | None = None
        self.secret: str = ""
        self.secret_file: str | None = None
        self.headers: tuple[tuple[str, str], ...] = ()

    def keys(self) -> tuple[str, ...]:
        """Return the keys that mean something for its type."""
        return (*EVERY_TYPE, *KEYS[self.type])

    def has_cursor(self) -> bool:
        """Return whether the store keeps a cursor; to one that does not rows are sent whole."""
        return COMMANDS[self.type] is not None

    def finish(self) -> None:
        """Fill what depends on the type."""
        if self.table_prefix is None:
            self.table_prefix = TABLE_PREFIXES.get(self.type, "")
        if not self.connections:
            self.connections = CONNECTIONS.get(self.type, 1)

    def problems(self) -> Iterator[str]:
        """Yield what does not go together, each one line naming the keys."""
        section = self.section
        for key, expected in _REQUIRED[self.type]:
            if not getattr(self, key):
                yield f"{section}.{key} is missing: expected {expected}"
        for key, file in _ONE_OF:
            if getattr(self, key) and getattr(self, file) is not None:
                yield f"{section}.{key} and {section}.{file}: expected one of them"
        if self.retry_first_ms > self.retry_max_ms:
            yield (
                f"{section}.retry_first is longer than {section}.retry_max: expected at most as "
                "long"
            )
        if 0 < self.backlog_bytes_max < BACKLOG_BYTES_MIN:
            yield (
                f"{section}.backlog_bytes_max = {self.backlog_bytes_max}: expected at least "
                f"{BACKLOG_BYTES_MIN >> 20}MiB, or 0 for no limit"
            )
        if self.on_full != DROP_OLDEST and not self.backlog_bytes_max:
            yield f"{section}.on_full needs {section}.backlog_bytes_max as well"
        if self.connections > 1 and self.type in ONE_CONNECTION:
            why = ONE_CONNECTION[self.type]
            yield f"{section}.connections = {self.connections}: expected 1: {why}"
        yield from self._tls_problems()
        if self.type == REDIS:
            yield from self._redis_problems()
        elif self.type == DYNAMODB:
            yield from self._dynamodb_problems()
        elif self.type == WEBHOOK:
            yield from self._webhook_problems()
        elif self.type == CASSANDRA and not (self.table_prefix or "_").replace("_", "a").isalnum():
            yield f"{section}.table_prefix = {self.table_prefix!r}: expected {_CASSANDRA_NAME}"

    def _webhook_problems(self) -> Iterator[str]:
        section = self.section
        if self.username is None and (self.password or self.password_file is not None):
            yield f"{section}.password needs {section}.username as well"
        names = [name.lower() for name, _ in self.headers]
        if self.username is not None and "authorization" in names:
            yield f"{section}.headers: expected no Authorization beside {section}.username"

    def _tls_problems(self) -> Iterator[str]:
        section = self.section
        if self.type == WEBHOOK:
            is_on, wanted = (self.url or "").startswith("https:"), f"a {section}.url with https"
        else:
            is_on, wanted = self.tls, f"{section}.tls = true"
        if not is_on:
            for key in _CERTIFICATE_KEYS:
                if getattr(self, key) is not None:
                    yield f"{section}.{key} needs {wanted} as well"
            if not self.tls_verify:
                yield f"{section}.tls_verify needs {wanted} as well"
        if self.tls_key is not None and self.tls_certificate is None:
            yield f"{section}.tls_key needs {section}.tls_certificate as well"

    def _redis_problems(self) -> Iterator[str]:
        section = self.section
        if self.mode == SINGLE and len(self.servers) > 1:
            yield (
                f"{section}.servers: expected one server, not {len(self.servers)}, in the mode "
                f"{SINGLE}; several are the sentinels of {section}.mode = '{SENTINEL}', or servers "
                f"of '{CLUSTER}'"
            )
        if self.mode == SENTINEL and self.sentinel_name is None:
            yield f"{section}.sentinel_name is missing: the mode {SENTINEL} needs one"
        for key in _OF_SENTINELS if self.mode != SENTINEL else ():
            if getattr(self, key):
                yield f"{section}.{key} has no meaning in the mode {self.mode}"
        has_password = bool(self.sentinel_password) or self.sentinel_password_file is not None
        if self.sentinel_username is not None and not has_password:
            yield f"{section}.sentinel_username needs {section}.sentinel_password as well"
        if self.mode == CLUSTER and self.database:
            yield f"{section}.database = {self.database}: a cluster has only the database 0"
        if self.mode == CLUSTER and self.channel is not None:
            yield (
                f"{section}.channel has no meaning in the mode {CLUSTER}: expected {section}.stream"
            )

    def _dynamodb_problems(self) -> Iterator[str]:
        section = self.section
        if self.exact and self.connections > 1:
            yield (
                f"{section}.connections = {self.connections}: expected 1, or {section}.exact = "
                "false: a transaction moves the cursor as well, so they come one by one"
            )
        has_secret = bool(self.secret_access_key) or self.secret_access_key_file is not None
        if self.access_key_id is None and has_secret:
            yield f"{section}.access_key_id is missing: the secret access key needs one"
        if self.access_key_id is not None and not has_secret:
            yield f"{section}.secret_access_key is missing: the access key id needs one"


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
        self.cql: tuple[str, ...] = ()
        self.statements: tuple[str, ...] = ()
        self.expires_s: int = 0  # 0 = what the backend says
        self.max_returned_count: int = 0  # the same
        self.time_range_ms: int = 0  # the same
        self.sync: str = ADD
        self.bypass_acl: bool = False
        self.qos0: bool = False
        self.wait_ms: int = 0  # how long a CONNECT waits for its list; 0 = not at all
        self.required: bool = False  # is it refused without one?

    def problems(self) -> Iterator[str]:
        """Yield what does not go together, each one line naming the keys."""
        section = self.section
        for key in ("on", "backend"):
            if getattr(self, key) is None:
                yield f"{section}.{key} is missing"
        for key in COMMAND_KEYS:
            if self.action is not None and getattr(self, key):
                yield f"{section}.action and {section}.{key}: expected one of them"
        if self.required and not self.wait_ms:
            yield f"{section}.required needs {section}.wait as well: how long a client waits"
        if self.topic is not None:
            problem = filter_problem(self.topic)
            if problem is not None:
                yield f"{section}.topic: {problem}"
            elif self.topic.startswith(SHARE_PREFIX):
                yield f"{section}.topic = {self.topic!r}: expected a filter without a share name"

    def type_problems(self, type: str) -> Iterator[str]:
        """Yield what does not go together with a backend of this type, each one line."""
        own = COMMANDS[type]
        expected = f"an action or {own}" if own else "an action, or nothing to send the row"
        for key in COMMAND_KEYS:
            if key != own and getattr(self, key):
                meaning = f"has no meaning for the type {type}"
                yield f"{self.section}.{key} {meaning}: expected {expected}"
        if own and self.action is None and not self.own_commands():
            yield f"{self.section} has neither an action nor {own}: expected one of them"

    def own_commands(self) -> tuple[str, ...]:
        """Return its commands in the language of the store, () = it has none."""
        return self.commands or self.cql or self.statements

    def what(self) -> tuple[object, ...]:
        """Return what it does; two rules that do the same are one too many."""
        return self.on, self.topic, self.backend, self.action, self.own_commands()

    def as_tuple(self) -> tuple[object, ...]:
        """Return everything it says."""
        return (
            *self.what(),
            *(self.expires_s, self.max_returned_count, self.time_range_ms),
            *(self.sync, self.bypass_acl, self.wait_ms, self.required, self.qos0),
        )


def conflicts(backends: list[Backend], rules: list[WrittenRule]) -> Iterator[str]:
    """Yield conflicts between backends and rules, each one line."""
    if len(backends) > BACKENDS_MAX:
        yield f"{len(backends)} backends: expected at most {BACKENDS_MAX}"
    if len(rules) > RULES_MAX:
        yield f"{len(rules)} rules: expected at most {RULES_MAX}"
    types = {backend.name: backend.type for backend in backends}
    first: dict[tuple[object, ...], WrittenRule] = {}
    for rule in rules:
        if rule.backend not in types:
            there = "one of " + ", ".join(types) if types else "a [backends.NAME], there is none"
            yield f"{rule.origin}: {rule.section}.backend = {rule.backend!r}: expected {there}"
        else:
            for problem in rule.type_problems(types[rule.backend]):
                yield f"{rule.origin}: {problem}"
        same = first.setdefault(rule.what(), rule)
        if same is not rule:
            yield f"{rule.origin}: {rule.section} says the same as {same.section}"

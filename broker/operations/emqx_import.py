"""Turns the file of an EMQX backend (etc/plugins/emqx_backend_*.conf) into our configuration.

What has no counterpart becomes a comment with the reason, and a line that is not understood is
named: nothing is left out silently. Whether a value or a rule can be carried out is decided by the
same checks as for a written configuration. Pure. Read next: `broker.backends.rules`.
"""

import json
import re
from collections.abc import Iterator
from typing import Any, Final

from broker.backends import rules
from broker.backends.actions import HOOKS
from broker.configuration.backend_options import (
    ACTION_ALIASES,
    CASSANDRA,
    CLUSTER,
    COMMAND_KEYS,
    DYNAMODB,
    MODES,
    ONE_CONNECTION,
    REDIS,
    SINGLE,
    Backend,
    WrittenRule,
)
from broker.configuration.config import Config, ConfigError
from broker.configuration.options import BACKEND_OPTIONS, RULE_OPTIONS

TYPES: Final = {"redis": REDIS, "ecql": CASSANDRA, "cassa": CASSANDRA, "dynamo": DYNAMODB}
# Keys of a pool, with ours.
POOL_KEYS: Final = {
    "server": "servers",
    "nodes": "servers",
    "username": "username",
    "password": "password",
    "keyspace": "keyspace",
    "database": "database",
    "sentinel": "sentinel_name",
    "channel": "channel",
    "aws_access_key_id": "access_key_id",
    "aws_secret_access_key": "secret_access_key",
}
# Keys of the whole file, with those of our backends and rules.
FILE_KEYS: Final = {
    "region": "region",
    "max_returned_count": "max_returned_count",
    "time_range": "time_range",
    "msg.expired_after": "expires",
}
RULE_EXTRAS: Final = {"expired_time": "expires"}
CONNECTIONS: Final = ("size", "pool_size")  # of a pool
CHANNEL: Final = "mqtt_channel"  # theirs, if the key is empty
NOT_NEEDED: Final = {
    "auto_reconnect": "Holdfast always connects again (retry_first, retry_max)",
    "logger": "see log.level",
}
EXACT: Final = (
    "a transaction moves the cursor as well, so they come one by one; with exact = false there may "
    "be several connections"
)
ACTION_KEYS: Final = ("function", *COMMAND_KEYS)

_LINE: Final = re.compile(r"\s*backend\.(\w+)\.([\w.@-]+?)\s*=\s*(.*?)\s*")
_HOOK: Final = re.compile(r"hook\.(\w+\.\w+)\.(\d+)")
_POOL: Final = re.compile(r"([\w@-]+)\.(\w+)")
_ORIGIN: Final = "imported"


class Pool:
    """A pool of connections: what becomes a backend."""

    def __init__(self, type: str, name: str) -> None:
        self.type: Final = type
        self.name: Final = name
        self.values: Final[dict[str, str]] = {}  # by our keys
        self.modes: Final[list[str]] = []
        self.comments: Final[list[str]] = []


class Imported:
    """What a file says, in our words."""

    def __init__(self, text: str) -> None:
        self.unknown: Final[list[str]] = []  # lines that are not understood, with their numbers
        self.skipped: int = 0  # rules that cannot be carried out
        self._pools: Final[dict[tuple[str, str], Pool]] = {}
        self._names: Final[dict[str, str]] = {}  # of our backends, with their pool
        self._file: Final[list[tuple[str, str, str]]] = []  # type, key, value: for all pools
        self._hooks: Final[list[tuple[int, str, int, str, str]]] = []
        self._unusable: Final[dict[str, str]] = {}  # backends that are left out, with the reason
        self._config: Final = Config()
        self._seen: Final[set[tuple[object, ...]]] = set()
        self._rules: Final[list[WrittenRule]] = []  # that are imported
        order: dict[str, int] = {}
        for number, line in enumerate(text.splitlines(), 1):
            if line.strip() and not line.lstrip().startswith("#"):
                self._take(number, line, order)

    def _take(self, number: int, line: str, order: dict[str, int]) -> None:
        found = _LINE.fullmatch(line)
        if found is None or found[1] not in TYPES:
            self.unknown.append(f"line {number}: {line.strip()}")
            return
        type, key, value = TYPES[found[1]], found[2], found[3]
        hook, pool = _HOOK.fullmatch(key), _POOL.fullmatch(key)
        if hook is not None:
            place = order.setdefault(hook[1], len(order))
            self._hooks.append((place, hook[1], int(hook[2]), type, value))
        elif key in FILE_KEYS:
            self._file.append((type, key, value))
        elif pool is None or not self._take_pool(type, pool[1], pool[2], value):
            self.unknown.append(f"line {number}: {line.strip()}")

    def _take_pool(self, type: str, name: str, key: str, value: str) -> bool:
        pool = self._pools.setdefault((type, name), Pool(type, self._name_of(type, name)))
        if key in NOT_NEEDED:
            pool.comments.append(f"{key} = {value} is not needed: {NOT_NEEDED[key]}")
        elif key in CONNECTIONS:
            why = EXACT if type == DYNAMODB else ONE_CONNECTION.get(type)
            if why is None:
                pool.values["connections"] = value
            else:
                pool.comments.append(f"{key} = {value} is not needed: {why}")
        elif key == "type" and type == REDIS:
            pool.modes.append(value)
        elif key == "server" and type == DYNAMODB:
            pool.values["endpoint"] = value
        elif key in POOL_KEYS:
            pool.values[POOL_KEYS[key]] = value
        else:
            return False
        return True

    def _name_of(self, type: str, pool: str) -> str:
        """Return the name of the backend for a pool: theirs, if it is a name for us."""
        if (type, pool) in self._pools:
            return self._pools[type, pool].name
        plain = re.sub(r"[^a-z0-9]+", "_", pool.lower()).strip("_") or type
        name, number = plain, 2
        while name in self._names:
            name, number = f"{plain}_{number}", number + 1
        self._names[name] = pool
        return name

    def lines(self) -> Iterator[str]:
        """Yield the lines of our configuration."""
        for problem in self.unknown:
            yield from _comment(f"not understood, {problem}")
        for pool in self._pools.values():
            yield ""
            yield from self._backend_lines(pool)
        for _, hook, number, type, value in sorted(self._hooks, key=_order_of):
            yield ""
            yield from self._rule_lines(hook, number, type, value)

    # Backends

    def _backend_lines(self, pool: Pool) -> Iterator[str]:
        values: dict[str, Any] = {"type": pool.type}
        comments = list(pool.comments)
        for mode in pool.modes:
            if mode in MODES and mode != SINGLE:
                values["mode"] = mode
            elif mode != "single":
                self._unusable[pool.name] = f"there is no mode {mode!r}"
        for key, value in pool.values.items():
            if key == "channel" and CLUSTER in pool.modes:
                told = f"{key} = {value or CHANNEL}"
                comments.append(f"{told} has no counterpart in a cluster; see stream")
            elif key == "channel":
                values[key] = value or CHANNEL
            elif not value:
                comments.append(f"{key} is empty")
            elif key == "servers":
                values[key] = [_with_port(each.strip(), pool.type) for each in value.split(",")]
            elif key in ("database", "connections") and value.isdecimal():
                values[key] = int(value)
            else:
                values[key] = value
        for type, key, value in self._file:
            if type == pool.type and (key, value) == ("max_returned_count", "infinity"):
                comments.append(f"{key} = {value} is not needed: all come, a page at a time")
            elif type == pool.type:
                values[FILE_KEYS[key]] = _file_value(key, value)
        backend = self._config.backend(pool.name, _ORIGIN)
        kept = [
            line
            for key, value in values.items()
            if (line := self._set(backend, key, value, comments))
        ]
        backend.finish()
        for problem in backend.problems():
            self._unusable.setdefault(pool.name, problem)
        for comment in comments:
            yield from _comment(comment)
        head = f"[backends.{pool.name}]"
        why = self._unusable.get(pool.name)
        if why is None:
            yield from (head, *kept)
            return
        yield from _comment(f"not imported: {why}")
        for line in (head, *kept):
            yield from _comment(line)

    def _set(self, backend: Backend, key: str, value: Any, comments: list[str]) -> str:
        """Set a key of a backend; return its line, "" = it has no counterpart, which is told."""
        option = _BACKEND_KEYS.get(key)
        if option is None or key not in backend.keys():
            comments.append(f"{key} = {_toml(value)} has no counterpart")
            return ""
        if key in ("password", "secret_access_key"):
            comments.append(f"{key}: better in a file of its own, {key}_file")
        try:
            self._config.set(option, value, _ORIGIN, backend)
        except ConfigError as problem:
            comments.append(f"not imported: {problem}")
            return ""
        return f"{key} = {_toml(value)}"

    # Rules

    def _rule_lines(self, hook: str, number: int, type: str, value: str) -> Iterator[str]:
        origin = f"hook.{hook}.{number} = {value}"
        comments: list[str] = []
        try:
            told = json.loads(value)
            values = self._rule_values(hook, type, told, comments)
            self._check(values)
        except (ValueError, RecursionError, ConfigError) as problem:
            self.skipped += 1
            yield from _comment(f"not imported: {problem}")
            yield from _comment(origin)
            return
        for comment in comments:
            yield from _comment(comment)
        yield "[[rules]]"
        for key, each in values.items():
            yield f"{key} = {_toml(each)}"

    def _rule_values(self, hook: str, type: str, told: Any, comments: list[str]) -> dict[str, Any]:
        """Return the keys of a rule. Raises ValueError."""
        if not isinstance(told, dict) or not isinstance(told.get("action"), dict):
            raise ValueError("expected JSON with an action")
        pool = self._pools.get((type, str(told.get("pool"))))
        if pool is None:
            raise ValueError(f"no pool {told.get('pool')!r} of this type in the file")
        values: dict[str, Any] = {"on": hook, "backend": pool.name}
        known = HOOKS.get(hook)
        if known is not None and known.has_topic:
            values["topic"] = told.get("topic", "#")
        elif "topic" in told:
            comments.append(f"topic = {_toml(told['topic'])}: {hook} has no topic")
        for key, value in told["action"].items():
            if key not in ACTION_KEYS:
                raise ValueError(f"an action with {key!r}")
            if key != "function":
                values[key] = value
                continue
            if not isinstance(value, str):
                raise ValueError(f"function = {_toml(value)}: expected a name")
            values["action"] = ACTION_ALIASES.get(value, value)
        extras = {key: value for key, value in told.items() if key not in _TAKEN}
        options = extras.pop("offline_opts", {})
        extras |= options if isinstance(options, dict) else {"offline_opts": options}
        for key, value in extras.items():
            ours = RULE_EXTRAS.get(key, key)
            if ours in _RULE_KEYS:
                values[ours] = _file_value(key, value)
            else:
                comments.append(f"{key} = {_toml(value)} has no counterpart")
        return values

    def _check(self, values: dict[str, Any]) -> None:
        """Raise ConfigError or ValueError if a rule cannot be carried out."""
        why = self._unusable.get(values["backend"])
        if why is not None:
            raise ValueError(f"its backend is not imported: {why}")
        rule = WrittenRule(1, _ORIGIN)
        for key, value in values.items():
            self._config.set(_RULE_KEYS[key], value, _ORIGIN, rule)
        backend = self._config.backend(values["backend"], _ORIGIN)
        for problem in (
            *rule.problems(),
            *rule.type_problems(backend.type),
            *rules.problems(rule, backend.type),
        ):
            raise ValueError(problem.removeprefix(f"{rule.section}."))
        if rule.what() in self._seen:
            raise ValueError("another rule says the same")
        beside = [each for each in self._rules if each.backend == rule.backend]
        why = rules.clash(rule, beside)
        if why is not None:
            raise ValueError(why)
        self._seen.add(rule.what())
        rule.section = f"rules[{len(self._rules) + 1}]"
        self._rules.append(rule)


_BACKEND_KEYS: Final = {option.key: option for option in BACKEND_OPTIONS}
_RULE_KEYS: Final = {option.key: option for option in RULE_OPTIONS}
_TAKEN: Final = frozenset({"topic", "action", "pool"})
_PORTS: Final = {REDIS: 6379, CASSANDRA: 9042}


def _order_of(hook: tuple[int, str, int, str, str]) -> tuple[int, int]:
    return hook[0], hook[2]


def _with_port(server: str, type: str) -> str:
    return server if ":" in server or type not in _PORTS else f"{server}:{_PORTS[type]}"


def _file_value(key: str, value: Any) -> Any:
    """Return a time or a number as we write it: seconds have a unit, no limit is 0."""
    text = str(value)
    if text == "infinity":
        return 0
    if not text.isdecimal():
        return value
    return int(text) if key == "max_returned_count" else f"{text}s"


def _toml(value: Any) -> str:
    """Return a value as TOML."""
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _comment(text: str) -> Iterator[str]:
    for line in text.splitlines() or [""]:
        yield "# " + "".join(letter if letter.isprintable() else "?" for letter in line)

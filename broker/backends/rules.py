"""What the rules of the configuration mean: for the engine, and for the process of each store.

Checks what the configuration cannot know: hooks, actions and own commands. Must open nothing. Read
next: `broker.backends.actions`, the table of hooks and actions.
"""

import difflib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

from broker.backends.actions import ACTIONS, HOOKS, NOT_YET, SESSION_CREATED, Action, Hook
from broker.backends.kafka_rows import topic_problem
from broker.backends.templates import Command, CqlStatement, Statement
from broker.configuration import backend_options
from broker.configuration.backend_options import Backend, WrittenRule
from broker.configuration.config import Config, ConfigError, shown
from broker.configuration.options import BACKEND_OPTIONS
from mqtt.topics import overlap
from session.settings import Feed, Fetching, Proxying
from storage.tables.fetch_rows import PUBSUB, QUEUE, SUBSCRIPTIONS

# Of a backend, and what the process is not told: it is the broker's own business.
_NOT_TOLD: Final = frozenset(
    {
        *("type", "node", "required", "rewind_keep", "backlog_bytes_max", "on_full"),
        *("max_returned_count", "time_range"),
    }
)
# Of Redis: the newest message of a topic is a hash, where others have a sorted set.
KEEPS_LATEST: Final = "on_message_store_keep_latest"
KEEP_LISTS: Final = frozenset(
    {"on_message_publish", "on_message_fetch_for_queue", "on_message_acked_for_queue"}
)
# How own commands are parsed, by the key that they are written with.
PARSERS: Final[dict[str, Callable[[str, str], object]]] = {
    "commands": Command,
    "cql": CqlStatement,
    "statements": Statement,
}


def check(config: Config) -> None:
    """Raise `ConfigError`, one line that names the key, if a rule cannot be carried out."""
    _check_rules(config)
    for backend in config.backends:
        if backend.topic is None:
            continue
        hooks = [str(rule.on) for rule in rules_for(backend, config.rules)]
        expected = topic_problem(backend.topic, hooks)
        if expected is not None:
            place = f"{backend.section}.topic"
            raise ConfigError(
                f"{config.origins[place]}: {place} = {shown(backend.topic)}: expected {expected}"
            )


def _check_rules(config: Config) -> None:
    lookups: dict[str, WrittenRule] = {}
    types = {backend.name: backend.type for backend in config.backends}
    for number, rule in enumerate(config.rules):
        for problem in problems(rule, types[str(rule.backend)]):
            raise ConfigError(f"{rule.origin}: {rule.section}.{problem}")
        before = (each for each in config.rules[:number] if each.backend == rule.backend)
        why = clash(rule, before)
        if why is not None:
            raise ConfigError(f"{rule.origin}: {rule.section}.{why}")
        action = ACTIONS[types[str(rule.backend)]].get(str(rule.action))
        if action is not None and action.fetch == SUBSCRIPTIONS:
            first = lookups.setdefault(str(rule.backend), rule)
            if first is not rule:
                raise ConfigError(
                    f"{rule.origin}: {rule.section}.action = {shown(rule.action)}: expected one "
                    f"rule of a backend with it, there is {first.section}"
                )


def clash(rule: WrittenRule, others: Iterable[WrittenRule]) -> str | None:
    """Return why a rule cannot be beside others of its backend, None if it can.

    The newest message of a topic has the key that a list of messages has.
    """
    for other in others:
        actions = {str(rule.action), str(other.action)}
        if KEEPS_LATEST in actions and actions & KEEP_LISTS:
            if overlap(str(rule.topic), str(other.topic)):
                return (
                    f"action = {shown(rule.action)}: {other.section} has {other.action} for "
                    f"{shown(other.topic)}, and both have the key mqtt:msg:TOPIC, as a hash and as "
                    "a list; expected other topics, or another backend"
                )
    return None


def problems(rule: WrittenRule, type: str) -> Iterator[str]:
    """Yield why a rule cannot be carried out, each one line that begins with the key."""
    hook = HOOKS.get(str(rule.on))
    if hook is None:
        why = NOT_YET.get(str(rule.on))
        expected = why or _one_of(str(rule.on), list(HOOKS))
        yield f"on = {shown(rule.on)}: expected {expected}"
        return
    if hook.has_topic and rule.topic is None:
        yield f"topic is missing: expected a topic filter for {hook.name}, '#' for all topics"
    if not hook.has_topic and rule.topic is not None:
        yield f"topic = {shown(rule.topic)}: {hook.name} has no topic"
    yield from _action_problems(rule, hook, ACTIONS[type])
    key = backend_options.COMMANDS[type] or ""
    for number, text in enumerate(rule.own_commands(), 1):
        try:
            PARSERS[key](text, hook.name)
        except ValueError as problem:
            yield f"{key}, number {number}: {shown(text)}: expected {problem}"
    action = ACTIONS[type].get(str(rule.action))
    is_lookup = action is not None and action.fetch == SUBSCRIPTIONS
    if not is_lookup and (rule.sync != backend_options.ADD or rule.bypass_acl):
        yield "sync and bypass_acl have no meaning where no subscriptions are looked up"
    if not is_lookup and (rule.wait_ms or rule.required):
        yield "wait and required have no meaning where no subscriptions are looked up"
    if rule.expires_s and not _stores_messages(rule, hook):
        yield "expires has no meaning where no message is stored by an action"
    if rule.qos0 and not hook.messages:
        yield f"qos0 has no meaning for {hook.name}: expected message.publish"
    elif rule.qos0 and rule.action is not None:
        yield "qos0 has no meaning with an action: on_message_store is the one for every QoS"
    if rule.max_returned_count or rule.time_range_ms:
        if action is None or action.fetch not in (QUEUE, PUBSUB):
            yield "max_returned_count and time_range have no meaning where no messages are fetched"


def _action_problems(rule: WrittenRule, hook: Hook, actions: dict[str, Action]) -> Iterator[str]:
    if rule.action is None:
        if hook.name == SESSION_CREATED:
            yield f"on = {shown(rule.on)}: expected an action, such as on_subscribe_lookup"
        return
    if not actions:
        yield f"action = {shown(rule.action)}: expected none: the row itself is sent"
        return
    action = actions.get(rule.action)
    here = [each.name for each in actions.values() if hook.name in each.hooks]
    if action is None:
        expected = _one_of(rule.action, here or list(actions))
        yield f"action = {shown(rule.action)}: expected {expected}"
    elif hook.name not in action.hooks:
        yield (
            f"action = {shown(rule.action)}: it is for {action.hooks[0]}; for {hook.name} "
            f"expected {' or '.join(here) or 'own commands'}"
        )


def _stores_messages(rule: WrittenRule, hook: Hook) -> bool:
    return rule.action is not None and hook.messages


def _one_of(word: str, words: list[str]) -> str:
    nearest = difflib.get_close_matches(word, words, 1, 0.6)
    hint = f"; did you mean {nearest[0]}?" if nearest else ""
    return f"one of {', '.join(words)}{hint}"


def feeds_of(config: Config) -> tuple[Feed, ...]:
    """Return what the engine must tell each backend that is used. Call `check` first."""
    feeds = []
    for backend in config.backends:
        filters: dict[str, None] = {}
        qos0: dict[str, None] = {}
        kinds = 0
        fetches = []
        # What tells of changes by itself need not be asked.
        proxying = Proxying("never") if backend.channel or backend.stream else None
        rules = rules_for(backend, config.rules)
        for rule in rules:
            needs = _needs(rule, backend.type)
            if needs.messages:
                filters[str(rule.topic)] = None
            if _takes_qos0(rule, backend.type):
                qos0[str(rule.topic)] = None
            for kind in needs.kinds:
                kinds |= 1 << kind
            if isinstance(needs, Action) and needs.fetch == SUBSCRIPTIONS:
                proxying = _proxying(rule)
            elif isinstance(needs, Action) and needs.fetch:
                fetches.append(_fetching(rule, backend, needs.fetch))
        if is_used(backend, config.rules):
            # A store that keeps no cursor cannot say that it has lost rows.
            keep_ms = backend.rewind_keep_ms if backend.has_cursor() else 0
            feeds.append(
                Feed(
                    backend.name,
                    tuple(filters),
                    kinds,
                    keep_ms,
                    tuple(fetches),
                    backend.backlog_bytes_max,
                    "reject" if backend.on_full == backend_options.REJECT else "drop_oldest",
                    proxying,
                    tuple(qos0),
                    any(_names_publisher(rule) for rule in rules),
                )
            )
    return tuple(feeds)


def _proxying(rule: WrittenRule) -> Proxying:
    return Proxying(
        "new" if rule.on == SESSION_CREATED else "always",
        mirrors=rule.sync == backend_options.MIRROR,
        bypasses_policy=rule.bypass_acl,
        wait_ms=rule.wait_ms,
        is_required=rule.required,
    )


def _fetching(rule: WrittenRule, backend: Backend, kind: int) -> Fetching:
    return Fetching(
        kind,
        str(rule.topic),
        rule.max_returned_count or backend.max_returned_count,
        rule.time_range_ms or backend.time_range_ms,
    )


def _names_publisher(rule: WrittenRule) -> bool:
    """Return whether a rule says which user has published a message."""
    if not HOOKS[str(rule.on)].messages or rule.action is not None:
        return False
    own = rule.own_commands()
    return not own or any("${username}" in text for text in own)  # a row as a whole has it


def _needs(rule: WrittenRule, type: str) -> Action | Hook:
    """Return who says what a rule must be told of: its action, or for commands its hook."""
    return HOOKS[str(rule.on)] if rule.action is None else ACTIONS[type][rule.action]


def _takes_qos0(rule: WrittenRule, type: str) -> bool:
    """Return whether a rule is told of messages with QoS 0, too."""
    return rule.qos0 if rule.action is None else ACTIONS[type][rule.action].qos0


def is_used(backend: Backend, rules: Sequence[WrittenRule]) -> bool:
    """Return whether a backend is told or asked anything, or tells something itself."""
    return bool(rules_for(backend, rules) or backend.channel or backend.stream)


def rules_for(backend: Backend, rules: Sequence[WrittenRule]) -> list[WrittenRule]:
    """Return the rules of a backend."""
    return [rule for rule in rules if rule.backend == backend.name]


def configurations(config: Config, node: str) -> dict[str, dict[str, Any]]:
    """Return what the process of each backend that is used is told, as JSON, by its name.

    `node` is the name of this broker for backends that do not give it another one.
    """
    return {
        backend.name: configuration(config, backend, node)
        for backend in config.backends
        if is_used(backend, config.rules)
    }


def configuration(config: Config, backend: Backend, node: str) -> dict[str, Any]:
    """Return what the process of a backend is told, all but the instance."""
    return {
        "name": backend.name,
        "node": backend.node or node,
        "type": backend.type,
        "options": {
            option.attribute: getattr(backend, option.attribute)
            for option in BACKEND_OPTIONS
            if option.key in backend.keys() and option.key not in _NOT_TOLD
        },
        "rules": [_as_object(rule, backend) for rule in rules_for(backend, config.rules)],
    }


def _as_object(rule: WrittenRule, backend: Backend) -> dict[str, Any]:
    told: dict[str, Any] = {"number": rule.number, "on": rule.on, "topic": rule.topic}
    if rule.action is not None:
        told["action"] = rule.action
        told["expires_s"] = rule.expires_s or backend.expires_s
    else:
        told["commands"] = list(rule.own_commands())
    if _takes_qos0(rule, backend.type):
        told["qos0"] = True
    return told

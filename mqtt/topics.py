"""Topic names and topic filters: syntax and matching, sections 4.7 and 4.8.2.

Must never recurse, and must never turn a client's string into a pattern of another language, such
as a regular expression: levels are compared literally, character by character [MQTT-4.7.3-4].
Indexes over many filters must agree with `matches`. Read next: `session.routing.router`.
"""

from typing import Final

SHARE_PREFIX: Final = "$share/"
SIZE_MAX: Final = 65_535  # bytes of UTF-8, section 1.5.4
_SHOWN_MAX: Final = 60  # characters of a topic in a message


def topic_problem(topic: str) -> str | None:
    """Return why `topic` is not a valid topic name, None if it is valid."""
    if "#" in topic or "+" in topic:
        return f"topic {_shown(topic)}: wildcards are for filters only"  # [MQTT-4.7.1-1]
    problem = _string_problem(topic)
    return None if problem is None else f"topic {_shown(topic)}: {problem}"


def filter_problem(topic_filter: str) -> str | None:
    """Return why `topic_filter` is not a valid filter, shared or not, None if it is valid."""
    problem = _string_problem(topic_filter)
    if problem is None and topic_filter.startswith(SHARE_PREFIX):
        problem = _share_problem(topic_filter)
    if problem is None and ("#" in topic_filter or "+" in topic_filter):
        problem = _wildcard_problem(topic_filter)
    return None if problem is None else f"topic filter {_shown(topic_filter)}: {problem}"


def split_shared(topic_filter: str) -> tuple[str, str] | None:
    """Split `$share/NAME/FILTER` into (NAME, FILTER); return None for a filter that is not shared.

    Also returns None for a `$share/` filter without name or filter, which is not valid
    [MQTT-4.8.2-1, MQTT-4.8.2-2]: call `filter_problem` first.
    """
    if not topic_filter.startswith(SHARE_PREFIX):
        return None
    name, slash, rest = topic_filter[len(SHARE_PREFIX) :].partition("/")
    if not name or not slash or not rest:
        return None
    return name, rest


def matches(topic_filter: str, topic: str) -> bool:
    """Return whether a valid, not shared `topic_filter` matches the valid topic name `topic`.

    A filter that starts with a wildcard matches no topic that starts with `$` [MQTT-4.7.2-1].
    """
    if "#" not in topic_filter and "+" not in topic_filter:
        return topic_filter == topic
    if topic[:1] == "$" and topic_filter[0] in "+#":
        return False
    levels = topic.split("/")
    wanted = topic_filter.split("/")
    if wanted[-1] == "#":  # the parent and any number of levels below it [MQTT-4.7.1-2]
        wanted.pop()
        if len(levels) < len(wanted):
            return False
    elif len(levels) != len(wanted):
        return False
    for index, level in enumerate(wanted):
        if level != "+" and level != levels[index]:
            return False
    return True


def overlap(one: str, other: str) -> bool:
    """Return whether there is a topic name that both valid, not shared topic filters match."""
    for hidden, wild in ((one, other), (other, one)):
        if hidden[:1] == "$" and wild[0] in "+#":
            return False
    first, second = one.split("/"), other.split("/")
    for left, right in zip(first, second, strict=False):
        if left == "#" or right == "#":
            return True
        if left != right and left != "+" and right != "+":
            return False
    longer = first if len(first) > len(second) else second
    rest = longer[min(len(first), len(second)) :]
    return not rest or rest == ["#"]


def levels_count(topic_or_filter: str) -> int:
    """Return the number of levels, empty ones included [section 4.7.1.1]."""
    return topic_or_filter.count("/") + 1


def _string_problem(value: str) -> str | None:
    if not value:
        return "must be at least one character long"  # [MQTT-4.7.3-1]
    if "\0" in value:
        return "must not hold U+0000"  # [MQTT-4.7.3-2]
    try:
        size = len(value) if value.isascii() else len(value.encode())
    except UnicodeEncodeError:
        return "must not hold surrogate code points"  # [MQTT-1.5.4-1]
    if size > SIZE_MAX:
        return f"{size} bytes, expected at most {SIZE_MAX}"  # [MQTT-4.7.3-3]
    return None


def _share_problem(topic_filter: str) -> str | None:
    name, slash, rest = topic_filter[len(SHARE_PREFIX) :].partition("/")
    if not name:
        return "the share name must be at least one character long"  # [MQTT-4.8.2-1]
    if "+" in name or "#" in name:
        return f"the share name {_shown(name)} must not hold wildcards"  # [MQTT-4.8.2-2]
    if not slash or not rest:
        return "a share name must be followed by '/' and a topic filter"  # [MQTT-4.8.2-2]
    return None


def _wildcard_problem(topic_filter: str) -> str | None:
    levels = topic_filter.split("/")
    last = len(levels) - 1
    for index, level in enumerate(levels):
        if "#" in level:
            if level != "#":
                return "'#' must be a whole level"  # [MQTT-4.7.1-2]
            if index != last:
                return "'#' must be last"  # [MQTT-4.7.1-2]
        elif "+" in level and level != "+":
            return "'+' must be a whole level"  # [MQTT-4.7.1-3]
    return None


def _shown(value: str) -> str:
    """Return `value` quoted for a message and cut: a peer chose it, it may be 64 KiB."""
    if len(value) <= _SHOWN_MAX:
        return repr(value)
    return f"{value[:_SHOWN_MAX]!r}... ({len(value)} characters)"

"""Own commands of a rule: text with `${name}` in it, filled for each row.

A command is cut into tokens first, at spaces, with quotes where a token has spaces; then the names
are replaced. So a token stays one argument whatever a client has sent. In a statement of a store
that binds values the names are what is bound. Pure. Read next:
`broker.backends.actions` (which names a hook has).
"""

import json
import re
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

from broker.backends.actions import DOTTED, HOOKS

# Returns the value of a parameter for a row, b"" if the row has none.
Lookup: TypeAlias = Callable[[str], bytes]

_NAME: Final = re.compile(r"\$\{([^${}]*)\}")
_TOKEN: Final = re.compile(r"""\s*(?:"((?:[^"\\]|\\.)*)"|'([^']*)'|(\S+))""")
# Of a statement: a string or a quoted name; a name of ours; any other character.
_PIECE: Final = re.compile(r"""('(?:[^']|'')*'|"(?:[^"]|"")*")|\$\{([^${}]*)\}|(.)""", re.DOTALL)
_WORD: Final = re.compile(r"[A-Za-z]+")
CQL_VERBS: Final = ("INSERT", "UPDATE", "DELETE")  # of what there is, what changes rows
_SPACE_OR_END: Final = re.compile(r"\s|$")
# Would change the connection, block it, or end the batch that they are part of.
REFUSED: Final[Mapping[str, str]] = {
    **dict.fromkeys(
        ("MULTI", "EXEC", "DISCARD", "WATCH", "UNWATCH"), "rows are applied in a script already"
    ),
    **dict.fromkeys(
        (
            "SUBSCRIBE",
            "PSUBSCRIBE",
            "SSUBSCRIBE",
            "UNSUBSCRIBE",
            "PUNSUBSCRIBE",
            "SUNSUBSCRIBE",
            "MONITOR",
            "SYNC",
            "PSYNC",
        ),
        "a script cannot wait for messages",
    ),
    **dict.fromkeys(
        (
            "BLPOP",
            "BRPOP",
            "BRPOPLPUSH",
            "BLMOVE",
            "BLMPOP",
            "BZPOPMIN",
            "BZPOPMAX",
            "BZMPOP",
            "WAIT",
            "WAITAOF",
        ),
        "it would block the server",
    ),
    **dict.fromkeys(
        ("SELECT", "AUTH", "HELLO", "QUIT", "RESET", "CLIENT", "READONLY", "READWRITE", "ASKING"),
        "the connection belongs to the backend",
    ),
    **dict.fromkeys(
        (
            "SHUTDOWN",
            "DEBUG",
            "CONFIG",
            "REPLICAOF",
            "SLAVEOF",
            "FAILOVER",
            "CLUSTER",
            "ACL",
            "MODULE",
            "SAVE",
            "BGSAVE",
            "BGREWRITEAOF",
            "FLUSHALL",
            "FLUSHDB",
            "SWAPDB",
            "MIGRATE",
        ),
        "it is not for rows",
    ),
    **dict.fromkeys(
        ("EVAL", "EVALSHA", "EVAL_RO", "EVALSHA_RO", "FCALL", "FCALL_RO", "SCRIPT", "FUNCTION"),
        "a script cannot call another one",
    ),
}


class Template:
    """One argument: text and names in turn."""

    __slots__ = ("names", "texts")

    def __init__(self, token: str) -> None:
        parts = _NAME.split(token)
        self.texts: Final = [part.encode() for part in parts[::2]]
        self.names: Final = parts[1::2]

    def fill(self, value_of: Lookup) -> bytes:
        """Return the argument for a row."""
        if not self.names:
            return self.texts[0]
        pieces = [self.texts[0]]
        for name, text in zip(self.names, self.texts[1:], strict=True):
            pieces += (value_of(name), text)
        return b"".join(pieces)


class Command:
    """One own command."""

    __slots__ = ("arguments",)

    def __init__(self, text: str, hook: str) -> None:
        """Parse a command for a hook. Raises ValueError that says what was expected."""
        tokens = split(text)
        if not tokens:
            raise ValueError("a command, for example 'HSET mqtt:seen ${clientid} ${timestamp}'")
        if "${" in tokens[0]:
            raise ValueError(f"the name of a command first, not {tokens[0]!r}")
        why = REFUSED.get(tokens[0].upper())
        if why is not None:
            raise ValueError(f"another command than {tokens[0].upper()}: {why}")
        self.arguments: Final = [Template(token) for token in tokens]
        for token, argument in zip(tokens, self.arguments, strict=True):
            if "${" in _NAME.sub("", token):
                raise ValueError(f"names written as ${{name}}, not {token!r}")
            for name in argument.names:
                check_name(name, hook)

    def fill(self, value_of: Lookup) -> list[bytes]:
        """Return the command's arguments for a row."""
        return [argument.fill(value_of) for argument in self.arguments]


class Statement:
    """One own statement of a store that binds values: `${name}` becomes `?`, never text."""

    __slots__ = ("names", "text")

    def __init__(self, text: str, hook: str) -> None:
        """Parse a statement for a hook. Raises ValueError that says what was expected."""
        text = text.strip().removesuffix(";").rstrip()
        if not text:
            raise ValueError("a statement")
        pieces: list[str] = []
        names: list[str] = []
        for found in _PIECE.finditer(text):
            quoted, name, other = found.groups()
            if name is not None:
                check_name(name, hook)
                names.append(name)
                pieces.append("?")
                continue
            piece = quoted if quoted is not None else other
            if "${" in piece or piece == "$":
                raise ValueError(f"names written as ${{name}}, without quotes: not {piece!r}")
            if piece == "?":
                raise ValueError("${name} in place of '?'")
            pieces.append(piece)
        self.text: Final = "".join(pieces)
        self.names: Final = names  # of the values to bind, in their order


class CqlStatement(Statement):
    """One own statement of Cassandra, which changes rows of one table."""

    __slots__ = ()

    def __init__(self, text: str, hook: str) -> None:
        """Parse a statement for a hook. Raises ValueError that says what was expected."""
        super().__init__(text, hook)
        verb = (_WORD.match(self.text) or [""])[0].upper()
        if verb not in CQL_VERBS:
            raise ValueError(f"a statement that begins with {', '.join(CQL_VERBS)}")
        if any(found[3] == ";" for found in _PIECE.finditer(self.text)):
            raise ValueError("one statement, without ';' in it")


def split(text: str) -> list[str]:
    """Cut a command into tokens at spaces; `"..."` and `'...'` keep theirs. Raises ValueError."""
    tokens: list[str] = []
    at = 0
    text = text.strip()
    while at < len(text):
        found = _TOKEN.match(text, at)
        assert found is not None
        double, single, plain = found.groups()
        at = found.end()
        if plain is not None and plain[0] in "\"'":
            raise ValueError(f"a closing quote after {plain}")
        if plain is None and not _SPACE_OR_END.match(text, at):
            raise ValueError(f"a space after the quote before {text[at : at + 20]!r}")
        if double is not None:
            double = re.sub(r"\\(.)", r"\1", double)
        tokens.append(next(each for each in (double, single, plain) if each is not None))
    return tokens


def check_name(name: str, hook: str) -> None:
    """Raise ValueError, which lists the names there are, if a hook does not have this one."""
    known = HOOKS[hook].parameters
    first, dot, rest = name.partition(".")
    if name in known or (dot and rest and first in DOTTED and "payload" in known):
        return
    names = [*known, *(f"{each}.NAME" for each in DOTTED if "payload" in known)]
    raise ValueError(
        f"for {hook} one of {', '.join('${' + each + '}' for each in names)}, not ${{{name}}}"
    )


def payload_value(payload: bytes, path: str) -> object:
    """Return a field of a JSON payload, "" if there is none."""
    try:
        value: Any = json.loads(payload)
        for part in path.split("."):
            value = value[int(part)] if isinstance(value, list) else value[part]
    except (ValueError, KeyError, IndexError, TypeError, RecursionError):
        return ""
    found: object = value
    return found


def payload_field(payload: bytes, path: str) -> bytes:
    """Return a field of a JSON payload as text, b"" if there is none; objects come as JSON."""
    return as_text(payload_value(payload, path)).encode()


def as_text(value: object) -> str:
    """Return a value of JSON as text; what is none becomes JSON.

    Half of a surrogate pair, which UTF-8 does not have, becomes `?`.
    """
    if not isinstance(value, str):
        value = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return value.encode("utf-8", "replace").decode()

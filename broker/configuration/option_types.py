"""Values with units as people write them: "64MiB", "7d", "200ms", "interval:100".

Must never guess: a duration without a unit is an error, except 0. Every `parse` takes a value of
TOML or of the environment and raises ValueError with what was expected;
`broker.configuration.config` adds the key and the value.
"""

import re
from collections.abc import Callable, Mapping
from typing import Final, Protocol, TypeAlias
from urllib.parse import SplitResult, urlsplit

# What a parsed option may be; wide, because one table holds all kinds.
Setting: TypeAlias = str | int | bool | tuple[tuple[str, str], ...] | tuple[str, ...] | None

SIZE_UNITS: Final = {
    "b": 1,
    "kib": 1 << 10,
    "mib": 1 << 20,
    "gib": 1 << 30,
    "tib": 1 << 40,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
}
DURATION_UNITS_MS: Final = {
    "ms": 1,
    "s": 1000,
    "m": 60_000,
    "min": 60_000,
    "h": 3_600_000,
    "d": 86_400_000,
    "w": 604_800_000,
}
FILE_MODE: Final = re.compile(r"0?[0-7]{3}")
# As browsers write it: lower case, no path, the port only where it is not the scheme's own.
ORIGIN: Final = re.compile(r"[a-z][a-z0-9+.-]*://[a-z0-9.:_\[\]-]+")
EXACT_ORIGIN: Final = re.compile(
    r"https?://(?:[a-z0-9_-]+(?:\.[a-z0-9_-]+)*|\[[0-9a-f:.]+\])(?::[0-9]{1,5})?"
)
# A name, an IPv4 address, or an IPv6 address in brackets; and the port.
SERVER: Final = re.compile(r"(?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]):([0-9]{1,5})")
# As HTTP has them; text beyond ASCII does not survive every server.
HEADER_NAME: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,256}")
HEADER_VALUE: Final = re.compile(r"[\t -~]{0,8192}")
# Of a request that rows are sent with.
OWN_HEADERS: Final = frozenset(
    {
        "connection", "content-encoding", "content-length", "content-type", "host",
        "idempotency-key", "transfer-encoding", "user-agent",
    }
)  # fmt: skip
URL_BYTES_MAX: Final = 4096
NUMBER_AND_UNIT: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)")
TRUE_WORDS: Final = frozenset({"true", "yes", "on", "1"})
FALSE_WORDS: Final = frozenset({"false", "no", "off", "0"})
NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.]{0,63}")
DETAILS: Final = ("off", "sessions", "books", "full")
SAMPLE_MAX: Final = 1_000_000
SECRET_SHOWN: Final = "(not shown)"
TEXT_BYTES_MAX: Final = 65_535  # a field of a packet holds no more


class Kind(Protocol):
    """How one option is read and written."""

    def parse(self, raw: object) -> Setting:
        """Return the value that `raw` (a TOML value, or text) means, or raise ValueError."""
        ...

    def render(self, value: Setting) -> str:
        """Return `value` as TOML that `parse` reads back."""
        ...


def quote(text: str) -> str:
    """Return `text` as a TOML basic string."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + "".join(c if c.isprintable() else f"\\U{ord(c):08x}" for c in escaped) + '"'


def _fits(text: str) -> bool:
    """Can `text` be a field of a packet? Undecodable bytes of the environment cannot."""
    return len(text.encode("utf-8", "surrogatepass")) <= TEXT_BYTES_MAX and not any(
        "\ud800" <= character <= "\udfff" for character in text
    )


class Text:
    """Any text; `empty_is_none` lets "" stand for "not set" (TOML has no null).

    `aliases` are other spellings, with the text that each stands for.
    """

    def __init__(
        self,
        *,
        empty_is_none: bool = False,
        expected: str = "a string",
        aliases: Mapping[str, str] | None = None,
    ) -> None:
        self._empty_is_none = empty_is_none
        self._expected = expected
        self._aliases = aliases or {}

    def parse(self, raw: object) -> Setting:
        """Return the text."""
        if not isinstance(raw, str) or "\0" in raw:
            raise ValueError(self._expected)
        if raw == "" and not self._empty_is_none:
            raise ValueError(f"{self._expected} that is not empty")
        if not _fits(raw):
            raise ValueError(f"{self._expected} of UTF-8, at most {TEXT_BYTES_MAX} bytes")
        return self._aliases.get(raw, raw) or None

    def render(self, value: Setting) -> str:
        """Return the text quoted."""
        return quote("" if value is None else str(value))


class Secret:
    """Text that is never shown again; "" is "not set"."""

    def parse(self, raw: object) -> Setting:
        """Return the text; what `render` shows in its place is not taken for it."""
        if not isinstance(raw, str) or "\0" in raw or not _fits(raw):
            raise ValueError("a string")
        if raw == SECRET_SHOWN:
            raise ValueError("the secret itself, not what is shown in its place")
        return raw

    def render(self, value: Setting) -> str:
        """Return "" or a placeholder, quoted."""
        return quote(SECRET_SHOWN if value else "")


class Matching:
    """Text of a pattern; `empty_is_none` as for `Text`."""

    def __init__(self, pattern: str, expected: str, *, empty_is_none: bool = False) -> None:
        self._pattern = re.compile(pattern)
        self._expected = expected
        self._empty_is_none = empty_is_none

    def parse(self, raw: object) -> Setting:
        """Return the text."""
        if raw == "" and self._empty_is_none:
            return None
        if not isinstance(raw, str) or self._pattern.fullmatch(raw) is None or not _fits(raw):
            raise ValueError(self._expected)
        return raw

    def render(self, value: Setting) -> str:
        """Return the text quoted."""
        return quote("" if value is None else str(value))


class Name:
    """Letters, digits, `_` and `.`, at most 64; `empty_is_none` as for `Text`."""

    def __init__(self, *, empty_is_none: bool = False) -> None:
        self._empty_is_none = empty_is_none

    def parse(self, raw: object) -> Setting:
        """Return the name."""
        if raw == "" and self._empty_is_none:
            return None
        if not isinstance(raw, str) or NAME.fullmatch(raw) is None:
            raise ValueError(
                "1 to 64 letters, digits, '_' and '.', the first one a letter or digit"
            )
        return raw

    def render(self, value: Setting) -> str:
        """Return the name quoted."""
        return quote("" if value is None else str(value))


class Detail:
    """How much of the history is recorded: a word, or `sampled:1/N`."""

    def parse(self, raw: object) -> Setting:
        """Return the level in its one spelling."""
        if isinstance(raw, str):
            if raw in DETAILS:
                return raw
            divisor = raw.removeprefix("sampled:1/")
            if divisor != raw and divisor.isascii() and divisor.isdecimal() and len(divisor) < 8:
                if 1 <= int(divisor) <= SAMPLE_MAX:
                    return f"sampled:1/{int(divisor)}"
        raise ValueError(f"one of {', '.join(DETAILS)}, or 'sampled:1/N' with N to {SAMPLE_MAX}")

    def render(self, value: Setting) -> str:
        """Return the level quoted."""
        return quote(str(value))


class Choice:
    """One of a few words."""

    def __init__(self, *words: str) -> None:
        self._words = words

    def parse(self, raw: object) -> Setting:
        """Return the word."""
        if not isinstance(raw, str) or raw not in self._words:
            raise ValueError("one of " + ", ".join(self._words))
        return raw

    def render(self, value: Setting) -> str:
        """Return the word quoted."""
        return quote(str(value))


class Flag:
    """true or false; the environment may also say yes/no, on/off, 1/0."""

    def parse(self, raw: object) -> Setting:
        """Return the truth."""
        if isinstance(raw, bool):
            return raw
        if isinstance(raw, str) and raw.lower() in TRUE_WORDS:
            return True
        if isinstance(raw, str) and raw.lower() in FALSE_WORDS:
            return False
        raise ValueError("true or false")

    def render(self, value: Setting) -> str:
        """Return TOML's true or false."""
        return "true" if value else "false"


class FileMode:
    """The permissions of a file in octal: "0660"."""

    def parse(self, raw: object) -> Setting:
        """Return the permission bits; a TOML number is refused (is 660 decimal or octal?)."""
        if not isinstance(raw, str) or FILE_MODE.fullmatch(raw) is None:
            raise ValueError("permissions in octal such as '0660'")
        return int(raw, 8)

    def render(self, value: Setting) -> str:
        """Return the permissions quoted."""
        assert isinstance(value, int)
        return quote(f"{value:04o}")


class Integer:
    """A whole number in a range (both ends included)."""

    def __init__(self, low: int, high: int | None = None) -> None:
        self._low = low
        self._high = high
        limits = f"{low} or more" if high is None else f"{low} to {high}"
        self._expected = f"a whole number, {limits}"

    def parse(self, raw: object) -> Setting:
        """Return the number."""
        if isinstance(raw, str) and raw.isascii() and raw.isdecimal() and len(raw) < 20:
            raw = int(raw)
        if not isinstance(raw, int) or isinstance(raw, bool):
            raise ValueError(self._expected)
        if raw < self._low or (self._high is not None and raw > self._high):
            raise ValueError(self._expected)
        return raw

    def render(self, value: Setting) -> str:
        """Return the number."""
        return str(value)


class Size:
    """A number of bytes: 65536, "64KiB", "1.5GB".

    `auto` names a word for "you choose" whose value is None, where an option has one.
    """

    def __init__(self, low: int = 0, high: int | None = None, *, auto: str = "") -> None:
        self._low = low
        self._high = high
        self._auto = auto
        self._expected = "a size such as '64MiB' or a number of bytes"
        if auto:
            self._expected += f", or '{auto}'"
        if high is not None:
            self._expected += f", {low} to {high} bytes"
        elif low:
            self._expected += f", at least {_largest_unit(low, _SIZE_RENDER)}"

    def parse(self, raw: object) -> Setting:
        """Return the bytes, None for "you choose"."""
        if self._auto and raw == self._auto:
            return None
        if isinstance(raw, str):
            size = _scaled(raw, SIZE_UNITS, unit_needed=False)
        else:
            size = raw if isinstance(raw, int) and not isinstance(raw, bool) else None
        if size is None or size < self._low or (self._high is not None and size > self._high):
            raise ValueError(self._expected)
        return size

    def render(self, value: Setting) -> str:
        """Return the size in the largest binary unit that divides it."""
        if value is None:
            return quote(self._auto)
        assert isinstance(value, int)
        return str(value) if value < 1024 else quote(_largest_unit(value, _SIZE_RENDER))


class Duration:
    """A time span with its unit, held as whole milliseconds or whole seconds.

    `never` names a word for "no limit" whose value is None, where an option has one.
    """

    def __init__(
        self,
        unit_ms: int,
        *,
        low: int = 0,
        high: int | None = None,
        never: str = "",
    ) -> None:
        assert unit_ms in (1, 1000)
        self._unit_ms = unit_ms
        self._low = low
        self._high = high
        self._never = never
        self._expected = "a duration such as '200ms', '30s' or '7d'"
        if unit_ms == 1000:
            self._expected = "a duration in whole seconds such as '30s' or '7d'"
        if never:
            self._expected += f", or '{never}'"
        if low or high is not None:
            limits = f" from {_largest_unit(low * unit_ms, _DURATION_RENDER)}"
            if high is not None:
                limits += f" to {_largest_unit(high * unit_ms, _DURATION_RENDER)}"
            self._expected += "," + limits

    def parse(self, raw: object) -> Setting:
        """Return the span in the option's own unit, None for never."""
        if self._never and raw == self._never:
            return None
        total_ms: int | None = None
        if raw == 0 and not isinstance(raw, bool):
            total_ms = 0
        elif isinstance(raw, str):
            total_ms = _scaled(raw, DURATION_UNITS_MS, unit_needed=True)
        if total_ms is None or total_ms % self._unit_ms:
            raise ValueError(self._expected)
        span = total_ms // self._unit_ms
        if span < self._low or (self._high is not None and span > self._high):
            raise ValueError(self._expected)
        return span

    def render(self, value: Setting) -> str:
        """Return the span in the largest unit that divides it."""
        if value is None:
            return quote(self._never)
        assert isinstance(value, int)
        return quote(_largest_unit(value * self._unit_ms, _DURATION_RENDER)) if value else "0"


class Durability:
    """`fsync`, `os`, or `interval:MS` (the milliseconds between background syncs)."""

    def parse(self, raw: object) -> Setting:
        """Return the mode, an interval always as plain milliseconds."""
        if raw == "fsync" or raw == "os":
            assert isinstance(raw, str)
            return raw
        if isinstance(raw, str) and raw.startswith("interval:"):
            span = raw.removeprefix("interval:").strip()
            period = _scaled(span, DURATION_UNITS_MS, unit_needed=not span.isdecimal())
            if period is not None and 1 <= period <= 60_000:
                return f"interval:{period}"
        raise ValueError("'fsync', 'os' or 'interval:MS' with 1 to 60000 milliseconds")

    def render(self, value: Setting) -> str:
        """Return the mode quoted."""
        return quote(str(value))


class Pairs:
    """A list of "name=value" texts, from the environment separated by commas."""

    def parse(self, raw: object) -> Setting:
        """Return the (name, value) pairs in their order."""
        items = raw.split(",") if isinstance(raw, str) and raw else raw or []
        if not isinstance(items, list):
            raise ValueError('a list of "name=value" strings')
        pairs: list[tuple[str, str]] = []
        for item in items:
            if not isinstance(item, str) or "=" not in item or "\0" in item:
                raise ValueError('a list of "name=value" strings')
            name, _, value = item.partition("=")
            if not _fits(name) or not _fits(value):
                raise ValueError(f"names and values of UTF-8, at most {TEXT_BYTES_MAX} bytes each")
            pairs.append((name.strip(), value.strip()))
        return tuple(pairs)

    def render(self, value: Setting) -> str:
        """Return the TOML array."""
        assert isinstance(value, tuple)
        pairs = [pair for pair in value if isinstance(pair, tuple)]
        return "[" + ", ".join(quote(f"{name}={text}") for name, text in pairs) + "]"


class Headers:
    """A table of HTTP headers; from the environment "name=value" separated by commas.

    Their values are never shown: there may be secrets among them.
    """

    _expected = "a table of header names and values such as { x-place = 'dock' }"

    def parse(self, raw: object) -> Setting:
        """Return the (name, value) pairs in their order."""
        items = raw
        if isinstance(raw, str):
            items = dict(item.partition("=")[::2] for item in raw.split(",")) if raw else {}
        if not isinstance(items, dict):
            raise ValueError(self._expected)
        pairs: list[tuple[str, str]] = []
        for name, value in items.items():
            if not isinstance(value, str):
                raise ValueError(self._expected)
            name, value = name.strip(), value.strip()
            if HEADER_NAME.fullmatch(name) is None or HEADER_VALUE.fullmatch(value) is None:
                raise ValueError(self._expected)
            if value == SECRET_SHOWN:
                raise ValueError("the header itself, not what is shown in its place")
            if name.lower() in OWN_HEADERS or name.lower().startswith("webhook-"):
                raise ValueError(f"other headers than {name}, which the broker sets")
            pairs.append((name, value))
        return tuple(pairs)

    def render(self, value: Setting) -> str:
        """Return a TOML table with the names, and a placeholder for each value."""
        assert isinstance(value, tuple)
        names = [pair[0] for pair in value]
        return (
            "{ " + ", ".join(f"{quote(name)} = {quote(SECRET_SHOWN)}" for name in names) + " }"
            if names
            else "{}"
        )


class Url:
    """An http or https URL; empty means "not set"."""

    def parse(self, raw: object) -> Setting:
        """Return the URL."""
        if not isinstance(raw, str):
            raise ValueError("a URL such as https://host/path")
        if raw:
            split_url(raw)
        return raw or None

    def render(self, value: Setting) -> str:
        """Return the URL, quoted."""
        return quote(str(value or ""))


def split_url(text: str) -> SplitResult:
    """Return the parts of an http or https URL. Raises ValueError that says what was expected."""
    if not (text.isascii() and text.isprintable()) or " " in text or len(text) > URL_BYTES_MAX:
        raise ValueError(f"a URL of at most {URL_BYTES_MAX} ASCII characters, without spaces")
    try:
        parts = urlsplit(text)
        is_valid = bool(parts.hostname) and parts.port != 0
        (parts.hostname or "").encode("idna")
    except ValueError:
        is_valid = False
    if not is_valid or parts.scheme not in ("http", "https"):
        raise ValueError("a URL such as https://host/path")
    if "@" in parts.netloc or parts.fragment:
        raise ValueError("a URL without user and fragment; there are username and password")
    return parts


class Origins:
    """A list of web origins, "*" = any; from the environment separated by commas."""

    _expected = "a list of origins such as 'https://example.org:8443', lower case, without a path"

    def __init__(self, *, exact: bool = False) -> None:
        """`exact`: neither "*" nor "null"."""
        self._is_valid: Final = _is_exact_origin if exact else _is_origin

    def parse(self, raw: object) -> Setting:
        """Return the origins in their order."""
        return _items(raw, self._is_valid, self._expected)

    def render(self, value: Setting) -> str:
        """Return the TOML array."""
        return _array(value)


class Networks:
    """A list of addresses and networks; from the environment separated by commas."""

    _expected = "a list of addresses or networks such as ['127.0.0.1', '10.0.0.0/8']"

    def parse(self, raw: object) -> Setting:
        """Return the networks in their order."""
        return _items(raw, _is_network, self._expected)

    def render(self, value: Setting) -> str:
        """Return the TOML array."""
        return _array(value)


class Servers:
    """A list of host:port, or one of them; from the environment separated by commas."""

    _expected = "host:port, or a list of them such as ['10.0.0.1:6379']"

    def parse(self, raw: object) -> Setting:
        """Return the servers in their order."""
        return _items(raw, _is_server, self._expected)

    def render(self, value: Setting) -> str:
        """Return the TOML array."""
        return _array(value)


class Names:
    """A list of names, or one of them; from the environment separated by commas."""

    _expected = "a list of names such as ['n1', 'n2'], of letters, digits, '_' and '.'"

    def parse(self, raw: object) -> Setting:
        """Return the names in their order."""
        return _items(raw, lambda item: NAME.fullmatch(item) is not None, self._expected)

    def render(self, value: Setting) -> str:
        """Return the TOML array."""
        return _array(value)


class Address:
    """One host:port to listen on, port 0 = any free one; `empty_is_none` as for `Text`."""

    _expected = "host:port such as '127.0.0.1:8080'"

    def __init__(self, *, empty_is_none: bool = False) -> None:
        self._empty_is_none = empty_is_none

    def parse(self, raw: object) -> Setting:
        """Return the address as it is written."""
        if raw == "" and self._empty_is_none:
            return None
        found = SERVER.fullmatch(raw) if isinstance(raw, str) else None
        if found is None or int(found[1]) > 65_535:
            raise ValueError(self._expected)
        return found[0]

    def render(self, value: Setting) -> str:
        """Return the text quoted."""
        return quote("" if value is None else str(value))


def _items(raw: object, is_valid: Callable[[str], bool], expected: str) -> tuple[str, ...]:
    """Return the texts of a list, or of one text with commas, if all of them are valid."""
    items = raw
    if isinstance(raw, str):
        items = [item.strip() for item in raw.split(",")] if raw else []
    if not isinstance(items, list):
        raise ValueError(expected)
    if not all(isinstance(item, str) and is_valid(item) for item in items):
        raise ValueError(expected)
    return tuple(items)


def _array(value: Setting) -> str:
    assert isinstance(value, tuple)
    return "[" + ", ".join(quote(str(item)) for item in value) + "]"


def _is_origin(item: str) -> bool:
    return item in ("*", "null") or ORIGIN.fullmatch(item) is not None


def _is_exact_origin(item: str) -> bool:
    try:
        return EXACT_ORIGIN.fullmatch(item) is not None and urlsplit(item).port != 0
    except ValueError:  # brackets around what is no address, or a port that is none
        return False


def _is_network(item: str) -> bool:
    from ipaddress import ip_network

    try:
        ip_network(item)
    except ValueError:
        return False
    return True


def _is_server(item: str) -> bool:
    found = SERVER.fullmatch(item)
    return found is not None and 1 <= int(found[1]) <= 65_535


class Lines:
    """A list of texts that are not empty, or one of them."""

    _expected = "a string or a list of strings that are not empty"

    def parse(self, raw: object) -> Setting:
        """Return the texts in their order."""
        items = [raw] if isinstance(raw, str) else raw
        if not isinstance(items, list) or not items:
            raise ValueError(self._expected)
        for item in items:
            if not isinstance(item, str) or not item.strip() or "\0" in item or not _fits(item):
                raise ValueError(self._expected)
        return tuple(items)

    def render(self, value: Setting) -> str:
        """Return the TOML array."""
        assert isinstance(value, tuple)
        return "[" + ", ".join(quote(str(text)) for text in value) + "]"


_SIZE_RENDER: Final = (("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10))
_DURATION_RENDER: Final = (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000))


def _scaled(text: str, units: dict[str, int], *, unit_needed: bool) -> int | None:
    """Return the number in `text` times its unit, or None if it is neither or not whole."""
    found = NUMBER_AND_UNIT.fullmatch(text.strip())
    if found is None or len(text) > 40:
        return None
    number, unit = found.groups()
    if not unit:
        if number.strip("0.") == "":
            return 0
        return int(number) if not unit_needed and "." not in number else None
    scale = units.get(unit.lower())
    if scale is None:
        return None
    whole, _, fraction = number.partition(".")
    scaled = int(whole + fraction) * scale
    divisor = 10 ** len(fraction)
    return None if scaled % divisor else scaled // divisor


def _largest_unit(value: int, units: tuple[tuple[str, int], ...]) -> str:
    """Return `value` in the largest of `units` that divides it, else in the base unit."""
    for name, scale in units:
        if value and value % scale == 0:
            return f"{value // scale}{name}"
    return f"{value}ms" if units is _DURATION_RENDER else f"{value}B"

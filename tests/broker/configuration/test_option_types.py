"""How values with units are read, refused and written back."""

import pytest

from broker.configuration.option_types import (
    Address,
    Choice,
    Detail,
    Durability,
    Duration,
    FileMode,
    Flag,
    Integer,
    Kind,
    Name,
    Names,
    Networks,
    Origins,
    Pairs,
    Secret,
    Setting,
    Size,
    Text,
)

SIZE = Size()
MILLISECONDS = Duration(1)
SECONDS = Duration(1000)
EXPIRY = Duration(1000, never="never")


@pytest.mark.parametrize(
    ("kind", "raw", "value"),
    [
        (SIZE, 0, 0),
        (SIZE, "0", 0),
        (SIZE, 65_536, 65_536),
        (SIZE, "65536", 65_536),
        (SIZE, "64KiB", 65_536),
        (SIZE, "64 kib", 65_536),
        (SIZE, "64MiB", 64 << 20),
        (SIZE, "1.5GiB", 3 << 29),
        (SIZE, "2kB", 2000),
        (SIZE, "1TB", 10**12),
        (SIZE, "7B", 7),
        (MILLISECONDS, "200ms", 200),
        (MILLISECONDS, "1.5s", 1500),
        (MILLISECONDS, 0, 0),
        (MILLISECONDS, "0", 0),
        (SECONDS, "30s", 30),
        (SECONDS, "2m", 120),
        (SECONDS, "2min", 120),
        (SECONDS, "1h", 3600),
        (SECONDS, "7d", 604_800),
        (SECONDS, "2w", 1_209_600),
        (SECONDS, "3000ms", 3),
        (EXPIRY, "never", None),
        (Flag(), True, True),
        (Flag(), "yes", True),
        (Flag(), "ON", True),
        (Flag(), "0", False),
        (Flag(), "false", False),
        (Integer(0, 10), 10, 10),
        (Integer(0, 10), "7", 7),
        (Integer(0), 10**15, 10**15),
        (Choice("a", "b"), "b", "b"),
        (Text(), "some where", "some where"),
        (Name(), "edge_7.example", "edge_7.example"),
        (Name(empty_is_none=True), "", None),
        (Detail(), "off", "off"),
        (Detail(), "full", "full"),
        (Detail(), "sampled:1/0100", "sampled:1/100"),
        (Secret(), "", ""),
        (Text(empty_is_none=True), "", None),
        (Durability(), "fsync", "fsync"),
        (Durability(), "os", "os"),
        (Durability(), "interval:100", "interval:100"),
        (Durability(), "interval:2s", "interval:2000"),
        (Durability(), "interval:1", "interval:1"),
        (Durability(), "interval:1m", "interval:60000"),
        (Pairs(), [], ()),
        (Pairs(), "", ()),
        (Pairs(), ["site=a b", "rack=1=2"], (("site", "a b"), ("rack", "1=2"))),
        (Pairs(), "site=x, rack=7", (("site", "x"), ("rack", "7"))),
        (Names(), "n1, n.2", ("n1", "n.2")),
        (Names(), ["n1"], ("n1",)),
        (Address(), "127.0.0.1:8080", "127.0.0.1:8080"),
        (Address(), "[::1]:0", "[::1]:0"),
        (Address(empty_is_none=True), "", None),
        (FileMode(), "0660", 0o660),
        (FileMode(), "777", 0o777),
        (FileMode(), "0000", 0),
        (
            Origins(exact=True),
            "https://a.example,http://[::1]:80",
            ("https://a.example", "http://[::1]:80"),
        ),
        (Networks(), "127.0.0.1, 10.0.0.0/8", ("127.0.0.1", "10.0.0.0/8")),
        (Networks(), ["::1"], ("::1",)),
        (Networks(), [], ()),
        (Origins(), [], ()),
        (Origins(), "", ()),
        (
            Origins(),
            ["https://a.example:8443", "http://[::1]"],
            ("https://a.example:8443", "http://[::1]"),
        ),
        (Origins(), "https://a.example, null,*", ("https://a.example", "null", "*")),
    ],
)
def test_a_good_value_is_read_and_read_back_from_what_render_writes(
    kind: Kind, raw: object, value: Setting
) -> None:
    import tomllib

    assert kind.parse(raw) == value
    rendered = tomllib.loads(f"key = {kind.render(value)}")["key"]
    assert kind.parse(rendered) == value


@pytest.mark.parametrize(
    ("kind", "raw"),
    [
        (SIZE, "64 bananas"),
        (SIZE, "-1"),
        (SIZE, -1),
        (SIZE, True),
        (SIZE, 1.5),
        (SIZE, "1.5"),
        (SIZE, "0.3B"),
        (SIZE, ""),
        (SIZE, "9" * 50),
        (SIZE, "1e6"),
        (Size(100), 99),
        (Size(0, 10), 11),
        (MILLISECONDS, 200),
        (MILLISECONDS, "200"),
        (MILLISECONDS, False),
        (MILLISECONDS, "0.5ms"),
        (MILLISECONDS, "never"),
        (SECONDS, "1500ms"),
        (SECONDS, None),
        (Duration(1, low=100), "99ms"),
        (Duration(1, high=100), "101ms"),
        (Flag(), "maybe"),
        (Flag(), 1),
        (Integer(0, 10), 11),
        (Integer(0, 10), -1),
        (Integer(0, 10), "-1"),
        (Integer(0, 10), "²"),
        (Integer(0, 10), True),
        (Integer(0, 10), 1.0),
        (Integer(0), "9" * 5000),
        (Choice("a", "b"), "c"),
        (Choice("a", "b"), 1),
        (Text(), ""),
        (Text(), 5),
        (Text(), "a\0b"),
        (Text(), "\udcff"),  # a byte of the environment that is not UTF-8
        (Text(), "é" * 32_768),
        (Name(), ""),
        (Name(), "a-b"),
        (Name(), ".hidden"),
        (Name(), "_hidden"),
        (Name(), "x" * 65),
        (Name(), 7),
        (Detail(), "sampled"),
        (Detail(), "sampled:1/0"),
        (Detail(), "sampled:1/1000001"),
        (Detail(), "sampled:1/99999999"),
        (Detail(), "1/10"),
        (Detail(), False),
        (Secret(), 7),
        (Secret(), "a\0b"),
        (Pairs(), ["name=" + "x" * 65_536]),
        (Pairs(), ["\udcff=value"]),
        (Durability(), "fsnc"),
        (Durability(), "interval:"),
        (Durability(), "interval:0"),
        (Durability(), "interval:-5"),
        (Durability(), "interval:2m"),
        (Durability(), "interval:60001"),
        (Durability(), "100"),
        (Durability(), 5),
        (Pairs(), ["no pair"]),
        (Pairs(), [1]),
        (Pairs(), 7),
        (FileMode(), 660),
        (FileMode(), 0o660),
        (FileMode(), "rw"),
        (FileMode(), "1777"),
        (FileMode(), "66"),
        (Names(), ["n1", "-"]),
        (Names(), ["n1", 2]),
        (Names(), 1),
        (Address(), "8080"),
        (Address(), ":8080"),
        (Address(), "127.0.0.1:65536"),
        (Address(), "::1:80"),
        (Address(), ""),
        (Address(), 8080),
        (FileMode(), "0680"),
        (Origins(exact=True), ["*"]),
        (Origins(exact=True), ["null"]),
        (Origins(exact=True), ["ftp://a.example"]),
        (Origins(exact=True), ["https://a.example/"]),
        (Origins(exact=True), ["https://a.example:0"]),
        (Origins(exact=True), ["https://a.example:99999"]),
        (Origins(exact=True), ["https://[:]"]),
        (Origins(exact=True), ["https://a..example"]),
        (Networks(), ["proxy.example"]),
        (Networks(), ["10.0.0.1/8"]),
        (Networks(), 7),
        (Origins(), 7),
        (Origins(), False),
        (Origins(), None),
        (Origins(), [7]),
        (Origins(), ["example.org"]),
        (Origins(), ["https://Example.org"]),
        (Origins(), ["https://example.org/"]),
        (Origins(), "https://a.example,"),
    ],
)
def test_a_bad_value_is_refused_with_the_expectation(kind: Kind, raw: object) -> None:
    with pytest.raises(ValueError, match=r"."):
        kind.parse(raw)


def test_a_secret_is_not_shown_and_what_stands_for_it_is_not_taken_for_it() -> None:
    shown = Secret().render("correct horse")
    assert shown == '"(not shown)"'
    with pytest.raises(ValueError, match="not what is shown in its place"):
        Secret().parse("(not shown)")


@pytest.mark.parametrize(
    ("kind", "value", "text"),
    [
        (SIZE, 1 << 20, '"1MiB"'),
        (SIZE, 1500, '"1500B"'),
        (SIZE, 12, "12"),
        (SECONDS, 90, '"90s"'),
        (SECONDS, 86_400, '"1d"'),
        (MILLISECONDS, 1500, '"1500ms"'),
        (MILLISECONDS, 0, "0"),
        (EXPIRY, None, '"never"'),
    ],
)
def test_values_are_written_in_the_largest_unit_that_fits(
    kind: Kind, value: Setting, text: str
) -> None:
    assert kind.render(value) == text

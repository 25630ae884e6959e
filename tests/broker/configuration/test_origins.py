"""Where each value comes from, and at which line, as far as that is certain."""

from collections.abc import Callable

from broker.configuration.load import load
from broker.configuration.origins import rows

Write = Callable[[str], str]

TEXT = """\
# a comment
[listener]
port = 1884  # not the usual one

[ listener . inside ]
port = 1885
host = "127.0.0.1"

[session]
"max_inflight" = 7

[backends.cache]
type = "webhook"
url = "http://127.0.0.1:9/"
secret = "hush hush hush hush hush hush hush hush"

[[rules]]
backend = "cache"
on = "on_client_online"

[[rules]]
backend = "cache"
on = "on_client_offline"
"""


def found(write: Write, text: str, **environment: str) -> dict[str, tuple[str, str]]:
    path = write(text)
    config = load(path, environment=environment, flags={"storage.data_dir": "here"})
    shown = {name: (value, origin) for name, value, origin in rows(config, text)}
    return {name: (value, origin.replace(path, "F")) for name, (value, origin) in shown.items()}


def test_each_value_has_its_line_variable_flag_or_default(write: Write) -> None:
    shown = found(write, TEXT, HOLDFAST__SESSION__MAX_AGE="7d")
    assert shown["listener.port"] == ("1884", "file F, line 3")
    assert shown["listener.inside.port"] == ("1885", "file F, line 6")
    assert shown["session.max_inflight"] == ("7", "file F, line 10")
    assert shown["session.max_age"] == ('"7d"', "environment HOLDFAST__SESSION__MAX_AGE")
    assert shown["storage.data_dir"] == ('"here"', "flag --data-dir")
    assert shown["log.level"] == ('"info"', "default")
    assert shown["rules[1].on"] == ('"on_client_online"', "file F, line 19")
    assert shown["rules[2].on"][1] == "file F, line 23"
    assert "hush" not in str(shown) and shown["backends.cache.secret"][1] == "file F, line 15"


def test_a_line_that_is_not_certain_is_not_told(write: Write) -> None:
    text = '[log]\nlevel = "debug"\n[storage]\nballast = """\n64MiB"""\n'
    twice = text + '[auth]\npassword_file = """\npassword_file = """\n'
    shown = found(write, twice)
    assert shown["log.level"][1] == "file F, line 2"
    assert shown["auth.password_file"][1] == "file F"
    inline = found(write, 'log = {level = "debug"}\n')
    assert inline["log.level"] == ('"debug"', "file F")

"""Does one token of a command stay one argument, whatever a client has sent?"""

import re

import pytest

from broker.backends.actions import CLIENT_CONNECTED, HOOKS, MESSAGE_ACKED, MESSAGE_PUBLISH
from broker.backends.templates import REFUSED, Command, Statement, payload_field, split


def fill(text: str, hook: str = MESSAGE_PUBLISH, **values: bytes) -> list[bytes]:
    """Return the arguments of a command for these values."""
    return Command(text, hook).fill(lambda name: values.get(name, b""))


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("GET key", ["GET", "key"]),
        ("  SET   a\t b ", ["SET", "a", "b"]),
        ('SET a "b c"', ["SET", "a", "b c"]),
        ("SET a 'b \" c'", ["SET", "a", 'b " c']),
        ('SET a "b \\" \\\\ c"', ["SET", "a", 'b " \\ c']),
        ("SET \"\" ''", ["SET", "", ""]),
        ("SET it's x", ["SET", "it's", "x"]),
        ("", []),
    ],
)
def test_a_command_is_cut_at_spaces(text: str, tokens: list[str]) -> None:
    assert split(text) == tokens


@pytest.mark.parametrize("text", ['SET a "b', "SET a 'b", 'SET a "b"c', "SET 'a'b c"])
def test_quotes_that_do_not_fit_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="quote"):
        split(text)


@pytest.mark.parametrize(
    "payload", [b"two words", b'"', b"'", b"\r\n*1\r\n", b"${topic}", b"\0\xff", b""]
)
def test_what_a_client_sent_stays_one_argument(payload: bytes) -> None:
    found = fill("HSET seen:${topic} last ${payload}", topic=b"a b", payload=payload)
    assert found == [b"HSET", b"seen:a b", b"last", payload]


def test_names_may_stand_anywhere_in_a_token_but_the_first() -> None:
    assert fill("SET k ${qos}${topic}-", qos=b"1", topic=b"t") == [b"SET", b"k", b"1t-"]
    with pytest.raises(ValueError, match="the name of a command first"):
        Command("${payload} x", MESSAGE_PUBLISH)


@pytest.mark.parametrize("hook", [name for name, hook in HOOKS.items() if hook.parameters])
def test_a_hook_has_its_names_and_says_which(hook: str) -> None:
    for name in HOOKS[hook].parameters:
        Command(f"SET k ${{{name}}}", hook)
    with pytest.raises(ValueError, match=r"\$\{clientid\}.*not \$\{undefined\}"):
        Command("SET k ${undefined}", hook)


@pytest.mark.parametrize("name", ["payload", "payload.a", "payload.a.0", "user_properties.x y"])
def test_messages_have_parts(name: str) -> None:
    Command(f'SET k "${{{name}}}"', MESSAGE_PUBLISH)


@pytest.mark.parametrize(
    ("name", "hook"),
    [
        ("payload", MESSAGE_ACKED),
        ("payload.a", MESSAGE_ACKED),
        ("user", MESSAGE_PUBLISH),
        ("topic", CLIENT_CONNECTED),
        ("payload.", MESSAGE_PUBLISH),
        ("qos.a", MESSAGE_PUBLISH),
        ("", MESSAGE_PUBLISH),
    ],
)
def test_a_name_that_a_hook_does_not_have_is_refused(name: str, hook: str) -> None:
    with pytest.raises(ValueError, match="one of"):
        Command(f"SET k ${{{name}}}", hook)


@pytest.mark.parametrize("text", ["SET k ${topic", "SET k ${a${topic}}", "SET k ${"])
def test_a_name_that_does_not_end_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"\$\{"):
        Command(text, MESSAGE_PUBLISH)


@pytest.mark.parametrize(
    "word", ["multi", "Exec", "SUBSCRIBE", "BLPOP", "SELECT", "EVAL", "FLUSHALL"]
)
def test_commands_that_would_break_the_batch_are_refused(word: str) -> None:
    with pytest.raises(ValueError, match=REFUSED[word.upper()]):
        Command(f"{word} x", MESSAGE_PUBLISH)


def test_no_command_is_refused() -> None:
    with pytest.raises(ValueError, match="a command, for example"):
        Command("   ", MESSAGE_PUBLISH)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("temp", b"21.5"),
        ("name", "täg".encode()),
        ("deep.list.1", b"2"),
        ("deep", b'{"list":[1,2]}'),
        ("none", b"null"),
        ("half", b"?"),
        ("halves", b'["?"]'),
        ("missing", b""),
        ("temp.x", b""),
        ("deep.list.9", b""),
        ("deep.list.x", b""),
    ],
)
def test_a_field_of_a_json_payload(path: str, value: bytes) -> None:
    payload = '{"temp":21.5,"name":"täg","deep":{"list":[1,2]},"none":null,'
    payload += '"half":"\\ud800","halves":["\\ud800"]}'
    assert payload_field(payload.encode(), path) == value


@pytest.mark.parametrize("payload", [b"", b"no json", b"\xff", b"[" * 100_000, b'"\\ud800"'])
def test_a_payload_that_has_no_fields_gives_nothing(payload: bytes) -> None:
    assert payload_field(payload, "a") == b""


@pytest.mark.parametrize(
    ("text", "expected", "names"),
    [
        ("DELETE FROM acked WHERE clientid = ${clientid} ;", "DELETE FROM acked WHERE clientid = ?",
         ["clientid"]),
        ("INSERT INTO \"a?b\" VALUE {'id': ${msgid}, 'p': ${payload.a.b}}",
         "INSERT INTO \"a?b\" VALUE {'id': ?, 'p': ?}", ["msgid", "payload.a.b"]),
        ("UPDATE t SET a = 'it''s ?' WHERE b=${topic}${topic}",
         "UPDATE t SET a = 'it''s ?' WHERE b=??", ["topic", "topic"]),
    ],
)  # fmt: skip
def test_names_of_a_statement_are_bound(text: str, expected: str, names: list[str]) -> None:
    made = Statement(text, "message.publish")
    assert (made.text, made.names) == (expected, names)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (" ; ", "a statement"),
        ("SET a = '${topic}'", "without quotes: not \"'${topic}'\""),
        ('SET a = "x ${topic}"', "without quotes"),
        ("SET a = ${topic", "names written as"),
        ("SET a = ?", "in place of '?'"),
        ("SET a = ${user}", "for message.publish one of ${clientid}"),
    ],
)
def test_a_statement_that_cannot_be_bound_is_refused(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=re.escape(said)):
        Statement(text, "message.publish")

"""Backends and rules: what may be written, and what every mistake is answered with."""

import pytest

from broker.configuration.backend_options import BACKENDS_MAX, RULES_MAX, Backend
from broker.configuration.load import load
from broker.configuration.options import BACKEND_OPTIONS, RULE_OPTIONS
from broker.configuration.show import show
from tests.broker.configuration.refused import refused

CACHE = '[backends.cache]\nservers = "10.0.0.1:6379"\n'
STORED = '[[rules]]\non = "message.publish"\ntopic = "#"\nbackend = "cache"\naction = "a"\n'


def test_backends_and_rules_come_from_the_file_and_from_the_environment(write) -> None:  # type: ignore[no-untyped-def]
    path = write(
        CACHE + 'password = "old"\nrequired = true\nrewind_keep = "1h"\n'
        '[backends.second]\nservers = ["[::1]:26379", "b:26379"]\nmode = "sentinel"\n'
        'sentinel_name = "main"\ntls = true\ntls_ca = "ca.pem"\ntls_verify = false\n'
        + STORED
        + '[[rules]]\non = "client.connected"\nbackend = "second"\ncommands = "SET a ${clientid}"\n'
        'expires = "1h"\n'
    )
    environment = {
        "HOLDFAST__BACKENDS__CACHE__PASSWORD": "new",
        "HOLDFAST__BACKENDS__SECOND__DATABASE": "3",
        "HOLDFAST__BACKENDS__BY_HAND__SERVERS": "a:1",
    }
    loaded = load(path, environment=environment)
    cache, second, by_hand = loaded.backends
    assert (cache.servers, cache.password, cache.required) == (("10.0.0.1:6379",), "new", True)
    assert (cache.rewind_keep_ms, cache.timeout_ms, cache.score) == (3_600_000, 5000, "time")
    assert (second.servers, second.sentinel_name) == (("[::1]:26379", "b:26379"), "main")
    assert (second.database, second.tls, second.tls_ca) == (3, True, "ca.pem")
    assert (by_hand.name, by_hand.servers, by_hand.type) == ("by_hand", ("a:1",), "redis")
    assert loaded.origins["backends.cache.password"] == (
        "environment HOLDFAST__BACKENDS__CACHE__PASSWORD"
    )
    first, own = loaded.rules
    assert first.as_tuple() == ("message.publish", "#", "cache", "a", (), 0, 0, 0)
    assert own.as_tuple() == (
        "client.connected", None, "second", None, ("SET a ${clientid}",), 3600, 0, 0,
    )  # fmt: skip
    assert [rule.section for rule in loaded.rules] == ["rules[1]", "rules[2]"]


def test_what_show_prints_loads_back_and_hides_the_password(write) -> None:  # type: ignore[no-untyped-def]
    path = write(CACHE + 'password = "very secret"\n' + STORED + 'expires = "7d"\n')
    text = show(load(path, environment={}))
    assert "very secret" not in text
    assert "[backends.cache]" in text and "[[rules]]" in text
    assert "commands" not in text
    hidden = next(line for line in text.splitlines() if line.startswith("password ="))
    assert "(not shown)" in hidden and path in hidden
    again = load(write(text.replace(hidden, 'password = "very secret"')), environment={})
    before = load(write(CACHE + 'password = "very secret"\n' + STORED + 'expires = "7d"\n'))
    assert vars(again.backends[0]) == vars(before.backends[0])
    assert again.rules[0].as_tuple() == before.rules[0].as_tuple()


def test_every_key_fills_an_attribute_and_its_default_is_valid() -> None:
    backend, rule = Backend("cache"), load(environment={}).rule("test")
    for table, options in ((backend, BACKEND_OPTIONS), (rule, RULE_OPTIONS)):
        attributes = {option.attribute for option in options}
        own = {"section", "name", "number", "origin"}
        assert attributes == set(vars(table)) - own
    for option in BACKEND_OPTIONS:
        assert option.kind.render(getattr(backend, option.attribute))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("backends = 1", ["backends = 1", "[backends]"]),
        ("[backends]\ncache = 1", ["backends.cache = 1", "a table [backends.NAME]"]),
        ("[backends.Cache]\n", ["backend name 'Cache'", "lower-case letters"]),
        ("[backends.cache]\n", ["backends.cache.servers is missing", "host:port"]),
        (CACHE + 'type = "mysql"', ["backends.cache.type = 'mysql'", "one of redis"]),
        (CACHE + "sever = 1", ["'backends.cache.sever'", "did you mean backends.cache.servers?"]),
        ('[backends.a]\nservers = "redis"', ["backends.a.servers = 'redis'", "host:port"]),
        ('[backends.a]\nservers = ["h:0"]', ["backends.a.servers = ['h:0']", "host:port"]),
        ('[backends.a]\nservers = ["a:1", "b:1"]', ["expected one server, not 2", "sentinel"]),
        (CACHE + 'mode = "cluster"', ["mode = 'cluster'", "one of single, sentinel"]),
        (CACHE + 'mode = "sentinel"', ["backends.cache.sentinel_name is missing"]),
        (CACHE + 'sentinel_name = "m"', ["sentinel_name has no meaning in the mode single"]),
        (CACHE + "database = -1", ["backends.cache.database = -1", "0 to 1000000"]),
        (CACHE + "password = 12345", ["backends.cache.password = ...", "a string"]),
        (CACHE + 'password = "a"\npassword_file = "b"', ["password_file: expected one of them"]),
        (CACHE + 'tls_ca = "ca.pem"', ["backends.cache.tls_ca needs backends.cache.tls = true"]),
        (CACHE + "tls_verify = false", ["tls_verify needs backends.cache.tls = true"]),
        (CACHE + 'tls = true\ntls_key = "k"', ["tls_key needs backends.cache.tls_certificate"]),
        (CACHE + 'score = "two"', ["score = 'two'", "one of time, one"]),
        (CACHE + "rewind_keep = 5", ["rewind_keep = 5", "a duration"]),
        (CACHE + "timeout = 0", ["timeout = 0", "from 100ms"]),
        ("rules = 1", ["rules = 1", "expected tables [[rules]]"]),
        ("[rules]\non = 1", ["rules = {", "expected tables [[rules]]"]),
        (CACHE + "[[rules]]\nonn = 1", ["'rules[1].onn'", "did you mean rules[1].on?"]),
        (CACHE + "[[rules]]\non = 1", ["rules[1].on = 1", "a string"]),
        (CACHE + '[[rules]]\nbackend = "cache"', ["rules[1].on is missing"]),
        (CACHE + '[[rules]]\non = "x"', ["rules[1].backend is missing"]),
        (CACHE + STORED + 'commands = "SET a b"', ["rules[1].commands: expected one of them"]),
        (CACHE + '[[rules]]\non = "x"\nbackend = "cache"', ["neither an action nor commands"]),
        (CACHE + STORED.replace("#", "#/a"), ["rules[1].topic", "'#' must be last"]),
        (CACHE + STORED.replace("#", "$share/a/b"), ["rules[1].topic", "without a share name"]),
        (CACHE + STORED + "commands = []", ["rules[1].commands = []", "not empty"]),
        (CACHE + STORED + STORED, ["rules[2] says the same as rules[1]"]),
        (CACHE + STORED.replace("cache", "cash"), ["rules[1].backend = 'cash'", "one of cache"]),
        (STORED, ["rules[1].backend = 'cache'", "there is none"]),
        ("[backend.cache]\n", ["unknown section 'backend'", "did you mean [backends]?"]),
        ("[[rule]]\n", ["unknown section 'rule'", "did you mean [rules]?"]),
    ],
)
def test_a_mistake_is_one_line_that_names_key_value_and_expectation(  # type: ignore[no-untyped-def]
    write, text: str, words: list[str]
) -> None:
    complaint = refused(write(text))
    for word in words:
        assert word in complaint, complaint


@pytest.mark.parametrize(
    ("variable", "value", "words"),
    [
        ("HOLDFAST__BACKENDS", "1", ["unknown key 'backends'", "HOLDFAST__BACKENDS__NAME__"]),
        ("HOLDFAST__BACKENDS__SERVERS", "1", ["did you mean HOLDFAST__BACKENDS__NAME__SERVERS?"]),
        ("HOLDFAST__BACKENDS__A__SERVER", "1", ["mean HOLDFAST__BACKENDS__A__SERVERS?"]),
        ("HOLDFAST__BACKENDS__a__SERVERS", "a:1", ["mean HOLDFAST__BACKENDS__A__SERVERS?"]),
        ("HOLDFAST__BACKENDS__A__SERVERS", "a", ["backends.a.servers = 'a'", "host:port"]),
        ("HOLDFAST__RULES__1__ON", "x", ["written in the configuration file only"]),
    ],
)
def test_a_mistake_in_the_environment_names_the_variable(
    variable: str, value: str, words: list[str]
) -> None:
    complaint = refused(None, **{variable: value})
    assert complaint.startswith(f"environment {variable}: ")
    for word in words:
        assert word in complaint, complaint


def test_there_are_at_most_so_many(write) -> None:  # type: ignore[no-untyped-def]
    many = "".join(
        f'[backends.b{number}]\nservers = "a:{number + 1}"\n' for number in range(BACKENDS_MAX + 1)
    )
    assert f"{BACKENDS_MAX + 1} backends: expected at most" in refused(write(many))
    rules = "".join(STORED.replace('"#"', f'"t/{number}"') for number in range(RULES_MAX + 1))
    assert f"{RULES_MAX + 1} rules: expected at most" in refused(write(CACHE + rules))


def test_a_backend_may_have_no_rules_yet(write) -> None:  # type: ignore[no-untyped-def]
    assert load(write(CACHE), environment={}).rules == []

"""Backends and rules: what may be written, and what every mistake is answered with."""

import pytest

from broker.configuration.backend_options import (
    BACKENDS_MAX,
    COMMANDS,
    EVERY_TYPE,
    KEYS,
    RULES_MAX,
    TYPES,
    Backend,
)
from broker.configuration.load import load
from broker.configuration.options import BACKEND_OPTIONS, RULE_OPTIONS
from broker.configuration.show import show
from tests.broker.configuration.refused import refused

CACHE = '[backends.cache]\nservers = "10.0.0.1:6379"\n'
SENTINELS = CACHE + 'mode = "sentinel"\nsentinel_name = "main"\n'
CASSANDRA = '[backends.a]\ntype = "cassandra"\nservers = ["a:9042", "b:9042"]\n'
DYNAMODB = '[backends.a]\ntype = "dynamodb"\n'
WEBHOOK = '[backends.a]\ntype = "webhook"\nurl = "http://127.0.0.1:8080/rows"\n'
KAFKA = '[backends.log]\ntype = "kafka"\nservers = "a:9092"\ntopic = "mqtt.${topic}"\n'
HOOK = '[backends.hook]\ntype = "webhook"\nurl = "https://example.org/rows"\n'
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
    assert first.as_tuple() == (
        "message.publish",
        "#",
        "cache",
        "a",
        (),
        0,
        0,
        0,
        "add",
        False,
        0,
        False,
        False,
    )
    assert own.as_tuple() == (
        "client.connected", None, "second", None, ("SET a ${clientid}",), 3600, 0, 0,
        "add", False, 0, False, False,
    )  # fmt: skip
    assert [rule.section for rule in loaded.rules] == ["rules[1]", "rules[2]"]


def test_a_backend_has_the_keys_of_its_type(write) -> None:  # type: ignore[no-untyped-def]
    path = write(
        KAFKA + 'key = "clientid"\nvalue = "payload"\nsasl_mechanism = "SCRAM-SHA-512"\n'
        'username = "u"\npassword = "p"\n'
        + HOOK
        + 'secret = "s"\nusername = "u"\npassword = "p"\ntls_verify = false\n'
        '[backends.hook.headers]\nX-Plant = "7"\n'
        '[[rules]]\non = "client.connected"\nbackend = "hook"\n'
    )
    loaded = load(path, environment={})
    log, hook = loaded.backends
    assert (log.topic, log.key, log.value) == ("mqtt.${topic}", "clientid", "payload")
    assert (hook.url, hook.headers) == ("https://example.org/rows", (("X-Plant", "7"),))
    assert loaded.rules[0].as_tuple() == (
        "client.connected",
        None,
        "hook",
        None,
        (),
        0,
        0,
        0,
        "add",
        False,
        0,
        False,
        False,
    )
    text = show(loaded)
    kafka = text[text.index("[backends.log]") : text.index("[backends.hook]")]
    webhook = text[text.index("[backends.hook]") :]
    assert "sasl_mechanism" in kafka and "url" not in kafka and "score" not in kafka
    assert "servers" not in webhook
    assert 'headers = { "X-Plant" = "(not shown)" }' in webhook


def test_what_show_prints_loads_back_and_hides_the_password(write) -> None:  # type: ignore[no-untyped-def]
    path = write(CACHE + 'password = "very secret"\n' + STORED + 'expires = "7d"\n')
    text = show(load(path, environment={}))
    assert "very secret" not in text
    assert "[backends.cache]" in text and "[[rules]]" in text
    assert "commands" not in text
    hidden = next(line for line in text.splitlines() if "(not shown)" in line)
    assert hidden.startswith("password =") and path in hidden
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
        (CACHE + 'type = "mysql"', ["backends.cache.type = 'mysql'", "one of redis, cassandra"]),
        (
            CACHE + 'type = "cassandra"\nscore = "one"',
            ["backends.cache.score has no meaning for the type cassandra: expected", "keyspace"],
        ),
        (
            '[backends.a]\ntype = "dynamodb"\nservers = "a:1"',
            ["backends.a.servers has no meaning for the type dynamodb: expected one of", "region"],
        ),
        (DYNAMODB + 'access_key_id = "a"', ["secret_access_key is missing"]),
        (DYNAMODB + 'secret_access_key = "a"', ["access_key_id is missing"]),
        (
            DYNAMODB + 'access_key_id = "a"\nsecret_access_key = "b"\nsecret_access_key_file = "c"',
            ["secret_access_key_file: expected one of them"],
        ),
        (DYNAMODB + 'endpoint = "localhost"', ["endpoint = 'localhost'", "http://127.0.0.1:8000"]),
        (DYNAMODB + 'table_prefix = "a b"', ["table_prefix = 'a b'", "letters, digits"]),
        (DYNAMODB + 'layout = "v3"', ["layout = 'v3'", "one of v1, v2"]),
        (CASSANDRA + 'table_prefix = "a-b"', ["table_prefix = 'a-b'", "letters, digits and '_'"]),
        (CASSANDRA + 'keyspace = "1"', ["keyspace = '1'", "letters"]),
        (CASSANDRA + "sender_index = 1", ["sender_index = 1", "true or false"]),
        (CACHE + "sender_index = true", ["sender_index has no meaning for the type redis"]),
        (CASSANDRA + 'consistency = "most"', ["consistency = 'most'", "one of any, one"]),
        ('[backends.a]\ntype = "kafka"\nservers = "a:1"', ["backends.a.topic is missing"]),
        ('[backends.a]\ntype = "kafka"\ntopic = "t"', ["backends.a.servers is missing"]),
        ('[backends.a]\ntype = "webhook"', ["backends.a.url is missing", "https://"]),
        (WEBHOOK + 'tls_ca = "ca"', ["tls_ca needs a backends.a.url with https as well"]),
        (WEBHOOK + 'password = "x"', ["backends.a.password needs backends.a.username"]),
        (WEBHOOK + 'secret = "x"\nsecret_file = "y"', ["secret_file: expected one of them"]),
        (WEBHOOK + "headers = 1", ["backends.a.headers = ...", "a table of header names"]),
        (WEBHOOK + 'headers = { "a b" = "c" }', ["a table of header names"]),
        (WEBHOOK + 'headers = { a = "b\\nc" }', ["a table of header names"]),
        (HOOK + 'rewind_keep = "1h"', ["hook.rewind_keep has no meaning for the type webhook"]),
        (CACHE + 'backlog_bytes_max = "1MiB"', ["backlog_bytes_max = 1048576", "at least 16MiB"]),
        (KAFKA + 'on_full = "reject"', ["on_full needs backends.log.backlog_bytes_max"]),
        (HOOK + 'on_full = "block"', ["on_full = 'block'", "drop_oldest, reject"]),
        (KAFKA + 'score = "one"', ["backends.log.score has no meaning for the type kafka"]),
        (KAFKA.replace("topic", "#"), ["backends.log.topic is missing"]),
        (KAFKA.replace("servers", "#"), ["backends.log.servers is missing"]),
        (KAFKA + 'key = "qos"', ["key = 'qos'", "one of topic, clientid"]),
        (KAFKA + 'value = "raw"', ["value = 'raw'", "one of json, payload"]),
        (KAFKA + 'sasl_mechanism = "X"', ["sasl_mechanism = 'X'", "one of PLAIN"]),
        (KAFKA + 'tls_ca = "ca.pem"', ["log.tls_ca needs backends.log.tls = true"]),
        (HOOK + "tls = true", ["backends.hook.tls has no meaning for the type webhook"]),
        (HOOK.replace("url", "#"), ["backends.hook.url is missing"]),
        (HOOK.replace("https", "ftp"), ["url = 'ftp://example.org/rows'", "a URL such as"]),
        (HOOK.replace("//", "//u:p@"), ["without user and fragment"]),
        (
            HOOK.replace("https", "http") + 'tls_ca = "c"',
            ["tls_ca needs a backends.hook.url with https"],
        ),
        (HOOK + 'secret = "a"\nsecret_file = "b"', ["secret_file: expected one of them"]),
        (HOOK + 'password = "a"', ["backends.hook.password needs backends.hook.username"]),
        (HOOK + 'headers = {Host = "x"}', ["other headers than Host"]),
        (HOOK + 'headers = {Webhook-Id = "x"}', ["other headers than Webhook-Id"]),
        (HOOK + 'username = "u"\nheaders = {authorization = "x"}', ["expected no Authorization"]),
        (CACHE + STORED + 'statements = "a"', ["rules[1].statements: expected one of them"]),
        (
            CACHE + '[[rules]]\non = "x"\nbackend = "cache"\ncql = "a"',
            ["rules[1].cql has no meaning for the type redis: expected an action or commands"],
        ),
        (
            WEBHOOK + '[[rules]]\non = "x"\nbackend = "a"\ncommands = "a"',
            ["commands has no meaning for the type webhook", "nothing to send the row"],
        ),
        (CACHE + "sever = 1", ["'backends.cache.sever'", "did you mean backends.cache.servers?"]),
        ('[backends.a]\nservers = "redis"', ["backends.a.servers = 'redis'", "host:port"]),
        ('[backends.a]\nservers = ["h:0"]', ["backends.a.servers = ['h:0']", "host:port"]),
        ('[backends.a]\nservers = ["a:1", "b:1"]', ["expected one server, not 2", "sentinel"]),
        (CACHE + 'mode = "many"', ["mode = 'many'", "one of single, sentinel, cluster"]),
        (CACHE + 'mode = "cluster"\ndatabase = 1', ["cache.database = 1: a cluster has only"]),
        (
            CACHE + 'mode = "cluster"\nchannel = "c"',
            ["cache.channel has no meaning in the mode cluster", "expected backends.cache.stream"],
        ),
        (
            CACHE + 'mode = "cluster"\nsentinel_name = "m"',
            ["sentinel_name has no meaning in the mode cluster"],
        ),
        (
            CACHE + 'sentinel_password = "p"',
            ["sentinel_password has no meaning in the mode single"],
        ),
        (SENTINELS + 'sentinel_username = "u"', ["needs backends.cache.sentinel_password as well"]),
        (
            SENTINELS + 'sentinel_password = "p"\nsentinel_password_file = "f"',
            ["sentinel_password and", "sentinel_password_file: expected one of them"],
        ),
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
        (CACHE + "connections = 0", ["cache.connections = 0", "1 to 256"]),
        (CACHE + "connections = 2", ["cache.connections = 2: expected 1", "the script"]),
        (HOOK + "connections = 2", ["hook.connections = 2: expected 1", "one order"]),
        (KAFKA + "connections = 2", ["log.connections = 2: expected 1", "all its servers"]),
        (DYNAMODB + "connections = 2", ["expected 1, or backends.a.exact = false"]),
        (CACHE + "batch_rows = 501", ["cache.batch_rows = 501", "1 to 500"]),
        (CACHE + "batch_rows = 0", ["cache.batch_rows = 0", "1 to 500"]),
        (HOOK + 'linger = "11s"', ["hook.linger = '11s'", "to 10s"]),
        (CACHE + "retry_first = 0", ["retry_first = 0", "from 10ms to 1h"]),
        (HOOK + 'retry_max = "2h"', ["retry_max = '2h'", "from 10ms to 1h"]),
        (
            KAFKA + 'retry_first = "2s"\nretry_max = "1s"',
            ["backends.log.retry_first is longer than backends.log.retry_max"],
        ),
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


def test_the_connections_of_a_backend_depend_on_its_type(write) -> None:  # type: ignore[no-untyped-def]
    for text, connections in (
        (CACHE + "connections = 1", 1),
        (CACHE, 1),
        (DYNAMODB, 1),
        (DYNAMODB + "exact = false\nconnections = 8", 8),
        (CASSANDRA, 64),
        (CASSANDRA + "connections = 8", 8),
    ):
        (backend,) = load(write(text), environment={}).backends
        assert backend.connections == connections


def test_there_are_at_most_so_many(write) -> None:  # type: ignore[no-untyped-def]
    many = "".join(
        f'[backends.b{number}]\nservers = "a:{number + 1}"\n' for number in range(BACKENDS_MAX + 1)
    )
    assert f"{BACKENDS_MAX + 1} backends: expected at most" in refused(write(many))
    rules = "".join(STORED.replace('"#"', f'"t/{number}"') for number in range(RULES_MAX + 1))
    assert f"{RULES_MAX + 1} rules: expected at most" in refused(write(CACHE + rules))


def test_a_backend_may_have_no_rules_yet(write) -> None:  # type: ignore[no-untyped-def]
    assert load(write(CACHE), environment={}).rules == []


@pytest.mark.parametrize("type", TYPES)
def test_what_show_prints_for_a_type_loads_back(write, type: str) -> None:  # type: ignore[no-untyped-def]
    lines = {
        "redis": 'servers = "a:1"',
        "cassandra": 'servers = "a:1"',
        "dynamodb": "",
        "kafka": 'servers = "a:1"\ntopic = "t"',
        "webhook": 'url = "https://a/"',
    }[type]
    loaded = load(write(f'[backends.a]\ntype = "{type}"\n{lines}\n'), environment={})
    text = show(loaded)
    written = text[text.index("[backends.a]") :].splitlines()[1:]
    assert [line.partition(" =")[0] for line in written if line] == [
        option.key for option in BACKEND_OPTIONS if option.key in (*EVERY_TYPE, *KEYS[type])
    ]
    assert vars(load(write(text), environment={}).backends[0]) == vars(loaded.backends[0])


def test_every_key_is_for_some_type() -> None:
    assert {option.key for option in BACKEND_OPTIONS} == {
        *EVERY_TYPE, *(key for keys in KEYS.values() for key in keys)
    }  # fmt: skip
    assert set(KEYS) == set(TYPES) == set(COMMANDS)


def test_tables_have_the_prefix_of_their_type_unless_one_is_written(write) -> None:  # type: ignore[no-untyped-def]
    def prefix(text: str) -> str | None:
        return load(write(text), environment={}).backends[0].table_prefix

    assert (prefix(CASSANDRA), prefix(DYNAMODB)) == ("", "mqtt_")
    assert prefix(CASSANDRA + 'table_prefix = "mqtt_"') == "mqtt_"
    assert prefix(DYNAMODB + 'table_prefix = ""') == ""


def test_headers_are_a_table_and_their_values_are_not_shown(write) -> None:  # type: ignore[no-untyped-def]
    path = write(WEBHOOK + 'headers = { Authorization = "Bearer very-secret", x-a = "" }\n')
    loaded = load(path, environment={})
    assert loaded.backends[0].headers == (("Authorization", "Bearer very-secret"), ("x-a", ""))
    text = show(loaded)
    assert "very-secret" not in text and "Authorization" in text
    environment = {"HOLDFAST__BACKENDS__A__HEADERS": "x-a=1, x-b=2=3"}
    assert load(path, environment=environment).backends[0].headers == (("x-a", "1"), ("x-b", "2=3"))
    assert "not what is shown" in refused(write(text))


def test_a_store_that_takes_rows_as_they_are_needs_no_action(write) -> None:  # type: ignore[no-untyped-def]
    text = WEBHOOK + '[[rules]]\non = "client.connected"\nbackend = "a"\n'
    (rule,) = load(write(text), environment={}).rules
    assert rule.own_commands() == ()

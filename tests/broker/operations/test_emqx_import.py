"""Is the file of an EMQX backend carried over, and is nothing of it left out silently?"""

import json
from pathlib import Path
from typing import Any, Final

import pytest

from broker.backends import rules
from broker.configuration.config import Config
from broker.configuration.load import load
from broker.operations.emqx_import import Imported
from storage.tables.fetch_rows import PUBSUB, RETAIN

CONFS: Final = Path(__file__).parent / "emqx"
CASSANDRA: Final = (CONFS / "emqx_backend_cassa.conf").read_text()
DYNAMODB: Final = (CONFS / "emqx_backend_dynamo.conf").read_text()
REDIS: Final = (CONFS / "emqx_backend_redis.conf").read_text()


def converted(text: str, tmp_path: Path) -> tuple[Imported, Config, str]:
    """Return what is imported of a file, the configuration that it makes, and its text."""
    imported = Imported(text)
    printed = "\n".join(imported.lines()) + "\n"
    path = tmp_path / "holdfast.toml"
    path.write_text(printed, encoding="utf-8")
    config = load(str(path), environment={})
    rules.check(config)
    return imported, config, printed


def hook(name: str, told: Any, type: str = "redis") -> str:
    return f"backend.{type}.hook.{name} = {json.dumps(told)}\n"


@pytest.mark.parametrize(
    ("text", "type"), [(CASSANDRA, "cassandra"), (DYNAMODB, "dynamodb"), (REDIS, "redis")]
)
def test_each_rule_of_a_file_is_there_or_is_a_comment(text: str, type: str, tmp_path: Path) -> None:
    imported, config, printed = converted(text, tmp_path)
    assert [(backend.name, backend.type) for backend in config.backends] == [("pool1", type)]
    written = [line for line in text.splitlines() if ".hook." in line and line[0] != "#"]
    assert imported.unknown == []
    assert len(config.rules) + imported.skipped == len(written)
    assert printed.count("\n# hook.") == imported.skipped
    assert {"client.connected", "client.disconnected", "message.publish"} <= {
        rule.on for rule in config.rules
    }


def test_what_the_files_look_up_in_the_store_is_looked_up(tmp_path: Path) -> None:
    imported, config, _ = converted(CASSANDRA, tmp_path)
    assert imported.skipped == 0
    found = {(rule.on, rule.topic, rule.action) for rule in config.rules}
    assert ("client.connected", None, "on_subscribe_lookup") in found
    assert ("session.subscribed", "#", "on_retain_lookup") in found
    assert ("session.subscribed", "#", "on_message_fetch") in found
    (feed,) = rules.feeds_of(config)
    assert feed.proxying is not None and feed.proxying.asks == "always"
    assert [each.kind for each in feed.fetches] == [PUBSUB, RETAIN]


def test_what_a_pool_says_is_carried_over(tmp_path: Path) -> None:
    (backend,) = converted(CASSANDRA, tmp_path)[1].backends
    assert (backend.servers, backend.keyspace) == (("127.0.0.1:9042",), "mqtt")
    assert (backend.username, backend.password) == ("cassandra", "cassandra")
    (backend,) = converted(DYNAMODB, tmp_path)[1].backends
    assert (backend.region, backend.endpoint) == ("us-west-2", "http://localhost:8000")
    assert (backend.access_key_id, backend.secret_access_key) == ("AKIAEXAMPLE", "secret/of+nobody")
    printed = converted(CASSANDRA, tmp_path)[2]
    for key in ("auto_reconnect = 1", "logger = info"):
        assert f"# {key} is not needed" in printed


def test_the_size_of_a_pool_is_kept_where_it_means_something(tmp_path: Path) -> None:
    assert converted(CASSANDRA, tmp_path)[1].backends[0].connections == 8
    _, config, printed = converted(DYNAMODB, tmp_path)
    assert config.backends[0].connections == 1
    assert "# pool_size = 8 is not needed: a transaction moves the cursor as well" in printed
    assert "exact = false" in printed
    size = "backend.redis.pool1.pool_size = 8\n"
    _, config, printed = converted(REDIS + size, tmp_path)
    assert config.backends[0].connections == 1
    assert "# pool_size = 8 is not needed: the script that applies a batch" in printed
    _, config, printed = converted(CASSANDRA.replace("size = 8", "size = 1000"), tmp_path)
    assert config.backends[0].connections == 64
    assert "# not imported: imported: backends.pool1.connections = 1000: expected" in printed


@pytest.mark.parametrize(("written", "kept"), [("told", "told"), ("", "mqtt_channel")])
def test_the_channel_of_a_pool_is_kept(written: str, kept: str, tmp_path: Path) -> None:
    text = f"{REDIS}backend.redis.pool1.channel = {written}\n"
    imported, config, printed = converted(text, tmp_path)
    assert (config.backends[0].channel, imported.unknown) == (kept, [])
    assert "channel" not in "".join(line for line in printed.splitlines() if line[:1] == "#")
    assert converted(REDIS, tmp_path)[1].backends[0].channel is None
    _, config, printed = converted(CASSANDRA + "backend.ecql.pool1.channel = told\n", tmp_path)
    assert '# channel = "told" has no counterpart' in printed


def test_all_messages_come_without_a_limit_of_their_number(tmp_path: Path) -> None:
    text = CASSANDRA.replace("max_returned_count = 500", "max_returned_count = infinity")
    _, config, printed = converted(
        text.replace("time_range = 2h", "time_range = infinity"), tmp_path
    )
    assert (config.backends[0].max_returned_count, config.backends[0].time_range_ms) == (500, 0)
    assert "# max_returned_count = infinity is not needed: all come, a page at a time" in printed
    (fetching,) = [rule for rule in config.rules if rule.action == "on_message_fetch"]
    assert fetching.max_returned_count == 500


def test_sentinels_and_times_are_carried_over(tmp_path: Path) -> None:
    text = (
        "backend.redis.Big-Pool.type = sentinel\nbackend.redis.Big-Pool.server = a:1,b\n"
        "backend.redis.Big-Pool.sentinel = main\nbackend.redis.Big-Pool.database = 3\n"
        'backend.redis.Big-Pool.password = a"b\\c\nbackend.redis.msg.expired_after = 3600\n'
    )
    told = {"topic": "a/#", "action": {"commands": ["SET ${clientid} 1"]}, "pool": "Big-Pool"}
    stored = {**told, "action": {"function": "on_message_publish"}, "expired_time": 60}
    text += hook("message.publish.2", told) + hook("message.publish.1", stored)
    _, config, _ = converted(text, tmp_path)
    (backend,) = config.backends
    assert (backend.name, backend.mode, backend.sentinel_name) == ("big_pool", "sentinel", "main")
    assert (backend.servers, backend.database) == (("a:1", "b:6379"), 3)
    assert (backend.password, backend.expires_s) == ('a"b\\c', 3600)
    first, second = config.rules
    assert (first.action, first.expires_s, first.topic) == ("on_message_publish", 60, "a/#")
    assert second.commands == ("SET ${clientid} 1",)


@pytest.mark.parametrize(
    "line",
    [
        "backend.mysql.pool1.server = 127.0.0.1:3306",
        "backend.redis.pool1.colour = blue",
        "backend.redis.colour = blue",
        "listener.tcp.external = 1883",
        "no key at all",
    ],
)
def test_a_line_that_is_not_understood_is_named(line: str, tmp_path: Path) -> None:
    imported, _, printed = converted(REDIS + line + "\n", tmp_path)
    number = len(REDIS.splitlines()) + 1
    assert imported.unknown == [f"line {number}: {line}"]
    assert f"# not understood, line {number}: {line}\n" in printed


@pytest.mark.parametrize(
    ("told", "why"),
    [
        ({"action": {"function": "on_client_connected"}, "pool": "other"}, "no pool 'other'"),
        ({"action": {"function": "on_nothing"}, "pool": "pool1"}, "on_nothing"),
        ({"action": {"function": ["x"]}, "pool": "pool1"}, "expected a name"),
        ({"action": {"sql": ["x"]}, "pool": "pool1"}, "an action with 'sql'"),
        ({"action": {"commands": ["BLPOP ${clientid} 0"]}, "pool": "pool1"}, "BLPOP"),
        ({"action": {"commands": ["GET ${nothing}"]}, "pool": "pool1"}, "nothing"),
        ({"pool": "pool1"}, "expected JSON with an action"),
        ([], "expected JSON with an action"),
    ],
)
def test_a_rule_that_cannot_be_carried_out_is_a_comment(
    told: Any, why: str, tmp_path: Path
) -> None:
    text = "backend.redis.pool1.server = 127.0.0.1:6379\n" + hook("client.connected.1", told)
    imported, config, printed = converted(text, tmp_path)
    assert (imported.skipped, config.rules) == (1, [])
    (reason,) = [line for line in printed.splitlines() if line.startswith("# not imported")]
    assert why in reason


def test_a_backend_that_cannot_be_takes_its_rules_along(tmp_path: Path) -> None:
    imported, config, printed = converted(REDIS + "backend.redis.pool1.type = other", tmp_path)
    assert (config.backends, config.rules, imported.skipped) == ([], [], 8)
    assert "# not imported: there is no mode 'other'\n# [backends.pool1]" in printed


@pytest.mark.parametrize(
    ("mode", "channel"),
    [("single", "mqtt_channel"), ("sentinel", "mqtt_channel"), ("cluster", None)],
)
def test_the_channel_of_a_pool_is_carried_over(
    mode: str, channel: str | None, tmp_path: Path
) -> None:
    text = f"backend.redis.p.server = a:1\nbackend.redis.p.type = {mode}\n"
    text += "backend.redis.p.channel = mqtt_channel\n"
    text += "backend.redis.p.sentinel = main\n" if mode == "sentinel" else ""
    _, config, printed = converted(text, tmp_path)
    (backend,) = config.backends
    assert (backend.mode, backend.channel) == (mode, channel)
    assert ("channel = mqtt_channel has no counterpart" in printed) is (channel is None)


def test_rules_for_the_newest_message_of_a_topic_are_carried_over(tmp_path: Path) -> None:
    told = {"topic": "state/#", "pool": "pool1"}
    text = "backend.redis.pool1.server = a:1\n"
    for on, what in (
        ("session.subscribed", "fetch_for"),
        ("message.publish", "store"),
        ("message.acked", "acked_for"),
    ):
        text += hook(f"{on}.1", {**told, "action": {"function": f"on_message_{what}_keep_latest"}})
    listed = {"topic": "#", "pool": "pool1", "action": {"function": "on_message_publish"}}
    imported, config, printed = converted(text + hook("message.publish.2", listed), tmp_path)
    assert [rule.action for rule in config.rules] == [
        "on_message_fetch_for_keep_latest",
        "on_message_store_keep_latest",
        "on_message_acked_for_keep_latest",
    ]
    assert imported.skipped == 1 and "rules[2] has on_message_store_keep_latest" in printed


def test_values_of_a_file_are_never_more_than_a_value(tmp_path: Path) -> None:
    odd = 'backend.redis.pool1.colour = \u2028[rules]\nbackend.redis.pool1.username = \u00e4"]\n'
    _, config, _ = converted(REDIS + odd, tmp_path)
    assert config.backends[0].username == '\u00e4"]'


@pytest.mark.parametrize("type", ["cassa", "dynamo", "redis"])
def test_who_stores_messages_of_every_qos_does_so_here(type: str, tmp_path: Path) -> None:
    text = {"cassa": CASSANDRA, "dynamo": DYNAMODB, "redis": REDIS}[type]
    told = {"topic": "a/#", "action": {"function": "on_message_store"}, "pool": "pool1"}
    _, config, _ = converted(text + hook("message.publish.9", told, type), tmp_path)
    (rule,) = [rule for rule in config.rules if rule.action == "on_message_store"]
    assert (rule.on, rule.topic, rule.backend) == ("message.publish", "a/#", "pool1")
    assert rules.feeds_of(config)[0].qos0 == ("a/#",)

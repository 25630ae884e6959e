"""Rules: what cannot be carried out, what the engine is asked for, and what the process is told."""

import json

import pytest

from broker.backends import rules
from broker.backends.actions import ACTIONS, HOOKS
from broker.configuration.config import Config, ConfigError
from broker.configuration.load import load
from storage.tables import feed_rows
from storage.tables.fetch_rows import PUBSUB, QUEUE, RETAIN

CACHE = '[backends.cache]\nservers = "a:1"\nexpires = "1d"\nnode = "emqx@127.0.0.1"\n'
TWO = CACHE + '[backends.other]\nservers = "b:1"\nrewind_keep = "1h"\n'


def config(tmp_path, text: str) -> Config:  # type: ignore[no-untyped-def]
    path = tmp_path / "holdfast.toml"
    path.write_text(text)
    return load(str(path), environment={})


def rule(on: str, *, topic: str | None = "#", backend: str = "cache", **more: str) -> str:
    lines = [f'on = "{on}"', f'backend = "{backend}"']
    if topic is not None:
        lines.append(f'topic = "{topic}"')
    lines += [f'{key} = "{value}"' for key, value in more.items()]
    return "[[rules]]\n" + "\n".join(lines) + "\n"


STORED = rule("message.publish", action="on_message_publish")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (rule("message.published", action="a"), ["on = 'message.published'", "message.publish?"]),
        (rule("message.deliver", action="a"), ["on = 'message.deliver'", "message.delivered"]),
        (rule("message.delivered", action="a"), ["action = 'a'", "one of"]),
        (rule("message.publish", topic=None, action="a"), ["topic is missing", "'#' for all"]),
        (rule("client.connected", action="on_client_connected"), ["topic = '#'", "has no topic"]),
        (rule("message.publish", action="on_mesage_publish"), ["did you mean on_message_publish?"]),
        (
            rule("client.connected", topic=None, action="on_message_publish"),
            ["it is for message.publish; for client.connected expected on_client_connected"],
        ),
        (rule("message.publish", commands="SET a ${client}"), ["number 1", "${clientid}"]),
        (rule("message.publish", commands="MULTI"), ["commands, number 1: 'MULTI': expected"]),
        (
            rule("message.acked", action="on_message_acked_for_queue", expires="1h"),
            ["expires has no meaning"],
        ),
        (rule("message.publish", commands="SET a b", expires="1h"), ["expires has no meaning"]),
        (
            rule("message.acked", commands="SET a b") + "qos0 = true\n",
            ["qos0 has no meaning for message.acked: expected message.publish"],
        ),
        (
            rule("message.publish", action="on_message_publish") + "qos0 = true\n",
            ["qos0 has no meaning with an action: on_message_store is"],
        ),
    ],
)
def test_a_rule_that_cannot_be_carried_out_is_one_line(  # type: ignore[no-untyped-def]
    tmp_path, text: str, words: list[str]
) -> None:
    loaded = config(tmp_path, CACHE + text)
    with pytest.raises(ConfigError) as caught:
        rules.check(loaded)
    complaint = str(caught.value)
    assert complaint.startswith(f"file {tmp_path}/holdfast.toml: rules[1].")
    assert "\n" not in complaint
    for word in words:
        assert word in complaint, complaint


LATEST = rule("message.publish", topic="state/#", action="on_message_store_keep_latest")


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (LATEST, STORED),
        (STORED, LATEST),
        (LATEST, rule("message.acked", topic="+/1", action="on_message_acked_for_queue")),
        (LATEST, rule("session.subscribed", topic="state", action="on_message_fetch_for_queue")),
    ],
)
def test_a_topic_keeps_its_newest_message_or_a_list(  # type: ignore[no-untyped-def]
    tmp_path, first: str, second: str
) -> None:
    with pytest.raises(
        ConfigError, match=r"rules\[2\]\.action = .*: rules\[1\] has .*expected other"
    ):
        rules.check(config(tmp_path, TWO + first + second))
    rules.check(config(tmp_path, TWO + first + second.replace('"cache"', '"other"')))


def test_other_topics_may_have_lists(tmp_path) -> None:  # type: ignore[no-untyped-def]
    listed = rule("message.publish", topic="queue/#", action="on_message_publish")
    found = config(tmp_path, CACHE + LATEST + listed)
    rules.check(found)
    (feed,) = rules.feeds_of(found)
    assert feed.filters == ("state/#", "queue/#")


OTHERS = {
    "cassandra": 'servers = "a:1"',
    "dynamodb": "",
    "kafka": 'servers = "a:1"\ntopic = "t"',
    "webhook": 'url = "https://a/"',
}


@pytest.mark.parametrize(
    ("type", "text", "said"),
    [
        ("cassandra", rule("message.publish", cql="INSERT ${nobody}"), "cql, number 1"),
        ("cassandra", rule("message.publish", cql="DROP TABLE a"), "INSERT, UPDATE, DELETE"),
        ("dynamodb", rule("message.publish", statements="x '${topic}'"), "statements, number 1"),
        ("dynamodb", rule("message.acked", action="on_message_acked_for_pubsub"), "did you mean"),
        ("kafka", rule("message.acked", action="on_message_acked"), "expected none: the row"),
    ],
)
def test_a_mistake_of_a_type_is_one_line(tmp_path, type: str, text: str, said: str) -> None:  # type: ignore[no-untyped-def]
    loaded = config(tmp_path, f'[backends.cache]\ntype = "{type}"\n{OTHERS[type]}\n{text}')
    with pytest.raises(ConfigError, match=said):
        rules.check(loaded)


def test_a_store_without_actions_is_told_of_what_the_hook_is(tmp_path) -> None:  # type: ignore[no-untyped-def]
    text = f'[backends.cache]\ntype = "webhook"\n{OTHERS["webhook"]}\n'
    loaded = config(tmp_path, text + rule("message.publish", topic="a/#"))
    rules.check(loaded)
    (feed,) = rules.feeds_of(loaded)
    assert feed.filters == ("a/#",)
    told = rules.configurations(loaded, "edge")["cache"]
    assert told["rules"][0]["commands"] == []
    assert "servers" not in told["options"]
    assert told["options"]["url"] == "https://a/"


def test_the_limit_of_what_waits_is_the_brokers_business(tmp_path) -> None:  # type: ignore[no-untyped-def]
    limit = 'backlog_bytes_max = "1GiB"\non_full = "reject"\n'
    loaded = config(
        tmp_path, CACHE + limit + rule("message.publish", topic="#", commands="SET a b")
    )
    rules.check(loaded)
    (feed,) = rules.feeds_of(loaded)
    assert (feed.backlog_bytes_max, feed.on_full) == (1 << 30, "reject")
    told = rules.configurations(loaded, "edge")["cache"]["options"]
    assert not {"backlog_bytes_max", "on_full"} & set(told)


@pytest.mark.parametrize("name", ACTIONS["redis"])
def test_every_action_may_be_asked_for_on_its_hook(tmp_path, name: str) -> None:  # type: ignore[no-untyped-def]
    action = ACTIONS["redis"][name]
    for hook in action.hooks:
        topic = "#" if HOOKS[hook].has_topic else None
        loaded = config(tmp_path, CACHE + rule(hook, topic=topic, action=name))
        rules.check(loaded)
        (feed,) = rules.feeds_of(loaded)
        assert feed.filters == (("#",) if action.messages else ())
        for kind in feed_rows.KINDS:
            wanted = kind in (*action.kinds, feed_rows.GAP)
            wanted |= kind == feed_rows.PUBLISHED and action.qos0
            assert bool(feed.kinds & 1 << kind) == wanted


@pytest.mark.parametrize(
    "on, more, asks, mirrors, bypasses",
    [
        ("client.connected", "", "always", False, False),
        ("session.created", "", "new", False, False),
        ("client.connected", 'sync = "mirror"\n', "always", True, False),
        ("client.connected", "bypass_acl = true\n", "always", False, True),
    ],
)
def test_a_rule_says_how_a_store_subscribes_clients(  # type: ignore[no-untyped-def]
    tmp_path, on: str, more: str, asks: str, mirrors: bool, bypasses: bool
) -> None:
    loaded = config(tmp_path, CACHE + rule(on, topic=None, action="on_subscribe_lookup") + more)
    rules.check(loaded)
    (feed,) = rules.feeds_of(loaded)
    found = feed.proxying
    assert found is not None and feed.is_asked and not feed.fetches
    assert (found.asks, found.mirrors, found.bypasses_policy) == (asks, mirrors, bypasses)


@pytest.mark.parametrize("type", ["redis", "cassandra", "dynamodb"])
def test_the_other_name_of_a_lookup_is_as_good(tmp_path, type: str) -> None:  # type: ignore[no-untyped-def]
    text = f'[backends.cache]\ntype = "{type}"\n'
    text += "" if type == "dynamodb" else 'servers = "a:1"\n'
    text += rule("client.connected", topic=None, action="on_subscription_lookup")
    loaded = config(tmp_path, text + 'sync = "mirror"\n')
    rules.check(loaded)
    (feed,) = rules.feeds_of(loaded)
    assert feed.proxying is not None and feed.proxying.mirrors
    (told,) = rules.configurations(loaded, "edge")["cache"]["rules"]
    assert told["action"] == "on_subscribe_lookup"


@pytest.mark.parametrize(
    "more, wait_ms, is_required",
    [
        ("", 0, False),
        ('wait = "2s"\n', 2_000, False),
        ('wait = "60s"\nrequired = true\n', 60_000, True),
    ],
)
def test_a_rule_says_whether_clients_wait_for_their_list(  # type: ignore[no-untyped-def]
    tmp_path, more: str, wait_ms: int, is_required: bool
) -> None:
    text = rule("client.connected", topic=None, action="on_subscribe_lookup") + more
    loaded = config(tmp_path, CACHE + text)
    rules.check(loaded)
    (feed,) = rules.feeds_of(loaded)
    assert feed.proxying is not None
    assert (feed.proxying.wait_ms, feed.proxying.is_required) == (wait_ms, is_required)


@pytest.mark.parametrize(
    "more, why",
    [
        ("required = true\n", "rules[1].required needs rules[1].wait as well"),
        ('wait = "61s"\n', "rules[1].wait = '61s': expected a duration"),
        ("wait = 2\n", "rules[1].wait = 2: expected a duration"),
    ],
)
def test_a_wrong_wait_is_refused(tmp_path, more: str, why: str) -> None:  # type: ignore[no-untyped-def]
    text = rule("client.connected", topic=None, action="on_subscribe_lookup") + more
    with pytest.raises(ConfigError) as error:
        rules.check(config(tmp_path, CACHE + text))
    assert why in str(error.value)


@pytest.mark.parametrize("key", ["channel", "stream"])
def test_a_store_that_only_tells_of_changes_needs_no_rule(tmp_path, key: str) -> None:  # type: ignore[no-untyped-def]
    assert rules.feeds_of(config(tmp_path, CACHE)) == ()
    loaded = config(tmp_path, CACHE + f'{key} = "c"\n')
    rules.check(loaded)
    (feed,) = rules.feeds_of(loaded)
    assert feed.proxying is not None and feed.filters == () and not feed.has_events
    assert rules.configurations(loaded, "edge")["cache"]["rules"] == []


@pytest.mark.parametrize("key", ["channel", "stream"])
def test_a_store_that_tells_of_changes_is_not_asked(tmp_path, key: str) -> None:  # type: ignore[no-untyped-def]
    loaded = config(tmp_path, CACHE + f'{key} = "c"\n' + STORED)
    rules.check(loaded)
    (feed,) = rules.feeds_of(loaded)
    assert feed.proxying is not None and feed.proxying.asks == "never"
    assert rules.configurations(loaded, "edge")["cache"]["options"][key] == "c"


@pytest.mark.parametrize(
    "text, why",
    [
        (
            rule("session.created", topic=None, commands="SET a b"),
            "rules[1].on = 'session.created': expected an action, such as on_subscribe_lookup",
        ),
        (
            rule("client.connected", topic=None, action="on_client_connected")
            + 'sync = "mirror"\n',
            "rules[1].sync and bypass_acl have no meaning where no subscriptions are looked up",
        ),
        (
            rule("client.connected", topic=None, action="on_client_connected") + 'wait = "1s"\n',
            "rules[1].wait and required have no meaning where no subscriptions are looked up",
        ),
        (
            rule("client.connected", topic=None, action="on_subscribe_lookup")
            + rule("session.created", topic=None, action="on_subscribe_lookup"),
            "rules[2].action = 'on_subscribe_lookup': expected one rule of a backend with it, "
            "there is rules[1]",
        ),
        (
            rule("client.connected", topic=None, action="on_subscription_lookup")
            + rule("session.created", topic=None, action="on_subscribe_lookup"),
            "rules[2].action = 'on_subscribe_lookup': expected one rule of a backend with it, "
            "there is rules[1]",
        ),
        (
            rule("client.connected", topic=None, action="on_subscribtion_lookup"),
            "did you mean on_subscribe_lookup?",
        ),
    ],
)
def test_a_wrong_look_up_of_subscriptions_is_refused(tmp_path, text: str, why: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ConfigError) as error:
        rules.check(config(tmp_path, CACHE + text))
    assert why in str(error.value)


@pytest.mark.parametrize("name", [name for name, hook in HOOKS.items() if hook.parameters])
def test_commands_are_told_of_what_their_hook_is(tmp_path, name: str) -> None:  # type: ignore[no-untyped-def]
    hook = HOOKS[name]
    text = rule(name, topic="a/+" if hook.has_topic else None, commands="SET a ${clientid}")
    loaded = config(tmp_path, CACHE + text)
    rules.check(loaded)
    (feed,) = rules.feeds_of(loaded)
    assert feed.filters == (("a/+",) if hook.messages else ())
    kinds = [kind for kind in feed_rows.KINDS if feed.kinds & 1 << kind]
    assert kinds == sorted((*hook.kinds, feed_rows.GAP))


def test_what_is_fetched_is_told_with_its_limits(tmp_path) -> None:  # type: ignore[no-untyped-def]
    text = CACHE + 'max_returned_count = 20\ntime_range = "1h"\n'
    text += rule("session.subscribed", topic="q/#", action="on_message_fetch_for_queue")
    text += rule("session.subscribed", topic="p/#", action="on_message_fetch_for_pubsub")
    text += 'max_returned_count = 5\ntime_range = "1m"\n'
    loaded = config(tmp_path, text)
    rules.check(loaded)
    (feed,) = rules.feeds_of(loaded)
    assert [
        (each.kind, each.topic_filter, each.count_max, each.range_ms) for each in feed.fetches
    ] == [(QUEUE, "q/#", 20, 3_600_000), (PUBSUB, "p/#", 5, 60_000)]
    told = rules.configurations(loaded, "edge")["cache"]
    assert "max_returned_count" not in told["options"]
    wrong = config(tmp_path, CACHE + STORED + "max_returned_count = 5\n")
    with pytest.raises(ConfigError, match="where no messages are fetched"):
        rules.check(wrong)


def test_a_retained_message_that_is_looked_up_is_one(tmp_path) -> None:  # type: ignore[no-untyped-def]
    text = CACHE + rule("session.subscribed", topic="r/#", action="on_retain_lookup")
    loaded = config(tmp_path, text)
    rules.check(loaded)
    (feed,) = rules.feeds_of(loaded)
    assert [(each.kind, each.topic_filter) for each in feed.fetches] == [(RETAIN, "r/#")]
    with pytest.raises(ConfigError, match="where no messages are fetched"):
        rules.check(config(tmp_path, text + "max_returned_count = 5\n"))


def test_each_backend_is_told_of_its_own_rules_alone(tmp_path) -> None:  # type: ignore[no-untyped-def]
    loaded = config(
        tmp_path,
        TWO
        + STORED
        + rule("message.publish", topic="a/#", action="on_message_retain")
        + rule("message.publish", topic="b/#", backend="other", commands="SET a b"),
    )
    rules.check(loaded)
    first, second = rules.feeds_of(loaded)
    assert (first.name, first.filters, first.keep_ms) == ("cache", ("#",), 900_000)
    assert first.kinds == 1 << feed_rows.RETAINED | 1 << feed_rows.GAP
    assert (second.name, second.filters, second.keep_ms) == ("other", ("b/#",), 3_600_000)
    told = rules.configurations(loaded, "edge")
    assert json.loads(json.dumps(told)) == {
        "cache": {**told["cache"], "options": {**told["cache"]["options"], "servers": ["a:1"]}},
        "other": {**told["other"], "options": {**told["other"]["options"], "servers": ["b:1"]}},
    }
    assert told["cache"]["node"] == "emqx@127.0.0.1"
    assert told["other"]["node"] == "edge"
    assert told["cache"]["rules"] == [
        {"number": 1, "on": "message.publish", "topic": "#", "action": "on_message_publish",
         "expires_s": 86_400},
        {"number": 2, "on": "message.publish", "topic": "a/#", "action": "on_message_retain",
         "expires_s": 86_400},
    ]  # fmt: skip
    assert told["other"]["rules"] == [
        {"number": 3, "on": "message.publish", "topic": "b/#", "commands": ["SET a b"]}
    ]


def test_without_rules_nobody_is_told_anything(tmp_path) -> None:  # type: ignore[no-untyped-def]
    loaded = config(tmp_path, TWO)
    rules.check(loaded)
    assert rules.feeds_of(loaded) == ()
    assert rules.configurations(loaded, "edge") == {}


KAFKA = '[backends.log]\ntype = "kafka"\nservers = "a:1"\ntopic = "TOPIC"\n'
HOOK = '[backends.hook]\ntype = "webhook"\nurl = "http://a/"\n'


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            HOOK + rule("message.publish", backend="hook", action="on_message_publish"),
            ["rules[1].action = 'on_message_publish': expected none: the row itself"],
        ),
        (
            HOOK + rule("message.publish", backend="hook", commands="SET a b"),
            ["rules[1].commands has no meaning for the type webhook"],
        ),
        (
            HOOK + rule("message.publish", backend="hook", topic=None),
            ["rules[1].topic is missing"],
        ),
        (KAFKA.replace("TOPIC", "${x}"), ["backends.log.topic = '${x}'", "not ${x}"]),
        (
            KAFKA.replace("TOPIC", "${topic}")
            + rule("client.connected", topic=None, backend="log"),
            ["backends.log.topic", "client.connected has no ${topic}"],
        ),
    ],
)
def test_what_a_store_of_whole_rows_cannot_do_is_one_line(  # type: ignore[no-untyped-def]
    tmp_path, text: str, words: list[str]
) -> None:
    with pytest.raises(ConfigError) as caught:
        rules.check(config(tmp_path, text))
    for word in words:
        assert word in str(caught.value), str(caught.value)


def test_a_store_of_whole_rows_is_told_what_its_hooks_say(tmp_path) -> None:  # type: ignore[no-untyped-def]
    loaded = config(
        tmp_path,
        HOOK
        + rule("message.publish", topic="a/#", backend="hook")
        + rule("client.connected", topic=None, backend="hook"),
    )
    rules.check(loaded)
    (feed,) = rules.feeds_of(loaded)
    assert (feed.filters, feed.keep_ms) == (("a/#",), 0)
    assert feed.kinds == 1 << feed_rows.CONNECTED | 1 << feed_rows.GAP
    told = rules.configurations(loaded, "edge")["hook"]
    assert (told["type"], told["options"]["url"]) == ("webhook", "http://a/")
    assert "servers" not in told["options"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (CACHE + rule("message.publish", commands="SET ${clientid} ${username}"), True),
        (CACHE + rule("message.publish", commands="SET ${clientid} ${topic}"), False),
        (CACHE + rule("message.publish", action="on_message_publish"), False),
        (CACHE + rule("message.acked", commands="SET ${clientid} ${username}"), False),
        (HOOK + rule("message.publish", backend="hook"), True),
        (HOOK + rule("client.connected", topic=None, backend="hook"), False),
    ],
)
def test_user_names_of_publishers_are_kept_where_a_rule_says_them(  # type: ignore[no-untyped-def]
    tmp_path, text: str, expected: bool
) -> None:
    loaded = config(tmp_path, text)
    rules.check(loaded)
    (feed,) = rules.feeds_of(loaded)
    assert feed.usernames == expected


def test_rules_say_whose_messages_with_qos_0_a_store_gets(tmp_path) -> None:  # type: ignore[no-untyped-def]
    loaded = config(
        tmp_path,
        CACHE
        + '[backends.webhook]\ntype = "webhook"\nurl = "http://127.0.0.1:1/"\n'
        + rule("message.publish", topic="a/#", action="on_message_publish")
        + rule("message.publish", topic="b/#", action="on_message_store")
        + rule("message.publish", topic="c/#", commands="INCR seen")
        + rule("message.publish", topic="d/#", commands="INCR heard")
        + "qos0 = true\n"
        + rule("message.publish", topic="e/#", backend="webhook")
        + rule("message.publish", topic="f/#", backend="webhook")
        + "qos0 = true\n",
    )
    rules.check(loaded)
    feeds = {feed.name: feed for feed in rules.feeds_of(loaded)}
    assert feeds["cache"].filters == ("a/#", "b/#", "c/#", "d/#")
    assert feeds["cache"].qos0 == ("b/#", "d/#")
    assert (feeds["webhook"].filters, feeds["webhook"].qos0) == (("e/#", "f/#"), ("f/#",))
    told = rules.configurations(loaded, "edge")
    assert [each.get("qos0", False) for each in told["cache"]["rules"]] == [
        False, True, False, True,
    ]  # fmt: skip

"""Does the index of filters agree with the definition of matching, whatever comes and goes?"""

import random
from typing import cast

import pytest

from broker import routes as routes_module
from broker.connection import Connection
from broker.groups import Group
from broker.routes import Entry, Route, Routes
from mqtt.decoder import Decoder
from mqtt.topics import matches
from session.session import Session
from session.subscription import Subscription
from tests.broker.harness import Stream

TOPIC_LEVELS = ("", "a", "b", "ab", "$a", "c")


def subscription(
    topic_filter: str, qos: int = 0, identifier: int = 0, **options: bool
) -> Subscription:
    """Return a subscription that is not shared."""
    return Subscription(
        topic_filter,
        None,
        topic_filter,
        qos,
        options.get("no_local", False),
        options.get("retain_as_published", False),
        0,
        identifier,
        0,
        False,
    )


def somebody(version: int = 5) -> Connection:
    """Return a connection with a session."""
    connection = Connection(1, Stream(), Decoder("server", 0), 0, "tcp", "", None)
    connection.session = Session("c", "", 0)
    connection.session.protocol_version = version
    return connection


def join(routes: Routes, topic_filter: str, connection: Connection, **fields: int) -> Entry:
    """Subscribe a connection."""
    entry = routes.ensure(topic_filter)
    entry.live[connection] = subscription(topic_filter, **fields)
    routes.changed(entry)
    return entry


def leave(routes: Routes, topic_filter: str, connection: Connection) -> None:
    """Unsubscribe a connection."""
    entry = routes.find(topic_filter)
    assert entry is not None
    del entry.live[connection]
    routes.changed(entry)


def filters_of(route: Route) -> list[str]:
    """Return the filters of a route, sorted."""
    return sorted(entry.topic_filter for entry in route.entries)


def random_filter(source: random.Random) -> str:
    """Return a valid filter."""
    levels = [source.choice((*TOPIC_LEVELS[:5], "+", "+")) for _ in range(source.randint(1, 4))]
    if source.random() < 0.3:
        levels[-1] = "#"
    return "/".join(levels) or "+"


@pytest.mark.parametrize("seed", range(20))
def test_routes_are_exactly_the_filters_that_match(seed: int) -> None:
    source = random.Random(seed)
    routes = Routes()
    held: dict[str, Connection] = {}
    topics = [
        "/".join(source.choice(TOPIC_LEVELS) for _ in range(source.randint(1, 4))) or "a"
        for _ in range(30)
    ]
    for _ in range(150):
        name = random_filter(source)
        if name in held and source.random() < 0.7:
            leave(routes, name, held.pop(name))
        elif name not in held:
            held[name] = somebody()
            join(routes, name, held[name])
        topic = source.choice(topics)
        expected = sorted(f for f in held if matches(f, topic))
        route = routes.match(topic)
        assert filters_of(route) == expected
        assert {target.connection for target in route.targets} == {held[f] for f in expected}
    assert len(routes) == len(held)
    for name, connection in list(held.items()):
        leave(routes, name, connection)
    assert len(routes) == 0 and routes.entries() == []
    assert routes._root.is_empty()


def test_a_filter_without_anybody_is_forgotten() -> None:
    routes = Routes()
    connection = somebody()
    for name in ("a/b", "a/+", "a/#", "#", "+"):
        join(routes, name, connection)
        leave(routes, name, connection)
        assert routes.find(name) is None and len(routes) == 0
        assert routes.match("a/b").entries == []


def test_a_filter_with_an_offline_holder_or_a_group_stays() -> None:
    routes = Routes()
    entry = routes.ensure("a/+")
    entry.holders, entry.filter_id = 1, 7
    routes.changed(entry)
    assert routes.match("a/b").filter_ids == [7]
    entry.groups["g"] = group = cast(Group, object())
    entry.holders = 0
    routes.changed(entry)
    route = routes.match("a/b")
    assert route.filter_ids == [] and route.groups == [group]
    entry.groups.clear()
    routes.changed(entry)
    assert routes.find("a/+") is None


def test_each_stream_is_named_once_and_only_with_holders() -> None:
    routes = Routes()
    for number, name in enumerate(("a/b", "a/+", "#"), 1):
        entry = routes.ensure(name)
        entry.filter_id, entry.holders = number, number - 1
        routes.changed(entry)
    assert sorted(routes.match("a/b").filter_ids) == [2, 3]


def test_a_cached_route_sees_every_change() -> None:
    routes = Routes()
    first, second = somebody(), somebody()
    join(routes, "a", first, qos=1)
    assert [target.qos for target in routes.match("a").targets] == [1]
    join(routes, "a", first, qos=2)
    assert [target.qos for target in routes.match("a").targets] == [2]
    join(routes, "+", second)
    assert len(routes.match("a").targets) == 2
    leave(routes, "a", first)
    assert [target.connection for target in routes.match("a").targets] == [second]


def test_matching_subscriptions_of_one_session_are_merged() -> None:
    routes = Routes()
    connection = somebody()
    for name, qos, identifier, options in (
        ("a/b", 0, 3, {"retain_as_published": True}),
        ("a/+", 2, 3, {}),
        ("a/#", 1, 0, {"no_local": True}),
    ):
        entry = routes.ensure(name)
        entry.live[connection] = subscription(name, qos, identifier, **options)
        routes.changed(entry)
    (target,) = routes.match("a/b").targets
    assert (target.qos, target.identifiers) == (2, (3, 3))
    assert target.retain_as_published and target.no_local


def test_levels_and_reserved_topics_are_known() -> None:
    routes = Routes()
    assert [routes.match(topic).levels for topic in ("a", "/", "a/b/c")] == [1, 2, 3]
    assert routes.match("$SYS/x").is_reserved and not routes.match("a/$x").is_reserved


def test_the_deepest_topic_needs_no_deep_stack() -> None:
    routes = Routes()
    connection = somebody()
    deep = "/".join("a" * 32_768)
    join(routes, deep.replace("a", "+"), connection)
    join(routes, deep + "/#", connection)
    assert len(routes.match(deep).entries) == 2
    leave(routes, deep + "/#", connection)
    assert len(routes.match(deep).entries) == 1


def test_long_topics_are_matched_but_not_kept() -> None:
    routes = Routes()
    join(routes, "t/#", somebody())
    for number in range(10):
        assert len(routes.match(f"t/{number}/" + "x" * 60_000).targets) == 1
    assert not routes._cache


def test_the_cache_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routes_module, "ROUTES_MAX", 10)
    routes = Routes()
    join(routes, "t/#", somebody())
    for number in range(100):
        assert len(routes.match(f"t/{number}").targets) == 1
    assert len(routes._cache) <= 10

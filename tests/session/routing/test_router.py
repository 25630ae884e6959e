"""Does the index of filters agree with the definition of matching, whatever comes and goes?"""

import random
from typing import cast

import pytest

from mqtt.decoder import Decoder
from mqtt.topics import matches
from session.live.connection import Connection
from session.live.subscribers import FilterEntry, Group
from session.live.tick import Tick
from session.routing import router as routes_module
from session.routing.filter_index import TopicFilterIndex
from session.routing.router import Route, Router
from session.state.session import Session
from session.state.subscription import Subscription
from tests.session.harness import Stream

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


def join(routes: Router, topic_filter: str, connection: Connection, qos: int = 0) -> FilterEntry:
    """Subscribe a connection."""
    entry = routes.ensure(topic_filter)
    entry.join(connection, subscription(topic_filter, qos))
    routes.changed(entry)
    return entry


def leave(routes: Router, topic_filter: str, connection: Connection) -> None:
    """Unsubscribe a connection."""
    entry = routes.find(topic_filter)
    assert entry is not None
    entry.leave(connection)
    routes.changed(entry)


def hold(routes: Router, topic_filter: str, filter_id: int, more: int) -> None:
    """Let `more` offline sessions hold a filter, or fewer."""
    entry = routes.ensure(topic_filter)
    entry.holders += more
    entry.filter_id = filter_id if entry.holders else 0
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


class Model:
    """What routes must say, by the definition of matching and nothing else."""

    def __init__(self, source: random.Random) -> None:
        self.source = source
        self.routes = Router(Tick(0), TopicFilterIndex())
        self.live: dict[str, list[Connection]] = {}
        self.holders: dict[str, int] = {}
        self.ids: dict[str, int] = {}
        self.filters = [random_filter(source) for _ in range(30)]
        self.topics = [
            "/".join(source.choice(TOPIC_LEVELS) for _ in range(source.randint(1, 4))) or "a"
            for _ in range(30)
        ]

    def change(self) -> None:
        """Let somebody come or go, online or offline."""
        source, routes = self.source, self.routes
        name = source.choice(self.filters)
        live = self.live.setdefault(name, [])
        step = source.randrange(4)
        if step == 0:
            live.append(somebody())
            join(routes, name, live[-1])
        elif step == 1 and live:
            leave(routes, name, live.pop())
        elif step == 2:
            if not self.holders.get(name):
                self.ids[name] = len(self.ids) * 1000 + source.randrange(1, 1000)
            self.holders[name] = self.holders.get(name, 0) + 1
            hold(routes, name, self.ids[name], 1)
        elif step == 3 and self.holders.get(name):
            self.holders[name] -= 1
            hold(routes, name, self.ids[name], -1)

    def check(self, topic: str) -> None:
        """Compare one route."""
        route = self.routes.match(topic)
        matching = [name for name in dict.fromkeys(self.filters) if matches(name, topic)]
        owed = [self.ids[name] for name in matching if self.holders.get(name)]
        there = [name for name in matching if self.live.get(name) or self.holders.get(name)]
        assert filters_of(route) == sorted(there)
        assert sorted(route.filter_ids) == sorted(owed)
        online = [connection for name in matching for connection in self.live.get(name, [])]
        assert len(route.targets) == len(online)
        assert {target.connection for target in route.targets} == set(online)

    def restart(self) -> None:
        """Begin again with what the store has: what offline sessions hold."""
        self.routes = Router(Tick(0), TopicFilterIndex())
        self.live.clear()
        for name, holders in self.holders.items():
            if holders:
                self.routes._filters.add(FilterEntry(name, self.ids[name], holders))

    def check_all(self) -> None:
        """Compare everything there is to ask."""
        for name in self.filters:
            held = self.holders.get(name, 0)
            assert self.routes.filter_id(name) == (self.ids[name] if held else 0)
        there = [n for n in set(self.filters) if self.live.get(n) or self.holders.get(n)]
        assert len(self.routes) == len(there)
        for topic in self.topics:
            self.check(topic)


@pytest.mark.parametrize("seed", range(30))
def test_routes_are_what_the_definition_says_whatever_comes_and_goes(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = random.Random(seed)
    if seed % 3 == 0:  # so small that routes are evicted, and that beginnings are forgotten
        monkeypatch.setattr(routes_module, "ROUTES_MAX", 8)
        monkeypatch.setattr(routes_module, "ROUTES_EVICTED", 3)
        monkeypatch.setattr(routes_module, "ADMITTED_EVERY", source.choice((1, 1, 3)))
        monkeypatch.setattr(routes_module, "STAMPS_MAX", 4)
    if seed % 3 == 1:
        monkeypatch.setattr(routes_module, "TOPIC_CACHED_MAX", source.choice((0, 1, 3)))
    model = Model(source)
    for _ in range(8):
        for _ in range(source.choice((5, 60))):
            model.change()
            for _ in range(source.randrange(3)):
                model.check(source.choice(model.topics))
        model.check_all()
        if source.random() < 0.3:
            model.restart()


@pytest.mark.parametrize("seed", range(20))
def test_routes_are_exactly_the_filters_that_match(seed: int) -> None:
    source = random.Random(seed)
    routes = Router(Tick(0), TopicFilterIndex())
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
    assert len(routes) == 0
    assert all(routes.match(topic).entries == [] for topic in topics)


def test_a_filter_without_anybody_is_forgotten() -> None:
    routes = Router(Tick(0), TopicFilterIndex())
    connection = somebody()
    for name in ("a/b", "a/+", "a/#", "#", "+"):
        join(routes, name, connection)
        leave(routes, name, connection)
        assert routes.find(name) is None and len(routes) == 0
        assert routes.match("a/b").entries == []


def test_a_filter_with_an_offline_holder_or_a_group_stays() -> None:
    routes = Router(Tick(0), TopicFilterIndex())
    hold(routes, "a/+", 7, 1)
    assert routes.match("a/b").filter_ids == [7]
    entry = routes.ensure("a/+")
    group = cast(Group, object())
    entry.groups = {"g": group}
    entry.holders = 0
    routes.changed(entry)
    route = routes.match("a/b")
    assert route.filter_ids == [] and route.groups == [group]
    entry.groups.clear()
    routes.changed(entry)
    assert routes.find("a/+") is None


def test_each_stream_is_named_once_and_only_with_holders() -> None:
    routes = Router(Tick(0), TopicFilterIndex())
    for number, name in enumerate(("a/b", "a/+", "#"), 1):
        entry = routes.ensure(name)
        entry.filter_id, entry.holders = number, number - 1
        routes.changed(entry)
    assert sorted(routes.match("a/b").filter_ids) == [2, 3]


def test_a_cached_route_sees_every_change() -> None:
    routes = Router(Tick(0), TopicFilterIndex())
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
    routes = Router(Tick(0), TopicFilterIndex())
    connection = somebody()
    for name, qos, identifier, options in (
        ("a/b", 0, 3, {"retain_as_published": True}),
        ("a/+", 2, 3, {}),
        ("a/#", 1, 0, {"no_local": True}),
    ):
        entry = routes.ensure(name)
        entry.join(connection, subscription(name, qos, identifier, **options))
        routes.changed(entry)
    (target,) = routes.match("a/b").targets
    assert (target.qos, target.identifiers) == (2, (3, 3))
    assert target.retain_as_published and target.no_local


def test_levels_and_reserved_topics_are_known() -> None:
    routes = Router(Tick(0), TopicFilterIndex())
    assert [routes.match(topic).levels for topic in ("a", "/", "a/b/c")] == [1, 2, 3]
    assert routes.match("$SYS/x").is_reserved and not routes.match("a/$x").is_reserved


def test_the_deepest_topic_needs_no_deep_stack() -> None:
    routes = Router(Tick(0), TopicFilterIndex())
    connection = somebody()
    deep = "/".join("a" * 32_768)
    join(routes, deep.replace("a", "+"), connection)
    join(routes, deep + "/#", connection)
    assert len(routes.match(deep).entries) == 2
    leave(routes, deep + "/#", connection)
    assert len(routes.match(deep).entries) == 1


def test_long_topics_are_matched_but_not_kept() -> None:
    routes = Router(Tick(0), TopicFilterIndex())
    join(routes, "t/#", somebody())
    for number in range(10):
        assert len(routes.match(f"t/{number}/" + "x" * 60_000).targets) == 1
    assert not routes._cache


def test_the_cache_is_bounded() -> None:
    routes = Router(Tick(0), TopicFilterIndex())
    routes.routes_max = 10
    routes.admitted_every = 1
    join(routes, "t/#", somebody())
    for number in range(100):
        assert len(routes.match(f"t/{number}").targets) == 1
        assert f"t/{number}" in routes._cache
        assert len(routes._cache) <= 10


def test_a_full_cache_keeps_a_topic_that_comes_again_and_again() -> None:
    routes = Router(Tick(0), TopicFilterIndex())
    join(routes, "t/#", somebody())
    for number in range(routes_module.ROUTES_MAX - routes_module.ROUTES_EVICTED):
        routes.match(f"t/{number}")
    kept = len(routes._cache)
    for number in range(10 * routes_module.ADMITTED_EVERY):
        assert len(routes.match(f"new/{number}").targets) == 0
    assert len(routes._cache) == kept + 10
    for _ in range(routes_module.ADMITTED_EVERY):
        assert len(routes.match("t/often").targets) == 1
    assert "t/often" in routes._cache
    assert routes.match("t/often") is routes.match("t/often")


def test_a_route_that_is_not_kept_leaves_its_filters_at_rest() -> None:
    routes = Router(Tick(0), TopicFilterIndex())
    routes.routes_max = 1
    routes.admitted_every = 3
    routes._filters.lay("t", 1)
    routes._filters.lay("t/#", 2)
    for _ in range(2):
        assert sorted(routes.match("t").filter_ids) == [1, 2]
        assert all(resting(routes).values())
    assert sorted(routes.match("t").filter_ids) == [1, 2]
    assert not any(resting(routes).values())


def test_a_filter_that_one_offline_session_holds_rests_when_no_route_needs_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A million of them cost their text and a number each, whatever was published meanwhile."""
    monkeypatch.setattr(routes_module, "ROUTES_MAX", 4)
    monkeypatch.setattr(routes_module, "ADMITTED_EVERY", 1)
    routes = Router(Tick(0), TopicFilterIndex())
    for number in range(1, 11):
        routes._filters.lay(f"t/{number}", number)
        routes._filters.lay(f"t/{number}/#", number + 100)
    for number in range(1, 11):
        assert sorted(routes.match(f"t/{number}").filter_ids) == [number, number + 100]
    awake = [name for name in resting(routes) if not resting(routes)[name]]
    assert len(awake) <= 8
    connection = somebody()
    join(routes, "t/1", connection)
    assert not resting(routes)["t/1"]
    assert [target.connection for target in routes.match("t/1").targets] == [connection]
    leave(routes, "t/1", connection)
    for number in range(4):
        routes.match(f"other/{number}")
    assert all(resting(routes).values())


def resting(routes: Router) -> dict[str, bool]:
    """Return for every filter whether it rests."""
    filters = routes._filters
    places = [filters._exact, *[shape.filters for shape in filters._shapes.values()]]
    return {name: isinstance(found, int) for place in places for name, found in place.items()}


def test_what_others_subscribe_to_leaves_a_route_as_it_is() -> None:
    """A storm of subscriptions must not make every publish look for its receivers again."""
    routes = Router(Tick(0), TopicFilterIndex())
    connection = somebody()
    join(routes, "a/b/+", connection)
    route = routes.match("a/b/c")
    entries = route.entries
    for name in ("a/c/+", "x/#", "a/b/d", "a/bb/#", "+/x/y"):
        join(routes, name, somebody())
        assert routes.match("a/b/c") is route and route.entries is entries
    join(routes, "a/#", somebody())
    assert filters_of(routes.match("a/b/c")) == ["a/#", "a/b/+"]


def test_a_filter_whose_messages_with_qos_0_a_store_gets_never_rests() -> None:
    routes = Router(Tick(0), TopicFilterIndex())
    routes.routes_max = 4
    routes.admitted_every = 1
    for number in range(1, 11):
        routes._filters.lay(f"t/{number}", number)
        routes._filters.lay(f"t/{number}/#", number + 100)
    for topic_filter in ("t/1", "t/2/#"):
        entry = routes.ensure(topic_filter)
        entry.wants_qos0 = True
        routes.changed(entry)
    connection = somebody()
    join(routes, "t/1", connection)
    leave(routes, "t/1", connection)
    for number in range(3, 11):
        assert not routes.match(f"t/{number}").wants_qos0
    assert routes.match("t/1").wants_qos0 and routes.match("t/2/a/b").wants_qos0
    assert routes.match("t/2" + "/long" * 100).wants_qos0  # such a route is not kept
    assert not resting(routes)["t/1"] and not resting(routes)["t/2/#"]


def test_a_route_learns_that_a_store_gets_messages_with_qos_0() -> None:
    routes = Router(Tick(0), TopicFilterIndex())
    hold(routes, "t/#", 1, 2)
    route = routes.match("t/1")
    assert not route.wants_qos0
    entry = routes.ensure("t/#")
    entry.wants_qos0 = True
    routes.changed(entry)
    assert routes.match("t/1") is route and route.wants_qos0

"""Does a session get what its own subscriptions say, in bytes that fit, and only what it may?"""

from broker.security.authenticators import AllowAllPolicy
from mqtt.decoder import Decoder
from mqtt.message import Message
from session.counters import Counters
from session.delivery.context import DeliveryContext
from session.delivery.outgoing import Outgoing
from session.delivery.publish_bytes import EncodedPublish
from session.live.connection import Connection
from session.live.core import Core, Database
from session.live.tick import Tick
from session.routing.filter_index import TopicFilterIndex
from session.routing.router import Router
from session.settings import Settings
from session.state.session import Session
from session.state.subscription import Subscription
from storage.local.memory import MemoryStore
from storage.log.message_log import MessageLog
from storage.tables.tables import FAMILIES, Totals
from storage.tables.timers import Due
from tests.session.harness import Rules, Stream, idle_gate, untold_history


class Desk:
    """A outgoing and one connected session."""

    def __init__(self, rules: Rules | None = None) -> None:
        self.counters = Counters()
        self.routes = Router(Tick(0), TopicFilterIndex())
        settings, store = Settings(), MemoryStore(FAMILIES)
        tick, log = Tick(200), MessageLog(store)
        context = DeliveryContext(
            Core(tick, idle_gate(settings, self.counters), settings, self.counters),
            Database(store, log, Due(store), Totals(), 1),
            self.routes,
            rules or AllowAllPolicy(),
            untold_history(tick, log, settings, self.counters),
        )
        self.outgoing = Outgoing(context)
        self.connection = Connection(1, Stream(), Decoder("server", 0), 0, "tcp", "", None)
        self.session = self.connection.session = Session("c", "", 0)
        self.session.protocol_version = 5
        self.connection.version = 5

    def subscribe(self, topic_filter: str, qos: int, **options: int) -> None:
        fields = {"no_local": 0, "retain_as_published": 0, "identifier": 0, "since": 0} | options
        self.session.add(
            Subscription(
                topic_filter,
                None,
                topic_filter,
                qos,
                bool(fields["no_local"]),
                bool(fields["retain_as_published"]),
                0,
                fields["identifier"],
                fields["since"],
                False,
            )
        )
        entry = self.routes.ensure(topic_filter)
        entry.join(self.connection, self.session.subscriptions[topic_filter])
        self.routes.changed(entry)

    def parts(self, message: Message, qos: int) -> EncodedPublish | None:
        return self.outgoing.encode(
            self.connection, message, qos, (), {}, retain=False, at_once=False
        )


def message(topic: str = "a", qos: int = 1, publisher: str = "p", offset: int = 5) -> Message:
    return Message(topic, b"payload", qos, True, b"", publisher, 0, 0, offset)


def test_overlapping_subscriptions_give_one_message_at_the_highest_qos() -> None:
    desk = Desk()
    desk.subscribe("a", 1, identifier=7)
    desk.subscribe("#", 2, identifier=8, retain_as_published=1)
    found = desk.outgoing.options(desk.session, message(qos=2))
    assert found is not None
    qos, retain, identifiers = found
    assert (qos, retain, sorted(identifiers)) == (2, True, [7, 8])


def test_own_messages_older_ones_and_unwanted_ones_are_not_for_the_session() -> None:
    desk = Desk()
    desk.subscribe("a", 1, no_local=1)
    assert desk.outgoing.options(desk.session, message(publisher="c")) is None
    assert desk.outgoing.options(desk.session, message(publisher="p")) is not None
    desk.subscribe("b", 1, since=5)
    assert desk.outgoing.options(desk.session, message("b", offset=5)) is None
    assert desk.outgoing.options(desk.session, message("b", offset=6)) is not None
    assert desk.outgoing.options(desk.session, message("elsewhere")) is None


def test_one_encoding_serves_all_that_get_the_same() -> None:
    desk = Desk()
    variants: dict[object, EncodedPublish] = {}
    first, second = (
        desk.outgoing.encode(
            desk.connection, message(), 1, (), variants, retain=False, at_once=False
        )
        for _ in range(2)
    )
    assert first == second
    assert len(variants) == 1


def test_what_is_too_large_or_forbidden_is_counted_and_not_encoded() -> None:
    rules = Rules()
    desk = Desk(rules)
    size = sum(map(len, desk.parts(message(), 1) or ())) + 2
    desk.connection.maximum_packet_size = size
    assert desk.parts(message(), 1) is not None
    desk.connection.maximum_packet_size = size - 1
    assert desk.parts(message(), 1) is None
    assert desk.parts(message(), 0) is not None  # two bytes shorter: it has no packet id
    rules.forbid("receive", "a")
    assert desk.parts(message(), 0) is None
    dropped = {reason: count for reason, count in desk.counters.dropped.items() if count}
    assert dropped == {"too_large": 1, "not_authorized": 1}

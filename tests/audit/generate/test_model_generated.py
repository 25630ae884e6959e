"""The small broker does what MQTT asks of a broker."""

from audit.generate.model import Broker
from audit.generate.state import NEVER, SECOND, Client, Session, Will
from storage.history import events as ev

START = 1_000 * 60 * SECOND


def started() -> Broker:
    broker = Broker("n", START)
    broker.boot(START)
    return broker


def words(broker: Broker, session: Session) -> list[str]:
    return [ev.EVENTS[row["ev"]] for row in broker.rows if row.get("session") == session.number]


def test_a_backlog_is_delivered_in_order_at_resume() -> None:
    broker = started()
    publisher = broker.connect(Client("p", "", 5, 0))
    subscriber = broker.connect(Client("s", "", 5, NEVER, 2))
    broker.subscribe(subscriber, "a/#", 1)
    broker.disconnect(subscriber, 0)
    messages = [broker.publish(publisher, "a/b", 1, 10) for _ in range(3)]
    broker.commit()
    broker.connect(subscriber.client)
    assert [flight.message for flight in subscriber.flights.values()] == messages[:2]
    broker.acknowledge(subscriber, 1)
    assert subscriber.flights[3].message is messages[2]
    resumed = next(row for row in broker.rows if row["ev"] == ev.SESSION_RESUMED)
    assert resumed["position"] == messages[0].id - 1
    assert resumed["sp"] is True


def test_acknowledgements_follow_the_commit() -> None:
    broker = started()
    publisher = broker.connect(Client("p", "", 5, 0))
    subscriber = broker.connect(Client("s", "", 5, NEVER))
    broker.subscribe(subscriber, "a", 2)
    broker.publish(publisher, "a", 2, 10)
    assert "pub_acked" not in words(broker, publisher)
    broker.commit()
    order = [row["ev"] for row in broker.rows][-3:]
    assert order == [ev.MSG_PERSISTED, ev.PUB_ACKED, ev.MSG_DELIVERED]


def test_what_was_in_flight_is_sent_again_with_dup_after_a_crash() -> None:
    broker = started()
    publisher = broker.connect(Client("p", "", 5, 0))
    subscriber = broker.connect(Client("s", "", 5, NEVER))
    broker.subscribe(subscriber, "a", 1)
    broker.publish(publisher, "a", 1, 10)
    broker.commit()
    broker.crash()
    broker.boot(broker.now + SECOND)
    assert publisher.client_id not in broker.sessions
    broker.connect(subscriber.client)
    assert words(broker, subscriber) == ["session_disconnected", "session_resumed", "msg_delivered"]
    assert (broker.rows[-1]["dup"], broker.rows[-1]["attempt"], broker.rows[-1]["pid"]) == (
        True,
        2,
        1,
    )


def test_a_will_waits_for_its_delay_and_not_longer_than_its_session() -> None:
    broker = started()
    client = Client("w", "", 5, 10)
    client.will = Will("gone", 1, 3600)
    session = broker.connect(client)
    broker.disconnect(session, 1001)
    broker.turn(broker.now + 5 * SECOND)
    assert "will_fired" not in words(broker, session)
    broker.turn(broker.now + 6 * SECOND)
    assert words(broker, session)[-4:] == [
        "will_delayed",
        "msg_accepted",
        "will_fired",
        "session_expired",
    ]


def test_what_is_expired_is_not_delivered() -> None:
    broker = started()
    publisher = broker.connect(Client("p", "", 5, 0))
    subscriber = broker.connect(Client("s", "", 5, NEVER))
    broker.subscribe(subscriber, "a", 1)
    broker.disconnect(subscriber, 0)
    broker.publish(publisher, "a", 1, 10, expiry_s=5)
    broker.turn(broker.now + 5 * SECOND)
    broker.connect(subscriber.client)
    assert words(broker, subscriber)[-1] == "msg_expired"


def test_unsubscribing_ends_what_that_filter_alone_was_owed() -> None:
    broker = started()
    publisher = broker.connect(Client("p", "", 5, 0))
    subscriber = broker.connect(Client("s", "", 5, NEVER, 1))
    broker.subscribe(subscriber, "a", 1)
    broker.subscribe(subscriber, "b", 1)
    for topic in ("a", "a", "b"):
        broker.publish(publisher, topic, 1, 10)
    broker.unsubscribe(subscriber, "a")
    assert [message.topic for message, _ in subscriber.queue] == ["b"]


def test_a_member_that_leaves_gives_its_messages_to_another() -> None:
    broker = started()
    publisher = broker.connect(Client("p", "", 5, 0))
    members = [broker.connect(Client(f"m{n}", "", 5, NEVER)) for n in range(2)]
    for member in members:
        broker.subscribe(member, "$share/g/a", 1)
    broker.publish(publisher, "a", 1, 10)
    (holder,) = [member for member in members if member.flights]
    (other,) = [member for member in members if not member.flights]
    broker.disconnect(holder, 1001)
    assert "msg_moved" in words(broker, holder)
    assert len(other.flights) == 1


def test_a_groups_deliveries_name_its_stream() -> None:
    """As the rows of a real broker do: a share's name alone may belong to two filters."""
    broker = started()
    publisher = broker.connect(Client("p", "", 5, 0))
    first, second = (broker.connect(Client(name, "", 5, NEVER)) for name in ("m", "n"))
    for member in (first, second):
        broker.subscribe(member, "$share/g/a", 1)
    broker.publish(publisher, "a", 1, 10)
    broker.disconnect(second if second.flights else first, 1001)
    told = [row for row in broker.rows if row["ev"] in (ev.MSG_DELIVERED, ev.MSG_MOVED)]
    stream = next(row["stream"] for row in broker.rows if row["ev"] == ev.MSG_ENQUEUED)
    assert [(row["share"], row["stream"]) for row in told] == [("g", stream)] * 3


def test_the_last_four_exchanges_of_a_session_may_come_back_after_a_crash() -> None:
    broker = started()
    publisher = broker.connect(Client("p", "", 5, 0))
    subscriber = broker.connect(Client("s", "", 5, NEVER, 10))
    broker.subscribe(subscriber, "a", 1)
    for _ in range(6):
        broker.publish(publisher, "a", 1, 10)
    broker.commit()
    for packet_id in range(1, 7):
        broker.acknowledge(subscriber, packet_id)
    assert [packet_id for _, packet_id, _ in subscriber.fresh_acks] == [3, 4, 5, 6]


def test_rows_of_messages_are_hidden_while_the_level_is_books() -> None:
    broker = started()
    publisher = broker.connect(Client("p", "", 5, 0))
    for is_muted in (True, False):
        broker.muted = is_muted
        broker.publish(publisher, "a", 1, 10)
        broker.commit()
    hidden = [bool(row.get("hidden")) for row in broker.rows if row["ev"] == ev.MSG_ACCEPTED]
    assert hidden == [True, False]

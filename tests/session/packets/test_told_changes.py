"""Is a change of a store answered once no crash can take it back, and in its order?"""

from session.packets.proxy import DONE, UNCHANGED, UNKNOWN
from session.packets.told_changes import ToldChange, ToldChanges
from tests.session.feed.backends import NAME
from tests.session.harness import Broker
from tests.session.packets.test_proxy import held, proxying


def told_by(broker: Broker) -> ToldChanges:
    """Return what a store tells a broker."""
    engine = broker.engine
    return ToldChanges(NAME, engine.proxy, lambda: engine.settled_by)


def make(broker: Broker, changes: ToldChanges) -> list[str]:
    """Make all that can be made; return what became of it."""
    broker.engine.handle_timeout(broker.now)
    found = []
    while (made := changes.make_next()) is not None:
        found.append(made[1])
    return found


def test_changes_are_answered_in_their_order_once_they_are_durable() -> None:
    broker = proxying("never")
    client = broker.durable("c")
    changes = told_by(broker)
    assert changes.make_next() is None and not changes.are_waiting
    broker.hold_commits()
    changes.add(ToldChange(1, "c", "a", 1))
    changes.add(ToldChange(2, "nobody", "a", 1))
    assert changes.are_waiting
    assert make(broker, changes) == [DONE, UNKNOWN]
    assert not changes.are_waiting and changes.answers(broker.engine.durable) == []
    broker.settle()
    assert changes.answers(broker.engine.durable) == []
    broker.commit()
    assert changes.answers(broker.engine.durable) == [1, 2]
    assert changes.answers(broker.engine.durable) == []
    assert held(client) == {"a": 1}


def test_a_change_that_finds_it_done_waits_for_what_it_found() -> None:
    """The client's own SUBSCRIBE is not durable: a crash would leave neither."""
    broker = proxying("never")
    client = broker.durable("c")
    changes = told_by(broker)
    broker.hold_commits()
    with broker.one_tick():
        client.subscribe("a", qos=1)
        changes.add(ToldChange(1, "c", "a", 1))
        assert make(broker, changes) == [UNCHANGED]
        assert changes.answers(broker.engine.durable) == []
    assert changes.answers(broker.engine.durable) == []
    broker.commit()
    assert changes.answers(broker.engine.durable) == [1]


def test_a_change_for_a_session_that_just_ended_waits_for_its_end() -> None:
    broker = proxying("never")
    client = broker.durable("c")
    changes = told_by(broker)
    broker.hold_commits()
    with broker.one_tick():
        client.disconnect(session_expiry_interval=0)
        changes.add(ToldChange(1, "c", "a", 1))
        assert make(broker, changes) == [UNKNOWN]
        assert changes.answers(broker.engine.durable) == []
    broker.commit()
    assert changes.answers(broker.engine.durable) == [1]


def test_a_change_is_answered_at_once_if_there_is_nothing_to_wait_for() -> None:
    broker = proxying("never")
    changes = told_by(broker)
    changes.add(ToldChange(1, "nobody", "a", 1))
    assert make(broker, changes) == [UNKNOWN]
    assert changes.answers(broker.engine.durable) == [1]


def test_changes_wait_while_the_database_takes_no_writes_and_are_forgotten_with_their_way() -> None:
    broker = proxying("never")
    client = broker.durable("c")
    changes = told_by(broker)
    broker.engine.note_disk_space(is_low=True)
    changes.add(ToldChange(1, "c", "a", 1))
    changes.add(ToldChange(2, "c", "b", 1))
    assert make(broker, changes) == [] and changes.are_waiting
    broker.engine.note_disk_space(is_low=False)
    assert make(broker, changes) == [DONE, DONE]
    changes.add(ToldChange(3, "c", "d", 1))
    changes.forget()
    broker.settle()
    assert make(broker, changes) == [] and changes.answers(broker.engine.durable) == []
    assert held(client) == {"a": 1, "b": 1}

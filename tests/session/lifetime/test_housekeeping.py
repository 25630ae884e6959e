"""What time makes due, in bounded slices: wills and expiries."""

from tests.session.harness import Broker, will


def test_many_sessions_expire_in_slices() -> None:
    broker = Broker(expiry_slice=10)
    for number in range(35):
        broker.durable(f"c{number}", "t", expiry=10).drop()
    broker.now += 10_000
    left = []
    while broker.rows("sessions"):
        broker.engine.handle_timeout(broker.now)
        broker.settle()
        left.append(len(broker.rows("sessions")))
    assert left == [25, 15, 5, 0]
    assert broker.rows("due") == [] and broker.rows("filters") == []


def test_a_will_and_the_end_of_its_session_may_be_due_in_one_slice() -> None:
    broker = Broker()
    watcher = broker.clean("watcher", "w", qos=1)
    broker.durable("c", expiry=10, will=will("w", delay=60)).drop()
    broker.durable("d", expiry=10, will=will("w", delay=5)).drop()
    broker.now += 20_000
    broker.advance()
    assert watcher.receive_all() == [b"will", b"will"]
    assert broker.rows("due") == broker.rows("sessions") == []


def test_sessions_with_many_rows_expire_in_slices() -> None:
    broker = Broker()
    for number in range(4):
        client = broker.connect(f"c{number}", expiry=10)
        client.subscribe(*(f"t/{number}/{index}" for index in range(400)), qos=1)
        client.drop()
    broker.now += 11_000
    left = []
    while broker.engine.stats()["sessions_stored"]:
        broker.engine.handle_timeout(broker.now)
        broker.settle()
        left.append(broker.engine.stats()["sessions_stored"])
        assert len(left) < 10
    assert left == [3, 2, 1, 0]
    assert broker.rows("subscriptions") == []

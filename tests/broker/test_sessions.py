"""Sessions in the store: found again, subscribed, ended, and what their rows say meanwhile."""

from tests.broker.harness import Broker


def test_a_downgrade_to_qos_0_keeps_what_waits_for_the_window() -> None:
    broker = Broker(max_inflight=1)
    session = broker.durable("s", "t")
    for payload in (b"1", b"2", b"3"):
        broker.publish("t", payload)
    assert session.subscribe("t", qos=0) == [0]
    session.drop()
    assert broker.durable("s").receive_all() == [b"1", b"2", b"3"]

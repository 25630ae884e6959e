"""What an operator asks of a running engine: who is there, what is there, and is it sound."""

from collections.abc import Callable

import pytest

from tests.session.harness import Broker


def test_statistics_say_what_is_there() -> None:
    broker = Broker(max_inflight=1, pending_messages_max=1)
    broker.durable("behind", "t")
    broker.durable("off", "t", "$share/g/u").drop()
    broker.clean("clean", "v")
    for payload in (b"1", b"2", b"3"):
        broker.publish("t", payload)
    broker.publish("r", b"R", retain=True)
    stats = broker.engine.stats()
    assert stats["connections"] == stats["sessions_online"] == 2
    assert stats["sessions_stored_online"] == stats["sessions_offline"] == 1
    assert stats["sessions_stored"] == 2 and stats["sessions_lagging"] == 1
    assert stats["subscriptions_stored"] == 3 and stats["filters"] == 3
    assert stats["inflight_messages"] == 1 and stats["shared_groups"] == 1
    assert stats["retained_messages"] == 1 and stats["log_end"] == 3
    assert stats["generations"] == 1 and stats["waiting_replies"] == 0


@pytest.mark.parametrize(
    "spoil",
    [
        lambda c: setattr(c.session, "send_quota", 99),
        lambda c: setattr(c.session, "client_id", "other"),
        lambda c: c.session.in_flight.update({5: 99 << 8 | 1}),
    ],
)
def test_invariants_notice_what_cannot_be(spoil: Callable[[object], None]) -> None:
    broker = Broker()
    client = broker.durable("c", "t")
    assert list(broker.engine.invariants()) == []
    spoil(client.connection)
    assert list(broker.engine.invariants()) != []

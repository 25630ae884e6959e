"""What the history tells of a client, and of starts and ends."""

from collections.abc import Callable

from broker.admin.sources import telling
from broker.configuration.config import Config
from tests.durability.process import BrokerProcess
from tests.durability.rawclient import RawClient


def config_of(broker: BrokerProcess) -> Config:
    config = Config()
    config.shell.data_dir = str(broker.data_dir)
    return config


def test_starts_tell_a_crash_from_an_orderly_end(start: Callable[..., BrokerProcess]) -> None:
    broker = start()
    client = RawClient(broker.port, "boat")
    client.durable()
    client.disconnect()
    broker.restart()
    broker.crash()
    broker.stop()
    found = telling.starts(config_of(broker), lambda: None)
    assert [each.before for each in found.starts] == ["crash", "orderly", "unknown"]
    assert [each.boot for each in found.starts] == [3, 2, 1]
    # A start that ends before it has looked at every session does not say how many there are.
    assert {each.sessions for each in found.starts} <= {None, 0, 1}
    assert found.starts[2].sessions == 0
    assert found.notes == []


def test_a_timeline_is_the_newest_first_and_of_one_client(
    start: Callable[..., BrokerProcess],
) -> None:
    broker = start()
    for name in ("boat", "other"):
        client = RawClient(broker.port, name)
        client.durable()
        client.subscribe("a/#")
        client.disconnect()
    broker.stop()
    found = telling.timeline(config_of(broker), "boat", lambda: None)
    assert [each.text.partition(":")[0].partition(" at")[0] for each in found.events] == [
        "disconnected",
        "subscribed to 'a/#'",
        "connected, new session",
    ]
    assert found.notes == []
    nobody = telling.timeline(config_of(broker), "nobody", lambda: None)
    assert (nobody.events, nobody.notes) == ([], [])

"""What a running broker does every second."""

import contextlib
from collections.abc import Callable

from broker.process.housekeeping import resident_bytes
from mqtt import reasons
from storage.local.rocks import RocksStore
from storage.tables.tables import SESSIONS
from tests.broker.process.starts import events
from tests.durability.process import BrokerProcess
from tests.durability.rawclient import RawClient

Start = Callable[..., BrokerProcess]


def test_the_system_tree_is_there_for_whoever_subscribes(start: Start) -> None:
    broker = start(HOLDFAST__SYS__INTERVAL="1s")
    client = RawClient(broker.port, "c")
    client.connect()
    client.subscribe("$SYS/broker/clients/connected", qos=0)
    values = [client.take(1)[0].payload]
    while values[-1] != b"1":
        values.append(client.take(1)[0].payload)
    client.subscribe("$SYS/broker/version", qos=0)
    while (publish := client.take(1)[0]).topic != "$SYS/broker/version":
        pass
    assert publish.retain
    assert publish.payload.startswith(b"holdfast version ")


def test_a_damaged_session_record_refuses_its_client_and_is_logged(start: Start) -> None:
    broker = start()
    client, other = RawClient(broker.port, "boat"), RawClient(broker.port, "other")
    client.durable()
    client.disconnect()
    assert broker.stop() == 0
    with contextlib.closing(RocksStore(broker.data_dir / "db")) as store:
        store.write([(SESSIONS, b"boat", b"damaged")])
        store.sync()
    broker.start()
    client.connect(clean_start=False, reason=reasons.SERVER_UNAVAILABLE)
    other.durable()
    assert events(broker)["rows_damaged"]["client_id"] == "boat"
    assert broker.metrics()['holdfast_damaged_rows_total{what="session"}'] == 1


def test_the_memory_in_use_is_more_than_the_interpreter_needs() -> None:
    assert resident_bytes() > 1 << 20

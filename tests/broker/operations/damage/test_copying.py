"""Is everything kept that is not damaged, and does a broker find nothing wrong with the rest?"""

import random
import shutil
from pathlib import Path

import pytest

from broker.operations.damage import copying
from broker.operations.damage.check import check
from broker.operations.damage.repair import Repaired, repair
from mqtt.message import Message
from mqtt.packets import Pubcomp, Publish, Pubrel
from session.settings import Feed
from storage.api import Batch
from storage.errors import WriteStalled
from storage.local.memory import MemoryStore
from storage.local.rocks import RocksStore
from storage.replicated.applied import POSITION_KEY, encode_reached
from storage.replicated.record import Position
from storage.tables.feed_rows import CONNECTED
from storage.tables.tables import (
    BACKENDS,
    CONNECTIONS,
    DUE,
    FEED,
    FILTERS,
    GROUPS,
    HOLDERS,
    INCOMING,
    MAILBOX,
    META,
    RETAINED,
    SESSIONS,
    SUBSCRIPTIONS,
    load_totals,
)
from tests.broker.operations.damage.databases import (
    Rows,
    fleet,
    flip,
    opened,
    rows_of,
    saved,
    tables,
)
from tests.session.backlogs import closed
from tests.session.feed.backends import NAME, feed, read, take
from tests.session.harness import Broker
from tests.session.messages import in_flight


def started(rows: Rows, layout: str = "blocks", feeds: tuple[Feed, ...] = ()) -> Broker:
    """Start an engine on rows."""
    broker = Broker(layout=layout, max_inflight=100, feeds=feeds)
    broker.store = MemoryStore()
    for family in rows:
        broker.store.create_family(family)
    broker.store.write(
        [(family, key, value) for family, each in rows.items() for key, value in each.items()]
    )
    broker.store.sync()
    broker.clients = []
    broker.now += 10_000
    broker.start()
    return broker


def received(broker: Broker, client_id: str) -> list[bytes]:
    """Resume a session, take all that waits for it, and return the payloads."""
    client = broker.connect(client_id, expiry=3600)
    assert client.connack is not None and client.connack.session_present
    return [packet.payload for packet in client.take() if isinstance(packet, Publish)]


def repaired_of(data: Path) -> tuple[Repaired, Rows]:
    new = data.with_name("new")
    shutil.rmtree(new, ignore_errors=True)
    told = repair(str(data), str(new))
    rows = rows_of(new)
    assert check(str(new)).is_whole
    return told, rows


def without(data: Path, *keys: tuple[str, bytes]) -> None:
    """Damage some rows."""
    with opened(data) as store:
        store.write([(family, key, b"torn") for family, key in keys])


@pytest.mark.parametrize("layout", ["blocks", "filters", "timeline"])
def test_a_whole_database_is_kept_row_by_row(tmp_path: Path, layout: str) -> None:
    data = saved(fleet(layout), tmp_path / "data")
    told, rows = repaired_of(data)
    assert told.found.is_whole and told.ended == {} and told.notes == []
    assert rows == rows_of(data)


def test_a_copy_claims_no_position_in_the_replicated_log(tmp_path: Path) -> None:
    data = saved(fleet(), tmp_path / "data")
    with opened(data) as store:
        store.write([(META, POSITION_KEY, encode_reached(Position(1, 2), 3))])
    before = rows_of(data)
    _, rows = repaired_of(data)
    del before[META][POSITION_KEY]
    assert rows == before, "it may lack rows: another node's database must be copied"


def test_a_write_that_has_to_wait_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, stalled = RocksStore.write, []

    def write_or_stall(store: RocksStore, batch: Batch) -> None:
        if batch not in stalled:
            stalled.append(batch)
            raise WriteStalled("write stall")
        write(store, batch)

    data = saved(fleet(), tmp_path / "data")
    monkeypatch.setattr(RocksStore, "write", write_or_stall)
    monkeypatch.setattr(copying, "STALL_SECONDS", 0)
    _, rows = repaired_of(data)
    assert stalled and rows == rows_of(data)


@pytest.mark.parametrize("layout", ["blocks", "filters"])
def test_lost_messages_cost_nobody_another_one(tmp_path: Path, layout: str) -> None:
    data = saved(fleet(layout), tmp_path / "data")
    whole = rows_of(data)
    gone = sorted(whole["msg.1"])[20:30]
    without(data, *[("msg.1", key) for key in gone])
    told, rows = repaired_of(data)
    assert told.found.unreadable["boat"] == 10 and told.ended == {}
    before = received(started(whole, layout), "boat")
    after = received(started(rows, layout), "boat")
    assert len(after) == len(before) - 10 and set(after) < set(before)
    assert after == [payload for payload in before if payload in after], "in order"


def test_a_lost_end_of_the_log_does_not_hide_later_messages(tmp_path: Path) -> None:
    """Are offsets that sessions have read behind never used again?"""
    data = saved(fleet(), tmp_path / "data")
    last = sorted(rows_of(data)["msg.1"])[-10:]
    with opened(data) as store:
        store.write([("msg.1", key, None) for key in last])
    told, rows = repaired_of(data)
    assert told.found.lost_count() == 10
    broker = started(rows)
    broker.publish("nothing/new", b"after the repair")
    assert received(broker, "idle") == [b"after the repair"]


def test_an_offset_that_only_a_message_in_flight_has_is_not_used_again(tmp_path: Path) -> None:
    broker = Broker(max_inflight=2)
    tug = broker.durable("tug", "$share/tugs/dock")
    for _ in range(2):
        broker.publish("dock")
    assert len(tug.messages()) == 2
    data = saved(broker, tmp_path / "data")
    rows = rows_of(data)
    lost = [(family, key, None) for family in ("msg.1", "idx.1", GROUPS) for key in rows[family]]
    with opened(data) as store:
        store.write(lost)
    _, rows = repaired_of(data)
    assert started(rows).engine._log.end >= 2


@pytest.mark.parametrize(
    ("family", "key", "lost"),
    [
        (SESSIONS, b"boat", "boat"),
        (SUBSCRIPTIONS, b"boat\0fleet/#", "boat"),
        (FILTERS, b"fleet/#", None),
        (INCOMING, None, None),
        (MAILBOX, None, None),
        (HOLDERS, None, None),
        (RETAINED, None, None),
        (DUE, None, None),
        (CONNECTIONS, None, None),
        (META, b"totals", None),
        (META, b"boot", None),
        (META, b"heartbeat", None),
        (META, b"generation/\0\0\0\1", None),
        (META, b"format", None),
    ],
)
def test_a_lost_row_costs_what_it_holds(
    tmp_path: Path, family: str, key: bytes | None, lost: str | None
) -> None:
    data = saved(fleet(), tmp_path / "data")
    whole = rows_of(data)
    without(data, (family, next(iter(whole[family])) if key is None else key))
    told, rows = repaired_of(data)
    assert set(told.ended) == ({lost} if lost else set())
    broker = started(rows)
    reference = started(whole)
    for client_id in ("boat", "crane", "idle", "diver", "tug", "pilot"):
        if client_id == lost:
            connack = broker.connect(client_id, expiry=3600).connack
            assert connack is not None and not connack.session_present
        elif client_id == "diver" and family == MAILBOX:
            assert len(received(broker, client_id)) <= len(received(reference, client_id))
        else:
            assert received(broker, client_id) == received(reference, client_id)
    if family in (FILTERS, HOLDERS, META):
        assert rows[FILTERS] == whole[FILTERS] and rows[HOLDERS] == whole[HOLDERS]
    broker.publish("fleet/1", b"next")


def test_a_lost_shared_subscription_begins_at_the_end(tmp_path: Path) -> None:
    data = saved(fleet(), tmp_path / "data")
    shutil.copytree(data, tmp_path / "whole")
    (key,) = rows_of(data)[GROUPS]
    without(data, (GROUPS, key))
    told, rows = repaired_of(data)
    assert told.notes == ["$share/tugs/dock: the messages that waited for it are lost"]
    assert len(received(started(rows_of(data.with_name("whole"))), "tug")) == 5
    broker = started(rows)
    assert received(broker, "tug") == []
    tug = broker.clients[-1]
    broker.publish("dock", b"new")
    assert [packet.payload for packet in tug.take() if isinstance(packet, Publish)] == [b"new"]


@pytest.mark.slow
def test_every_row_that_can_be_read_alone_is_kept(tmp_path: Path) -> None:
    """Flip bits all over the tables: is everything there that a broker would have found?"""
    data = saved(fleet(), tmp_path / "data")
    whole = rows_of(data)
    random.seed(7)
    for table in tables(data):
        for at in (*random.sample(range(table.stat().st_size), 6), table.stat().st_size - 5):
            flip(table, at)
            told, rows = repaired_of(data)
            family = next((name for name in whole if whole[name] != rows.get(name)), "")
            lost = set(told.ended)
            assert {each.decode() for each in whole[SESSIONS]} == lost | {
                each.decode() for each in rows[SESSIONS]
            }, (table.name, at, family)
            broker = started(rows)
            assert load_totals(broker.store).next_filter_id >= 7
            flip(table, at)
    assert check(str(data)).is_whole


def test_the_packet_id_of_a_lost_qos_2_message_waits_for_pubcomp(tmp_path: Path) -> None:
    """The client may have it already, and would take a later message with this id for it."""
    broker = Broker()
    client = broker.durable("c", "t", qos=2)
    retainer = broker.connect("retainer")
    retainer.publish("t", b"kept", 2, retain=True)
    broker.durable("late", "t", qos=2)
    late = broker.clients[-1]
    packet_id = late.message().packet_id
    client.messages()
    data = saved(broker, tmp_path / "data")
    (row,) = rows_of(data)[MAILBOX]
    without(data, (MAILBOX, row))
    _, rows = repaired_of(data)
    broker = started(rows)
    client = broker.connect("late", expiry=3600)
    client.expect(Pubrel(packet_id))
    client.send(Pubcomp(packet_id, 0x92))
    assert in_flight(client) == 0


@pytest.mark.parametrize("torn", [None, FILTERS, HOLDERS, BACKENDS, FEED])
def test_a_backend_goes_on_with_what_can_be_read(tmp_path: Path, torn: str | None) -> None:
    broker = Broker(feeds=feed("a", kinds=1 << CONNECTED))
    for number in range(3):
        broker.publish("a", b"%d" % number)
    broker.advance(1000)
    take(broker)
    broker.publish("a", b"waits")
    data = saved(broker, tmp_path / "data")
    if torn is not None:
        with opened(data) as store:
            (key, *_) = rows_of(data)[torn]
            store.write([(torn, key, b"torn")])
    done = repair(str(data), str(tmp_path / "new"))
    again = started(rows_of(tmp_path / "new"), feeds=feed("a", kinds=1 << CONNECTED))
    again.publish("a", b"new")
    again.advance(1000)
    found = [row.payload for row in read(again) if isinstance(row, Message)]
    assert found == ([b"new"] if torn == BACKENDS else [b"waits", b"new"])
    assert again.engine.feeds.instance(NAME)
    assert isinstance(done, Repaired)


def test_what_comes_after_a_repair_is_not_taken_for_what_was_dropped_by_topic(
    tmp_path: Path,
) -> None:
    broker = Broker(layout="filters")
    broker.durable("boat", "a").drop()
    for _ in range(5):
        broker.publish("a", b"dropped")
    broker.engine.administer(broker.now).purge("boat", "olga", topic="a")
    broker.advance(ms=1)
    data = saved(broker, tmp_path / "data")
    rows = rows_of(data)
    with opened(data) as store:
        gone = [(family, key, None) for family in ("msg.1", "idx.1") for key in rows[family]]
        store.write(gone)
    _, rows = repaired_of(data)
    again = started(rows, "filters")
    again.publish("a", b"new")
    assert received(again, "boat") == [b"new"]


def test_what_comes_after_a_repair_is_in_no_gap(tmp_path: Path) -> None:
    broker = Broker(layout="filters", on_limit="drop_new", max_offline_messages=1)
    broker.durable("boat", "t").drop()
    closed(broker, b"kept", b"dropped", b"dropped")
    data = saved(broker, tmp_path / "data")
    rows = rows_of(data)
    with opened(data) as store:
        log = [family for family in rows if family.startswith(("msg.", "idx."))]
        store.write([(family, key, None) for family in log for key in rows[family]])
        store.write([("meta", key, None) for key in rows["meta"] if key.startswith(b"generation")])
    _, rows = repaired_of(data)
    again = started(rows, "filters")
    again.publish("t", b"new")
    assert received(again, "boat") == [b"new"]

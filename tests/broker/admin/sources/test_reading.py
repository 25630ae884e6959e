"""Records are what the commands print, and a page of them ends where the next begins."""

from time import monotonic
from typing import Any

import pytest

from broker.admin import records
from broker.admin.sources import reading
from broker.admin.sources.lanes import NotThere, Opened, TooLong
from broker.configuration.config import Config
from broker.operations.sessions import report
from mqtt.packets import Disconnect, Puback, Suback
from storage.tables.tables import SESSIONS
from tests.broker.inside import InsideBroker, publish, run, subscribe


def opened(broker: InsideBroker, *, for_s: float = 60.0) -> Opened:
    """Return the store of a broker, opened for a question."""
    return Opened(broker.store, monotonic() + for_s)


async def owe(broker: InsideBroker, client_id: str, topic: str, count: int) -> None:
    """Make a session that is away, and owed some messages."""
    peer = await broker.connect(client_id, expiry=3600)
    peer.send(subscribe(topic, 1))
    await peer.receive(Suback)
    peer.send(Disconnect())
    await peer.closed()
    publisher = await broker.connect("publisher")
    for number in range(count):
        publisher.send(publish(topic, b"payload", packet_id=number + 1))
        await publisher.receive(Puback)


def test_a_session_is_told_with_the_fields_of_the_command() -> None:
    async def scenario(broker: InsideBroker) -> None:
        await owe(broker, "boat", "a", 3)
        here = opened(broker)
        found = here.inventory.session("boat", with_bytes=True)
        assert found is not None
        printed: dict[str, Any] = report.fields(here.inventory, found)
        told = reading.session(here, "boat")
        assert {name: getattr(told, name) for name in printed if name != "subscriptions"} == {
            name: value for name, value in printed.items() if name != "subscriptions"
        }
        assert set(records.Session.__struct_fields__) == set(printed)
        assert told.waiting == 3 and told.bytes == 3 * len("apayload")
        with pytest.raises(NotThere, match="no session 'nobody'"):
            reading.session(here, "nobody")

    run(scenario)


def test_pages_by_name_join_without_a_gap_and_past_what_is_damaged() -> None:
    async def scenario(broker: InsideBroker) -> None:
        for name in ("a", "b", "c", "d"):
            await owe(broker, name, name, 0)
        broker.store.write([(SESSIONS, b"cc", b"\x00")])
        here = opened(broker)
        rows, more, notes = reading.sessions_by_name(here, None, False, None, 2)
        assert ([row.client_id for row in rows], more, notes) == (["a", "b"], True, [])
        rows, more, notes = reading.sessions_by_name(here, None, False, "b", 2)
        assert ([row.client_id for row in rows], more) == (["c", "d"], False)
        assert len(notes) == 1 and "'cc'" in notes[0]
        rows, more, _ = reading.sessions_by_name(here, "[ad]", True, None, 1)
        assert ([row.client_id for row in rows], more) == (["a"], True)

    run(scenario)


def test_an_order_goes_on_behind_a_place() -> None:
    async def scenario(broker: InsideBroker) -> None:
        for name, count in (("a", 1), ("b", 3), ("c", 2)):
            await owe(broker, name, name, count)
        here = opened(broker)
        every, _ = reading.places(here, "messages", None, False, None)
        assert [name for _, name in every] == ["b", "c", "a"]
        for index, place in enumerate(every):
            behind, _ = reading.places(here, "messages", None, False, place)
            assert behind == every[index + 1 :]
        rows = reading.rows_of(here, ["b", "gone", "a"], [])
        assert [row.client_id for row in rows] == ["b", "a"]

    run(scenario)


def test_a_queue_goes_on_behind_every_place_in_flight_and_waiting() -> None:
    async def scenario(broker: InsideBroker) -> None:
        peer = await broker.connect("boat", expiry=3600)
        peer.send(subscribe("a", 1))
        await peer.receive(Suback)
        await owe(broker, "other", "a", 2)  # these two are sent to the boat, too
        peer.send(Disconnect())
        await peer.closed()
        await owe(broker, "third", "a", 3)
        here, config = opened(broker), Config()
        whole, place, _ = reading.queue(
            here, config, "boat", topic_filter=None, payloads=True, after=None, limit=100
        )
        assert place is None
        assert [each.state for each in whole] == ["sent"] * 2 + ["waits"] * 3
        assert {each.payload for each in whole} == {"cGF5bG9hZA=="}
        for limit in (1, 2, 3, 4):
            found: list[records.QueueEntry] = []
            after = None
            while True:
                rows, after, _ = reading.queue(
                    here, config, "boat", topic_filter=None, payloads=True, after=after, limit=limit
                )
                found += rows
                if after is None:
                    break
            assert found == whole, limit
        assert reading.count_waiting(here, config, "boat", 0, None) == 3
        assert reading.count_waiting(here, config, "boat", 0, "a") == 3
        assert reading.count_waiting(here, config, "boat", 0, "b") == 0

    run(scenario)


def test_every_list_gives_up_when_its_time_is_over() -> None:
    async def scenario(broker: InsideBroker) -> None:
        await owe(broker, "boat", "a", 1)
        late, config = opened(broker, for_s=-1.0), Config()
        for question in (
            lambda: reading.sessions_by_name(late, None, False, None, 5),
            lambda: reading.places(late, "bytes", None, False, None),
            lambda: reading.rows_of(late, ["boat"], []),
            lambda: reading.queue(
                late, config, "boat", topic_filter=None, payloads=False, after=None, limit=5
            ),
            lambda: reading.topic(late, "a"),
            lambda: reading.why_now(late, config, "boat", None),
        ):
            with pytest.raises(TooLong):
                question()

    run(scenario)


def test_names_that_no_store_can_have_are_not_there() -> None:
    async def scenario(broker: InsideBroker) -> None:
        await owe(broker, "boat", "a", 0)
        here = opened(broker)
        for question in (
            lambda: reading.session(here, "\ud800"),
            lambda: reading.group(here, "g", "\ud800"),
            lambda: reading.group(here, "g", "a"),
            lambda: reading.retained_message(here, "nothing"),
        ):
            with pytest.raises(NotThere):
                question()
        assert reading.why_now(here, Config(), "\ud800", None)

    run(scenario)


def test_a_time_is_told_in_utc() -> None:
    assert reading.text_of(1_700_000_000_000) == "2023-11-14T22:13:20Z"

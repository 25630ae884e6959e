"""What an operator asks of bans: they hold when that is answered, and every mistake is named."""

import asyncio
import json
import threading
from typing import Any

import pytest

from broker.operations.control_socket import ControlError
from broker.process.desks.bans import ADD, LIST, PAGE_BANS, REMOVE, VALUE_BYTES_MAX, BanDesk
from mqtt import reasons
from mqtt.packets import Connack, Connect, Disconnect
from session.scheduling.bans import BAN_MS_MAX
from storage.tables.ban_rows import CLIENT_ID
from tests.broker.inside import InsideBroker, plain, run
from tests.broker.process.desks.asking import Operator


class Desk(Operator):
    """The desk of a broker, and an operator before it."""

    def __init__(self, broker: InsideBroker) -> None:
        super().__init__(broker, BanDesk(broker.engine, broker.driver, broker.log))

    async def list(self, after: str = "") -> tuple[list[dict[str, Any]], str]:
        """Return a page of the bans, and what the next page is asked with."""
        answer = await self.ask(LIST, after=after)
        return json.loads(answer["bans"]), answer["after"]


def test_a_ban_is_answered_when_it_is_durable(monkeypatch: pytest.MonkeyPatch) -> None:
    async def play(broker: InsideBroker) -> None:
        desk = Desk(broker)
        gate = threading.Event()
        sync = broker.store.sync

        def gated() -> None:
            gate.wait(10)
            sync()

        monkeypatch.setattr(broker.store, "sync", gated)
        answer = desk.begin(ADD, kind="client-id", value="c", for_ms="60000", reason="why")
        peer = await broker.peer()
        peer.send(Connect("c"))
        assert (await peer.receive(Connack)).reason_code == reasons.BANNED  # it holds at once
        assert not answer.done()
        gate.set()
        await broker.until(answer.done)
        ban = json.loads(answer.result()["ban"])
        assert (ban["kind"], ban["value"], ban["by"]) == ("client-id", "c", "olga")
        assert (ban["reason"], 0 < ban["left_seconds"] <= 60) == ("why", True)
        assert ban["until"] > ban["since"] and ban["until"].endswith("Z")
        (line,) = broker.events("ban_added")
        assert (line["kind"], line["value"], line["by"]) == ("client-id", "c", "olga")

    run(play)


def test_the_connection_of_a_banned_user_or_address_ends() -> None:
    async def play(broker: InsideBroker) -> None:
        desk = Desk(broker)
        peer = await broker.peer()
        await broker.greet(peer, "boat", username="anna")
        await desk.ask(ADD, kind="user", value="anna", for_ms="60000")
        assert (await peer.receive(Disconnect)).reason_code == reasons.ADMINISTRATIVE_ACTION
        other = await broker.connect("other")
        await desk.ask(ADD, kind="address", value="127.0.0.0/8", for_ms="60000")
        assert (await other.receive(Disconnect)).reason_code == reasons.ADMINISTRATIVE_ACTION
        await desk.ask(REMOVE, kind="address", value="127.0.0.0/8", reason="mistake")
        await broker.connect("other")
        (line,) = broker.events("ban_removed")
        assert (line["kind"], line["value"], line["reason"]) == (
            "address",
            "127.0.0.0/8",
            "mistake",
        )

    run(play)


def test_an_address_is_that_of_the_client_behind_a_proxy() -> None:
    async def play(broker: InsideBroker) -> None:
        desk = Desk(broker)
        endpoint = plain()
        endpoint.proxy_protocol = True
        listener = await broker.listen(endpoint)
        await desk.ask(ADD, kind="address", value="192.0.2.0/24", for_ms="60000")
        for source, code in (("192.0.2.9", reasons.BANNED), ("198.51.100.9", 0)):
            streams = await asyncio.open_connection("127.0.0.1", listener.port)
            streams[1].write(f"PROXY TCP4 {source} 127.0.0.1 4000 1883\r\n".encode())
            connack = await broker.greet(broker.peer_of(*streams))
            assert connack.reason_code == code
        await broker.connect("not-through-the-proxy")

    run(play)


def test_bans_are_listed_in_pages() -> None:
    async def play(broker: InsideBroker) -> None:
        desk = Desk(broker)
        assert await desk.list() == ([], "")
        bans = broker.engine.administer(broker.driver.now).bans
        for number in range(PAGE_BANS + 2):
            bans.add(CLIENT_ID, f"{number:04}", 60_000, "olga", "")
        first, after = await desk.list()
        bans.remove(CLIENT_ID, "0000", "olga")
        rest, end = await desk.list(after)
        assert [each["value"] for each in first + rest] == [f"{n:04}" for n in range(PAGE_BANS + 2)]
        assert len(first) == PAGE_BANS and end == ""
        with pytest.raises(ControlError, match="what the page before has told"):
            await desk.list("no hex")

    run(play)


def test_a_page_of_long_names_is_short_and_misses_none() -> None:
    async def play(broker: InsideBroker) -> None:
        desk = Desk(broker)
        bans = broker.engine.administer(broker.driver.now).bans
        for number in range(5):
            bans.add(CLIENT_ID, f"{number}" + "x" * 60_000, 60_000, "olga", "")
        found, after = await desk.list()
        assert len(found) == 3
        rest, after = await desk.list(after)
        assert len(rest) == 2 and after == ""

    run(play)


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ({"kind": "boat", "value": "x"}, "kind = 'boat': expected one of client-id, user, address"),
        ({"value": "x"}, "kind = '': expected one of"),
        ({"kind": "user"}, "user '': expected 1 to 65535 bytes without NUL"),
        ({"kind": "user", "value": "a\0b"}, "without NUL"),
        ({"kind": "client-id", "value": "x" * (VALUE_BYTES_MAX + 1)}, "expected 1 to 65535 bytes"),
        ({"kind": "client-id", "value": "\ud800"}, "expected UTF-8"),
        ({"kind": "address", "value": "boat"}, "address 'boat': expected an address such as"),
        ({"kind": "address", "value": "10.1.2.3/8"}, "its network is 10.0.0.0/8"),
    ],
)
def test_what_cannot_be_banned_is_named(words: dict[str, str], complaint: str) -> None:
    async def play(broker: InsideBroker) -> None:
        desk = Desk(broker)
        for do in (ADD, REMOVE):
            with pytest.raises(ControlError) as refused:
                await desk.ask(do, **{"for_ms": "1000", **words})
            assert complaint in str(refused.value) and len(str(refused.value)) < 200

    run(play)


@pytest.mark.parametrize("for_ms", ["0", str(BAN_MS_MAX + 1), "soon"])
def test_a_time_that_is_none_is_named(for_ms: str) -> None:
    async def play(broker: InsideBroker) -> None:
        with pytest.raises(ControlError, match=r"for_ms = .*: expected"):
            await Desk(broker).ask(ADD, kind="user", value="anna", for_ms=for_ms)

    run(play)


def test_the_longest_ban_has_an_end_that_a_calendar_knows() -> None:
    async def play(broker: InsideBroker) -> None:
        answer = await Desk(broker).ask(ADD, kind="user", value="anna", for_ms=str(BAN_MS_MAX))
        assert json.loads(answer["ban"])["left_seconds"] == BAN_MS_MAX // 1000

    run(play)


def test_who_is_not_banned_cannot_be_pardoned() -> None:
    async def play(broker: InsideBroker) -> None:
        with pytest.raises(ControlError, match=r"^no ban of user 'anna'$"):
            await Desk(broker).ask(REMOVE, kind="user", value="anna")

    run(play)

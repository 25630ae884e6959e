"""What is asked of a broker that runs, is frozen, is gone, or is asked by many."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from broker.admin.asking import Asking, BadCursor, cursor_of, place_of
from broker.admin.sources.orders import KEPT_MAX
from broker.configuration.config import Config
from broker.operations.control_socket import Unanswered
from tests.broker.admin.running import Running
from tests.durability.rawclient import RawClient


def play(data_dir: Path, story: Callable[[Asking], Awaitable[None]]) -> None:
    """Run a story with a broker's data directory."""

    async def run() -> None:
        config = Config()
        config.shell.data_dir = str(data_dir)
        asking = Asking(config)
        try:
            await story(asking)
        finally:
            asking.close()

    asyncio.run(run())


@pytest.mark.parametrize(
    "cursor", ["", "0", "zz", "00", "7b7d", cursor_of([1]), cursor_of({"a": 1}), cursor_of(None)]
)
def test_a_cursor_that_no_page_gave_is_refused(cursor: str) -> None:
    with pytest.raises(BadCursor):
        place_of(cursor, tuple[str, int])


@pytest.mark.parametrize("place", ["a/ä\x01", "", '"', "x" * 65_535])
def test_a_cursor_holds_any_name(place: str) -> None:
    assert place_of(cursor_of(place), str) == place


def test_pages_of_an_order_are_of_one_moment_and_few_orders_are_kept(shared: Running) -> None:
    for number in range(4):
        shared.owe(f"kept-{number}", number + 1, topic=f"kept/{number}")

    async def story(asking: Asking) -> None:
        first = await asking.sessions(sort="messages", match="kept-*", limit=2)
        assert [row.client_id for row in first.items] == ["kept-3", "kept-2"]
        shared.owe("kept-9", 9, topic="kept/9")
        second = await asking.sessions(sort="messages", match="kept-*", limit=2, cursor=first.next)
        assert [row.client_id for row in second.items] == ["kept-1", "kept-0"]
        assert second.next is None and second.as_of == first.as_of
        for number in range(2 * KEPT_MAX):
            await asking.sessions(sort="messages", match=f"{number}")
        assert len(asking._sorted_lists) == KEPT_MAX
        asking._orders.refresh()
        anew = await asking.sessions(sort="messages", match="kept-*", limit=1)
        assert [row.client_id for row in anew.items] == ["kept-9"]

    play(shared.broker.data_dir, story)


@pytest.mark.parametrize("place", [((0, "x"), -1), (None, 5000), (None, "x"), ((0,), 1)])
def test_a_cursor_of_an_order_points_into_it(shared: Running, place: object) -> None:
    async def story(asking: Asking) -> None:
        with pytest.raises(BadCursor):
            await asking.sessions(sort="oldest", cursor=cursor_of(place))

    play(shared.broker.data_dir, story)


def test_many_who_want_the_clients_cost_the_broker_one_list(shared: Running) -> None:
    names = [f"many-{number:03}" for number in range(300)]
    clients = [RawClient(shared.broker.port, name) for name in names]
    for client in clients:
        client.connect()

    async def story(asking: Asking) -> None:
        pages = await asyncio.gather(
            *(asking.clients(match="many-*", limit=1000) for _ in range(20))
        )
        assert all([row.client_id for row in page.items] == names for page in pages)
        assert len({id(row) for page in pages for row in page.items[:1]}) == 1
        found: list[str] = []
        cursor = None
        while True:
            page = await asking.clients(match="many-*", limit=97, cursor=cursor)
            found += [row.client_id for row in page.items]
            cursor = page.next
            if cursor is None:
                break
        assert found == names

    play(shared.broker.data_dir, story)
    for client in clients:
        client.drop()


def test_two_processes_that_list_clients_do_not_disturb_each_other(shared: Running) -> None:
    client = RawClient(shared.broker.port, "listed")
    client.connect()

    async def story(asking: Asking) -> None:
        async def list_once() -> None:
            asking._clients = None
            page = await asking.clients(match="listed")
            assert [row.client_id for row in page.items] == ["listed"]

        for _ in range(5):
            told = asyncio.to_thread(shared.command, "client", "list", "--match", "listed")
            text, *_ = await asyncio.gather(told, *(list_once() for _ in range(5)))
            assert "listed" in text

    play(shared.broker.data_dir, story)
    client.drop()


def test_without_a_broker_lists_are_told_and_what_it_alone_knows_is_not(
    run_one: Callable[..., Running],
) -> None:
    running = run_one()
    running.owe("boat", 2)
    running.broker.stop()

    async def story(asking: Asking) -> None:
        page = await asking.sessions(sort="bytes")
        assert [row.client_id for row in page.items] == ["boat"]
        with pytest.raises(Unanswered):
            await asking.storage()
        assert asking.broker.silent_since is not None

    play(running.broker.data_dir, story)

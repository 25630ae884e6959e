"""When rows leave as a batch, and how large it is."""

import pytest

from broker.backends.pump import row_buffer
from mqtt.packets import Puback, Suback
from tests.broker.backends.pump.feeding import Feeding, numbered, scenario
from tests.broker.inside import publish, subscribe


def test_how_many_rows_a_batch_has_is_an_option() -> None:
    async def play(made: Feeding) -> None:
        made.pump.pause()
        await made.publish(*numbered(20))
        made.pump.resume()
        await made.until_confirmed(20)
        assert max(made.store.link.sizes) == 3
        assert made.store.payloads() == numbered(20)

    scenario(play, batch_rows=3)


def test_rows_wait_for_others_as_long_as_they_are_told_to() -> None:
    async def play(made: Feeding) -> None:
        await made.until(lambda: made.store.link.run is not None)
        began = made.broker.loop.time()
        for number in range(5):  # each in a commit of its own
            await made.publish(b"%d" % number)
        await made.until_confirmed(5)
        assert made.broker.loop.time() - began >= 1.0
        assert len(made.store.link.sizes) < 5

    scenario(play, linger_ms=1000)


def test_a_full_batch_waits_for_nothing() -> None:
    async def play(made: Feeding) -> None:
        await made.until(lambda: made.store.link.run is not None)
        await made.publish(b"0")
        await made.until(lambda: made.pump.figures().lag_s > 0)
        await made.publish(b"1", b"2", b"3")
        await made.until_confirmed(4)
        assert made.store.link.sizes == [2, 2]

    scenario(play, batch_rows=2, linger_ms=600_000)


def test_a_batch_is_limited_in_bytes() -> None:
    async def play(made: Feeding) -> None:
        large = bytes(row_buffer.BATCH_BYTES // 2 + 1)
        made.store.answers = False
        await made.publish(large, large, large, b"small")
        await made.until(lambda: sum(len(each.rows) for each in made.store.link.waiting) == 4)
        assert max(len(each.rows) for each in made.store.link.waiting) <= 2

    scenario(play)


def test_what_others_wanted_is_passed_over_and_the_store_learns_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(row_buffer, "PASS_S", 0.05)

    async def play(made: Feeding) -> None:
        publisher = await made.broker.connect("p")
        subscriber = await made.broker.connect("s", expiry=3600)
        subscriber.send(subscribe("other", 1))
        await subscriber.receive(Suback)
        for _ in range(3):
            publisher.send(publish("other"))
            await publisher.receive(Puback)
        end = made.broker.engine.feeds.end()
        await made.until(lambda: made.store.cursor == end and made.is_confirmed())
        assert made.store.rows == []

    scenario(play)

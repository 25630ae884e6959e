"""What sessions ask of a store, and what it says of subscriptions, on their way to the engine."""

import asyncio
from typing import Any

from broker.backends.pump.asking import ASKED_MAX
from mqtt.packets import Publish, Suback
from session.settings import Fetching, Proxying
from storage.tables.fetch_rows import QUEUE, SUBSCRIPTIONS
from tests.broker.backends.pump.feeding import NAME, Feeding, scenario
from tests.broker.inside import subscribe

QUEUES = (Fetching(QUEUE, "queue/#", 10),)


def page(question: dict[str, Any], *ids: str, **fields: Any) -> dict[str, Any]:
    """Return an answer to a question."""
    message = {"from": "app", "qos": 1, "at_ms": 1000, "expires_ms": 0, "payload": "eA=="}
    messages = [{"id": each, **message} for each in ids]
    told = {"fetched": question["fetch"], "topic": question["topic"], "messages": messages}
    told |= {"kind": question["kind"], "subscriptions": [], "unusable": 0}
    return {**told, "upto": "", "more": False, "why": "", **fields}


async def asked(made: Feeding) -> dict[str, Any]:
    """Return the next question to the store."""
    questions = made.store.link.questions
    await made.until(lambda: bool(questions))
    return questions.pop(0)


def test_a_session_gets_what_the_store_has() -> None:
    async def play(made: Feeding) -> None:
        client = await made.broker.connect("c")
        client.send(subscribe("queue/1", 1))
        await client.receive(Suback)
        question = await asked(made)
        assert (question["topic"], question["client_id"], question["count"]) == (
            "queue/1", "c", 10,
        )  # fmt: skip
        assert made.pump.figures().fetches_owed == 1
        made.store.link.say(page(question, "m1", "m2"))
        assert [(await client.receive(Publish)).payload for _ in range(2)] == [b"x", b"x"]
        assert made.pump.figures().fetches_owed == 0

    scenario(play, fetches=QUEUES)


def test_the_time_of_an_answer_counts_from_its_question() -> None:
    async def play(made: Feeding) -> None:
        client = await made.broker.connect("c")
        client.send(subscribe("queue/1", 1))
        await client.receive(Suback)
        lost = await asked(made)
        began = made.broker.driver.loop.time()
        made.store.link.die("signal 9")
        await made.until(lambda: len(made.store.links) == 2)
        question = await asked(made)
        seconds = made.pump.figures().fetch_seconds
        made.store.link.say(page(lost))
        assert seconds.count == 0
        made.store.link.say(page(question, "m1"))
        passed = made.broker.driver.loop.time() - began
        assert seconds.count == 1 and 0 < seconds.total <= passed

    scenario(play, fetches=QUEUES)


def test_questions_are_asked_again_by_the_next_process() -> None:
    async def play(made: Feeding) -> None:
        client = await made.broker.connect("c")
        client.send(subscribe("queue/1", 1))
        await client.receive(Suback)
        lost = await asked(made)
        made.store.link.die("signal 9")
        await made.until(lambda: len(made.store.links) == 2)
        again = await asked(made)
        assert again["fetch"] != lost["fetch"]
        made.store.link.say(page(lost, "m1"))  # nobody waits for it any more
        made.store.link.say(page(again, "m2"))
        await client.receive(Publish)
        assert made.pump.figures().fetches_owed == 0

    scenario(play, fetches=QUEUES)


def test_few_questions_are_under_way() -> None:
    async def play(made: Feeding) -> None:
        clients = [await made.broker.connect(f"c{number}") for number in range(6)]
        for client in clients:
            client.send(subscribe("queue/1", 1))
            await client.receive(Suback)
        questions = made.store.link.questions
        await made.until(lambda: len(questions) == ASKED_MAX)
        assert made.pump.figures().fetches_owed == 6
        for question in list(questions):
            made.store.link.say(page(question))
        await made.until(lambda: len(questions) == 6)

    scenario(play, fetches=QUEUES)


def test_a_paused_store_is_asked_nothing() -> None:
    async def play(made: Feeding) -> None:
        await made.until(lambda: made.pump.is_up)
        made.pump.pause()
        client = await made.broker.connect("c")
        client.send(subscribe("queue/1", 1))
        await client.receive(Suback)
        assert made.store.link.questions == []
        made.pump.resume()
        await asked(made)

    scenario(play, fetches=QUEUES)


def test_a_question_that_the_store_refuses_is_told() -> None:
    async def play(made: Feeding) -> None:
        client = await made.broker.connect("c")
        client.send(subscribe("queue/1", 1))
        await client.receive(Suback)
        made.store.link.say(page(await asked(made), why="queue/1: WRONGTYPE"))
        await made.until(lambda: bool(made.events("backend_fetch_refused")))
        assert made.pump.figures().fetches_owed == 0

    scenario(play, fetches=QUEUES)


# Subscriptions that a store has


LIVE = Proxying("never")


def held(made: Feeding, client_id: str) -> dict[str, int]:
    """Return the subscriptions of a connected client."""
    session = made.broker.engine._sessions.live[client_id].session
    assert session is not None
    return {each.topic_filter: each.qos for each in session.subscriptions.values()}


def change(number: int, topic: str, qos: int | None, client_id: str = "c") -> dict[str, Any]:
    """Return a change of a subscription."""
    return {"change": number, "client_id": client_id, "topic": topic, "qos": qos}


def test_a_client_gets_the_subscriptions_that_the_store_has() -> None:
    async def play(made: Feeding) -> None:
        await made.broker.connect("c")
        question = await asked(made)
        assert (question["kind"], question["client_id"]) == (SUBSCRIPTIONS, "c")
        rows = [["a/#", 1], ["b#", 1]]
        made.store.link.say(page(question, subscriptions=rows, unusable=1))
        await made.until(lambda: held(made, "c") == {"a/#": 1})
        (refused,) = made.events("backend_subscription_refused")
        assert refused["client_id"] == "c" and "b#" in str(refused)
        assert len(made.events("backend_fetch_refused")) == 1
        assert made.pump.figures().fetches_owed == 0

    scenario(play, proxying=Proxying())


def test_a_change_is_answered_once_it_is_durable() -> None:
    async def play(made: Feeding) -> None:
        await made.broker.connect("c")
        await made.until(lambda: made.pump.is_up)
        link = made.store.link
        link.say(change(1, "a", 1))
        assert held(made, "c") == {"a": 1}
        await made.until(lambda: link.changes == [1])
        link.say(change(2, "a", 1))
        link.say(change(3, "b", 1, "nobody"))
        link.say(change(4, "a#", 1))
        link.say(change(5, "a", None))
        await made.until(lambda: link.changes == [1, 2, 3, 4, 5])
        assert held(made, "c") == {}
        assert [each["client_id"] for each in made.events("backend_change_refused")] == [
            "nobody",
            "c",
        ]

    scenario(play, proxying=LIVE)


def test_changes_wait_while_the_store_is_paused_or_nothing_can_be_written() -> None:
    async def play(made: Feeding) -> None:
        await made.broker.connect("c", expiry=60)
        await made.until(lambda: made.pump.is_up)
        made.pump.pause()
        link = made.store.link
        link.say(change(1, "a", 1))
        assert held(made, "c") == {} and link.changes == []
        made.broker.engine.note_disk_space(is_low=True)
        made.pump.resume()
        link.say(change(2, "b", 1))
        assert held(made, "c") == {} and link.changes == []
        made.broker.engine.note_disk_space(is_low=False)
        link.say(change(3, "c", 1))
        assert list(held(made, "c")) == ["a", "b", "c"]
        await made.until(lambda: link.changes == [1, 2, 3])

    scenario(play, proxying=LIVE)


def test_what_a_process_has_told_is_not_answered_to_the_next_one() -> None:
    async def play(made: Feeding) -> None:
        await made.broker.connect("c")
        await made.until(lambda: made.pump.is_up)
        made.pump.pause()
        made.store.link.say(change(7, "a", 1))
        made.store.link.die("signal 9")
        await made.until(lambda: len(made.store.links) == 2)
        made.pump.resume()
        made.store.link.say(change(1, "b", 1))
        await made.until(lambda: made.store.link.changes == [1])
        assert held(made, "c") == {"b": 1}

    scenario(play, proxying=LIVE)


def test_it_is_told_who_is_heard_and_what_cannot_be_read() -> None:
    async def play(made: Feeding) -> None:
        await made.until(lambda: made.pump.is_up)
        link = made.store.link
        link.say({"listening": "the channel x"})
        link.say({"unheard": "connection refused"})
        link.say({"unreadable": "'x': expected JSON"})
        assert len(made.events("backend_listening")) == 2
        (refused,) = made.events("backend_change_refused")
        assert refused["backend"] == NAME and "expected JSON" in str(refused)

    scenario(play, proxying=LIVE)


def test_a_list_that_a_client_waits_for_is_asked_for_at_once_unless_the_store_is_down() -> None:
    async def play(made: Feeding) -> None:
        await made.until(lambda: made.pump.is_up)
        waits = asyncio.ensure_future(made.broker.connect("c"))
        question = await asked(made)
        made.store.link.say(page(question, subscriptions=[["a", 1]], unusable=0))
        await waits
        assert held(made, "c") == {"a": 1}
        made.store.link.say({"state": "disconnected", "why": "gone"})
        await made.broker.connect("d")  # it waits no minute
        assert held(made, "d") == {}

    scenario(play, proxying=Proxying(wait_ms=60_000))

"""How scenes change what was written down, and when they are played."""

import random

import pytest

from audit.generate.model import Broker
from audit.generate.scenes import DOWN, Director, Scene, Stage
from audit.generate.state import SECOND
from storage.history import events as ev


def stage() -> Stage:
    broker = Broker("n", 60 * SECOND)
    broker.boot(broker.now)
    return Stage(broker, random.Random(1))


def test_swapped_rows_keep_their_places_and_exchange_what_they_say() -> None:
    first = {"ev": 1, "ts": 5, "slot": 0, "msg": 7}
    second = {"ev": 2, "ts": 6, "slot": 1, "reason": 0}
    stage().swap(first, second)
    assert first == {"ev": 2, "ts": 5, "slot": 0, "reason": 0}
    assert second == {"ev": 1, "ts": 6, "slot": 1, "msg": 7}


def test_rows_taken_out_are_not_found_again() -> None:
    play = stage()
    publisher, _, topic = play.pair(1)
    message = play.publish(publisher, topic, 1)
    play.erase([play.row(ev.MSG_DELIVERED, message=message)])
    assert play.rows(ev.MSG_DELIVERED, message=message) == []
    assert len(play.rows(ev.MSG_ENQUEUED, message=message)) == 1


def test_scenes_go_on_when_they_asked_for_it() -> None:
    seen = []

    def scene(stage: Stage) -> Scene:
        seen.append("begin")
        yield 3
        seen.append("later")
        yield DOWN
        seen.append("down")

    play = stage()
    director = Director(play)
    director.plan(2, scene)
    for _ in range(6):
        play.broker.turn(play.broker.now + SECOND)
        director.round()
        seen.append("round")
    assert seen == ["round", "begin", "round", "round", "round", "later", "round", "round"]
    with pytest.raises(AssertionError, match="1 scenes did not end"):
        director.finish()
    director.down()
    director.finish()
    assert seen[-1] == "down"


def test_an_injection_knows_the_row_where_it_shows() -> None:
    play = stage()
    publisher, subscriber, topic = play.pair(1)
    message = play.publish(publisher, topic, 1)
    row = play.row(ev.MSG_DELIVERED, message=message)
    play.inject("D2", "some", row, session=subscriber, message=message)
    (made,) = play.injections
    assert row["mark"] == made.mark
    assert (made.node, made.session, made.msg) == ("n", subscriber.number, message.id)

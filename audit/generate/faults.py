"""The faults: one scene per kind, by the invariant it violates.

Faults of the history itself (holes, segments, gaps) are in `audit.generate.history`: clients do not
play them.
"""

from typing import Final

from audit.generate.scenes import Play, Scene, Stage
from audit.generate.state import NEVER, Message, Session
from storage.history import events as ev

LOST: Final = 1001
LATE_S: Final = 100.0  # later than any tolerance


def ack_before_persist(stage: Stage) -> Scene:
    publisher, subscriber, _, (message,) = yield from stage.deliver(1, 1)
    stage.answer(subscriber)
    persisted = stage.row(ev.MSG_PERSISTED, message=message)
    acked = stage.row(ev.PUB_ACKED, message=message)
    stage.swap(persisted, acked)
    stage.inject("L1", "ack_before_persist", persisted, session=publisher, message=message)


def never_persisted(stage: Stage) -> Scene:
    publisher, subscriber, _, (message,) = yield from stage.deliver(1, 2)
    stage.answer(subscriber)
    stage.erase([stage.row(ev.MSG_PERSISTED, message=message)])
    acked = stage.row(ev.PUB_ACKED, message=message)
    stage.inject("L1", "never_persisted", acked, session=publisher, message=message)


def passed_over(stage: Stage) -> Scene:
    _, subscriber, _, messages = yield from stage.deliver(2, 1, 3)
    stage.answer(subscriber)
    lost = messages[1]
    for event in (ev.MSG_DELIVERED, ev.MSG_ACKED):
        stage.erase(stage.rows(event, subscriber, lost))
    row = stage.row(ev.MSG_ACCEPTED, message=lost)
    stage.inject("L2", "passed_over", row, session=subscriber, message=lost)


def passed_over_at_resume(stage: Stage) -> Scene:
    publisher, subscriber, topic = stage.pair(2)
    yield 0
    stage.broker.disconnect(subscriber, 0)
    messages = [stage.publish(publisher, topic, 2) for _ in range(4)]
    yield 3
    stage.broker.connect(subscriber.client)
    yield 0
    stage.answer(subscriber)
    publisher.incoming.clear()
    lost = messages[2]
    for event in (ev.MSG_DELIVERED, ev.MSG_ACKED, ev.MSG_COMPLETED):
        stage.erase(stage.rows(event, subscriber, lost))
    row = stage.row(ev.MSG_ACCEPTED, message=lost)
    stage.inject("L2", "passed_over_at_resume", row, session=subscriber, message=lost)


def not_sent_again(stage: Stage) -> Scene:
    publisher, subscriber, topic, (lost,) = yield from stage.deliver(1, 1, expiry_s=NEVER)
    yield from stage.leave_and_return(subscriber, LOST)
    (again,) = [row for row in stage.rows(ev.MSG_DELIVERED, subscriber, lost) if row["dup"]]
    stage.erase([again])
    yield 0
    stage.publish(publisher, topic, 1)
    yield 0
    for pid, flight in list(subscriber.flights.items()):
        if flight.message is not lost:
            stage.broker.acknowledge(subscriber, pid)
    row = stage.row(ev.MSG_DELIVERED, subscriber, lost)
    stage.inject("L2", "not_sent_again", row, session=subscriber, message=lost)


def stuck(stage: Stage) -> Scene:
    """Only in the last boot: the session gets nothing else until the end of the history."""
    publisher, subscriber, topic = stage.pair(1)
    yield 0
    stage.publish(publisher, topic, 1)
    yield 0
    stage.answer(subscriber)
    lost = stage.publish(publisher, topic, 1)
    yield 0
    stage.answer(subscriber)
    for event in (ev.MSG_DELIVERED, ev.MSG_ACKED):
        stage.erase(stage.rows(event, subscriber, lost))
    row = stage.row(ev.MSG_ACCEPTED, message=lost)
    stage.inject("L2", "stuck", row, session=subscriber, message=lost)


def not_enqueued(stage: Stage) -> Scene:
    publisher, subscriber, topic = stage.pair(1)
    other = stage.broker.connect(stage.client(7200))
    stage.broker.subscribe(other, topic.replace("/value", "/+"), 1)
    yield 0
    message = stage.publish(publisher, topic, 1)
    yield 0
    stage.answer(subscriber)
    stage.answer(other)
    for event in (ev.MSG_DELIVERED, ev.MSG_ACKED):
        stage.erase(stage.rows(event, other, message))
    (sub,) = other.subs.values()
    wanted = stage.rows(ev.MSG_ENQUEUED, message=message)
    stage.erase([row for row in wanted if row["stream"] == sub.stream])
    row = stage.row(ev.MSG_ACCEPTED, message=message)
    stage.inject("L3", "not_enqueued", row, session=other, message=message, topic=topic)


def double_accept(stage: Stage) -> Scene:
    publisher = stage.broker.connect(stage.client(7200))
    topic = stage.topic(publisher.client)
    first = stage.publish(publisher, topic, 2)
    yield 0
    pid = stage.row(ev.MSG_ACCEPTED, message=first)["pid"]
    second = stage.publish(publisher, topic, 2)
    row = stage.row(ev.MSG_ACCEPTED, message=second)
    del publisher.incoming[row["pid"]]
    row["pid"] = pid
    row["dup"] = True
    yield 0
    stage.row(ev.PUB_ACKED, message=second)["pid"] = pid
    stage.broker.release_publish(publisher, pid)
    stage.inject("D1", "double_accept", row, session=publisher, message=second, pid=pid)


def delivered_after_completion(stage: Stage) -> Scene:
    _, subscriber, _, (message,) = yield from stage.deliver(2, 2)
    stage.answer(subscriber)
    yield from stage.leave_and_return(subscriber, LOST)
    yield from _again(stage, subscriber, message)
    row = stage.row(ev.MSG_DELIVERED, subscriber, message)
    tolerated = ["S2", "S5"]  # more exchanges end than began
    stage.inject(
        "D1",
        "delivered_after_completion",
        row,
        session=subscriber,
        message=message,
        tolerated=tolerated,
    )


def _again(stage: Stage, subscriber: Session, message: Message) -> Scene:
    """The exchange of a completed message begins again, and ends."""
    pid = stage.rows(ev.MSG_DELIVERED, subscriber, message)[0]["pid"]
    stage.send_again(subscriber, message, pid, 2)
    yield 0
    sent = {"msg": message.id, "pid": pid, "qos": 2}
    stage.broker.emit(ev.MSG_ACKED, subscriber, actor=ev.CLIENT, reason=0, **sent)
    stage.broker.emit(ev.MSG_COMPLETED, subscriber, actor=ev.CLIENT, **sent)


def delivered_after_pubrec(stage: Stage) -> Scene:
    _, subscriber, _, (message,) = yield from stage.deliver(2, 2)
    (pid,) = subscriber.flights
    stage.broker.acknowledge(subscriber, pid)
    yield from stage.leave_and_return(subscriber, LOST)
    row = stage.send_again(subscriber, message, pid, 2)
    yield 0
    stage.broker.complete(subscriber, pid)
    stage.inject("D1", "delivered_after_pubrec", row, session=subscriber, message=message)


def without_reconnect(stage: Stage) -> Scene:
    _, subscriber, _, (message,) = yield from stage.deliver(1, 1)
    (pid,) = subscriber.flights
    row = stage.send_again(subscriber, message, pid, 1)
    yield 0
    stage.answer(subscriber)
    stage.inject("D2", "without_reconnect", row, session=subscriber, message=message)


def other_packet_id(stage: Stage) -> Scene:
    _, subscriber, _, (message,) = yield from stage.deliver(1, 1)
    yield from stage.leave_and_return(subscriber, LOST)
    stage.answer(subscriber)
    row = stage.row(ev.MSG_DELIVERED, subscriber, message)
    row["pid"] += 1000
    stage.row(ev.MSG_ACKED, subscriber, message)["pid"] += 1000
    tolerated = ["D3", "S2", "S5", "F1"]  # the first packet id is never freed
    stage.inject(
        "D2", "other_packet_id", row, session=subscriber, message=message, tolerated=tolerated
    )


def without_dup(stage: Stage) -> Scene:
    _, subscriber, _, (message,) = yield from stage.deliver(2, 2)
    yield from stage.leave_and_return(subscriber, LOST)
    row = stage.row(ev.MSG_DELIVERED, subscriber, message)
    row["dup"] = False
    row["attempt"] = 1
    yield 0
    stage.answer(subscriber)
    stage.inject("D2", "without_dup", row, session=subscriber, message=message)


def in_use_twice(stage: Stage) -> Scene:
    _, subscriber, _, (first, second) = yield from stage.deliver(1, 1, 2)
    stage.answer(subscriber)
    pid = stage.row(ev.MSG_DELIVERED, subscriber, first)["pid"]
    row = stage.row(ev.MSG_DELIVERED, subscriber, second)
    row["pid"] = stage.row(ev.MSG_ACKED, subscriber, second)["pid"] = pid
    stage.inject("D3", "in_use_twice", row, session=subscriber, message=second, pid=pid)


def acknowledged_another(stage: Stage) -> Scene:
    _, subscriber, _, (first, second) = yield from stage.deliver(1, 1, 2)
    stage.answer(subscriber)
    one, other = (stage.row(ev.MSG_ACKED, subscriber, message) for message in (first, second))
    one["pid"], other["pid"] = other["pid"], one["pid"]
    for row, message in ((one, first), (other, second)):
        stage.inject("D3", "acknowledged_another", row, session=subscriber, message=message)


def overrun(stage: Stage) -> Scene:
    _, subscriber, _, messages = yield from stage.deliver(1, 1, 4, rmax=4)
    stage.row(ev.SESSION_CREATED, subscriber)["rmax"] = 3
    stage.answer(subscriber)
    row = stage.row(ev.MSG_DELIVERED, subscriber, messages[3])
    stage.inject("F1", "receive_maximum_exceeded", row, session=subscriber, message=messages[3])


def out_of_order(stage: Stage) -> Scene:
    _, subscriber, topic, (first, second) = yield from stage.deliver(1, 1, 2)
    stage.answer(subscriber)
    one = stage.row(ev.MSG_DELIVERED, subscriber, first)
    other = stage.row(ev.MSG_DELIVERED, subscriber, second)
    stage.swap(one, other)
    stage.inject("O1", "out_of_order", other, session=subscriber, message=first, topic=topic)
    stage.inject("O1", "before_its_acceptance", one, session=subscriber, message=second)


def delivered_expired(stage: Stage) -> Scene:
    publisher, subscriber, topic = stage.pair(1)
    yield 0
    stage.broker.disconnect(subscriber, 0)
    message = stage.publish(publisher, topic, 1, expiry_s=3600)
    yield LATE_S
    stage.broker.connect(subscriber.client)
    yield 0
    stage.answer(subscriber)
    stage.row(ev.MSG_ACCEPTED, message=message)["expiry_s"] = 5
    row = stage.row(ev.MSG_DELIVERED, subscriber, message)
    stage.inject("E1", "delivered_expired", row, session=subscriber, message=message)


def expired_early(stage: Stage) -> Scene:
    publisher, subscriber, topic = stage.pair(1)
    yield 0
    stage.broker.disconnect(subscriber, 0)
    message = stage.publish(publisher, topic, 1, expiry_s=2)
    yield 5
    stage.broker.connect(subscriber.client)
    stage.row(ev.MSG_ACCEPTED, message=message)["expiry_s"] = 3600
    row = stage.row(ev.MSG_EXPIRED, subscriber, message)
    stage.inject("E1", "expired_early", row, session=subscriber, message=message)


def stale_retained(stage: Stage) -> Scene:
    publisher = stage.broker.connect(stage.client(0))
    topic = stage.topic(publisher.client)
    stage.broker.publish(publisher, topic, 1, 10, retain=True)
    yield 2
    stage.broker.publish(publisher, topic, 1, 11, retain=True)
    yield 2
    subscriber = stage.broker.connect(stage.client(0))
    stage.broker.subscribe(subscriber, topic, 0)
    old = next(row for row in stage.rows(ev.RETAINED_SET) if row["topic"] == topic)
    row = stage.row(ev.RETAINED_SENT, subscriber)
    row["at"] = old["at"]
    row["weight"] = old["bytes"]
    stage.inject("R1", "stale_value", row, session=subscriber, topic=topic)


def cleared_retained(stage: Stage) -> Scene:
    publisher = stage.broker.connect(stage.client(0))
    topic = stage.topic(publisher.client)
    stage.broker.publish(publisher, topic, 1, 10, retain=True)
    at = stage.row(ev.RETAINED_SET)["at"]
    yield 2
    stage.broker.publish(publisher, topic, 1, 0, retain=True)
    yield 2
    subscriber = stage.broker.connect(stage.client(0))
    stage.broker.subscribe(subscriber, topic, 0)
    row = stage.broker.emit(
        ev.RETAINED_SENT, subscriber, topic=topic, pid=0, qos=0, at=at, dup=False, weight=10
    )
    stage.inject("R1", "cleared_value", row, session=subscriber, topic=topic)


def negative_count(stage: Stage) -> Scene:
    row = stage.broker.emit(ev.GC_RUN, None, count=-5, actor=ev.GC)
    stage.inject("G1", "negative_count", row)
    yield 0


PLAYS: Final[dict[str, Play]] = {
    play.__name__: play
    for play in (
        ack_before_persist,
        never_persisted,
        passed_over,
        passed_over_at_resume,
        not_sent_again,
        stuck,
        not_enqueued,
        double_accept,
        delivered_after_completion,
        delivered_after_pubrec,
        without_reconnect,
        other_packet_id,
        without_dup,
        in_use_twice,
        acknowledged_another,
        overrun,
        out_of_order,
        delivered_expired,
        expired_early,
        stale_retained,
        cleared_retained,
        negative_count,
    )
}
LAST_BOOT: Final = frozenset({"stuck"})

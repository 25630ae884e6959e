"""The faults of sessions and wills: one scene per kind. See `audit.generate.scenes`."""

from typing import Final

from audit.generate.scenes import DOWN, Play, Scene, Stage
from audit.generate.state import NEVER, Session, Will
from storage.history import events as ev

LOST: Final = 1001
LATE_S: Final = 100.0  # later than any tolerance


def present_without_session(stage: Stage) -> Scene:
    session = stage.broker.connect(stage.client(600))
    row = stage.row(ev.SESSION_CREATED, session)
    row["sp"] = True
    stage.inject("S1", "present_without_session", row, session=session)
    yield 0


def absent_with_session(stage: Stage) -> Scene:
    session = stage.broker.connect(stage.client(600))
    yield 0
    yield from stage.leave_and_return(session, 0)
    row = stage.row(ev.SESSION_RESUMED, session)
    row["sp"] = False
    stage.inject("S1", "absent_with_session", row, session=session)


def forgotten(stage: Stage) -> Scene:
    old = stage.broker.connect(stage.client(7200))
    yield 0
    stage.broker.disconnect(old, 0)
    yield 2
    stage.broker.forget(old)
    new = stage.broker.connect(old.client)
    row = stage.row(ev.SESSION_CREATED, new)
    tolerated = ["S5", "S3", "S2", "S4"]  # the old one never ends
    stage.inject("S1", "forgotten", row, session=new, other_session=old.number, tolerated=tolerated)


def wrong_subscriptions(stage: Stage) -> Scene:
    yield from _wrong(stage, "subs")


def wrong_filters(stage: Stage) -> Scene:
    yield from _wrong(stage, "subs_check")


def wrong_in_flight(stage: Stage) -> Scene:
    yield from _wrong(stage, "inflight")


def _wrong(stage: Stage, column: str) -> Scene:
    _, session, _ = stage.pair(1)
    yield 0
    yield from stage.leave_and_return(session, 0)
    row = stage.row(ev.SESSION_RESUMED, session)
    row[column] += 1
    # The wrong numbers at the resume also differ from the row after the next start.
    stage.inject("S2", f"wrong_{column}", row, session=session, tolerated=["S5"])


def wrong_position(stage: Stage) -> Scene:
    _, session, _, (message,) = yield from stage.deliver(1, 1)
    stage.answer(session)
    yield 5
    yield from stage.leave_and_return(session, 0)
    row = stage.row(ev.SESSION_RESUMED, session)
    row["position"] = message.id - 1
    stage.inject("S2", "wrong_position", row, session=session, message=message)


def expired_late(stage: Stage) -> Scene:
    session = stage.broker.connect(stage.client(20))
    yield 0
    stage.broker.disconnect(session, 0)
    session.expiry_s = NEVER  # the broker fails to expire it
    yield 20 + LATE_S
    session.expiry_s = 20
    stage.broker.expire(session)
    row = stage.row(ev.SESSION_EXPIRED, session)
    stage.inject("S3", "expired_late", row, session=session, tolerated=["G1"])


def expired_session_early(stage: Stage) -> Scene:
    session = stage.broker.connect(stage.client(3600))
    yield 0
    stage.broker.disconnect(session, 0)
    yield 5
    stage.broker.expire(session)
    row = stage.row(ev.SESSION_EXPIRED, session)
    stage.inject("S3", "expired_early", row, session=session, tolerated=["G1"])


def resumed_expired(stage: Stage) -> Scene:
    session = stage.broker.connect(stage.client(20))
    yield 0
    stage.broker.disconnect(session, 0)
    session.expiry_s = NEVER
    yield 20 + LATE_S
    stage.broker.connect(session.client)
    row = stage.row(ev.SESSION_RESUMED, session)
    stage.inject("S3", "resumed_expired", row, session=session, tolerated=["S1", "G1"])


def expired_connected(stage: Stage) -> Scene:
    session = stage.broker.connect(stage.client(30))
    yield 5
    at = stage.broker.clock
    conn = session.conn
    stage.broker.end_session(session, ev.SESSION_EXPIRED, at=at, actor=ev.GC)
    assert conn
    row = stage.row(ev.SESSION_EXPIRED, session)
    stage.inject("S3", "expired_connected", row, session=session, tolerated=["G1", "S4"])


def expired_never(stage: Stage) -> Scene:
    session = stage.broker.connect(stage.client(NEVER))
    yield 0
    stage.broker.disconnect(session, 0)
    yield 5
    at = stage.broker.clock
    stage.broker.end_session(session, ev.SESSION_EXPIRED, at=at, actor=ev.GC)
    row = stage.row(ev.SESSION_EXPIRED, session)
    stage.inject("S3", "expired_never", row, session=session, tolerated=["G1"])


def two_connections(stage: Stage) -> Scene:
    session = stage.broker.connect(stage.client(600))
    yield 2
    stage.broker.connect(session.client)
    stage.erase([stage.row(ev.SESSION_TAKEN_OVER, session)])
    stage.erase([stage.row(ev.SESSION_DISCONNECTED, session)])
    row = stage.row(ev.SESSION_RESUMED, session)
    stage.inject("S4", "two_connections", row, session=session)


def silent_take_over(stage: Stage) -> Scene:
    session = stage.broker.connect(stage.client(600))
    yield 2
    stage.broker.connect(session.client)
    row = stage.row(ev.SESSION_TAKEN_OVER, session)
    row["reason"] = 0
    stage.row(ev.SESSION_DISCONNECTED, session)["reason"] = LOST
    stage.inject("S4", "silent_take_over", row, session=session)


def missing_after_crash(stage: Stage) -> Scene:
    _, session, _ = stage.pair(1, NEVER)
    yield 0
    stage.broker.disconnect(session, 0)
    row = stage.row(ev.SESSION_DISCONNECTED, session)
    yield DOWN
    stage.broker.forget(session)
    stage.inject("S5", "missing_after_crash", row, session=session)


def changed_after_crash(stage: Stage) -> Scene:
    _, session, _ = stage.pair(1, NEVER)
    yield 0
    stage.broker.disconnect(session, 0)
    row = stage.row(ev.SESSION_DISCONNECTED, session)
    yield DOWN
    for sub in session.subs.values():
        sub.qos = 2
    stage.inject("S5", "changed_after_crash", row, session=session, tolerated=["S2"])


# Wills. Their topics have no subscribers.


def _with_will(stage: Stage, delay_s: int, expiry_s: int = 7200) -> Session:
    client = stage.client(expiry_s)
    client.will = Will(stage.topic(client), 1, delay_s)
    return stage.broker.connect(client)


def will_twice(stage: Stage) -> Scene:
    session = _with_will(stage, 0)
    yield 2
    stage.broker.disconnect(session, LOST)
    fired = stage.row(ev.WILL_FIRED, session)
    yield 0
    columns = {name: fired[name] for name in ("msg", "topic", "qos")}
    row = stage.broker.emit(ev.WILL_FIRED, session, **columns)
    stage.inject("W1", "fired_twice", row, session=session)


def will_after_disconnect(stage: Stage) -> Scene:
    session = _with_will(stage, 0)
    yield 2
    will = session.will
    stage.broker.disconnect(session, 0)
    stage.erase([stage.row(ev.WILL_CANCELLED, session)])
    session.will = will
    stage.broker.fire(session)
    row = stage.row(ev.WILL_FIRED, session)
    stage.inject("W1", "after_disconnect", row, session=session)


def will_early(stage: Stage) -> Scene:
    session = _with_will(stage, 3600)
    yield 2
    stage.broker.disconnect(session, LOST)
    yield 2
    stage.broker.fire(session)
    row = stage.row(ev.WILL_FIRED, session)
    stage.inject("W1", "before_its_delay", row, session=session)


def will_after_resume(stage: Stage) -> Scene:
    session = _with_will(stage, 30)
    will = session.will
    yield 2
    stage.broker.disconnect(session, LOST)
    yield 2
    session.client.will = None
    stage.broker.connect(session.client)
    yield 30
    session.will = will
    stage.broker.fire(session)
    row = stage.row(ev.WILL_FIRED, session)
    stage.inject("W1", "after_resume", row, session=session)


def will_never(stage: Stage) -> Scene:
    session = _with_will(stage, 3600, 10)
    yield 2
    stage.broker.disconnect(session, LOST)
    yield 20
    fired = stage.row(ev.WILL_FIRED, session)
    accepted = [row for row in stage.rows(ev.MSG_ACCEPTED, session) if row["msg"] == fired["msg"]]
    stage.erase([fired, *accepted])
    row = stage.row(ev.SESSION_EXPIRED, session)
    stage.inject("W1", "not_at_the_end", row, session=session)


PLAYS: Final[dict[str, Play]] = {
    play.__name__: play
    for play in (
        present_without_session,
        absent_with_session,
        forgotten,
        wrong_subscriptions,
        wrong_filters,
        wrong_in_flight,
        wrong_position,
        expired_late,
        expired_session_early,
        resumed_expired,
        expired_connected,
        expired_never,
        two_connections,
        silent_take_over,
        missing_after_crash,
        changed_after_crash,
        will_twice,
        will_after_disconnect,
        will_early,
        will_after_resume,
        will_never,
    )
}
CRASHES: Final = frozenset({"missing_after_crash", "changed_after_crash"})

"""A small history with every kind of number in it, and what those numbers are.

Two tenants, a publisher that floods, a reader that falls behind, one that is away, one that flaps,
a crash, retained topics, drops and expiries. Everything is chosen so that it can be counted by
hand; the tests know the sums.
"""

from tests.audit.conftest import History

PUB, READER, LAGGARD = 1 << 40 | 1, 1 << 40 | 2, 1 << 40 | 3
STREAM = 7
MESSAGES = 60  # of the publisher, one a second
BYTES = 100
FLAPS = 30


def session(client: str, number: int, *, tenant: str = "plant", conn: int = 1) -> dict[str, object]:
    """Return the columns that name a session."""
    return {"tenant": tenant, "client_id": client, "session": number, "conn": conn}


def connect(history: History, who: dict[str, object], *, resumed: bool = False) -> None:
    """Let a session come, new or resumed."""
    event = "session_resumed" if resumed else "session_created"
    history.row(event, actor="client", **who, proto=5, clean_start=False, expiry_s=3600, rmax=100,
                sp=resumed, position=0, subs=0, inflight=0, subs_check=0)  # fmt: skip


def leave(history: History, who: dict[str, object], reason: int) -> None:
    """Let a session's connection end."""
    history.row("session_disconnected", **who, reason=reason, expiry_s=3600, subs=0, inflight=0,
                position=0, subs_check=0)  # fmt: skip


def subscribe(history: History, who: dict[str, object]) -> None:
    """Let a session hold the stream of all plant/# messages."""
    history.row("subscribed", **who, tfilter="plant/#", stream=STREAM, position=0, qos=1,
                no_local=False)  # fmt: skip


def publish(history: History, number: int, *, wait: float = 0.001) -> None:
    """Take a message in, down to its acknowledgement."""
    who = session("gateway", PUB)
    history.row("msg_accepted", wait=wait, actor="client", **who, topic="plant/a", pid=number,
                pub_qos=1, dup=False, retain=False, bytes=BYTES, order=number, msg=number,
                pub=PUB)  # fmt: skip
    history.row("msg_enqueued", msg=number, stream=STREAM)
    history.row("msg_persisted", actor="storage", msg=number)
    history.row("pub_acked", **who, msg=number, pid=number, pub_qos=1, reason=0)


def deliver(history: History, who: dict[str, object], number: int, *, attempt: int = 1) -> None:
    """Send a message to a session at QoS 1."""
    history.row("msg_delivered", **who, msg=number, pid=number, qos=1, dup=attempt > 1,
                attempt=attempt, retain=False)  # fmt: skip


def acknowledge(history: History, who: dict[str, object], number: int, wait: float = 0.004) -> None:
    """Let a session acknowledge a message."""
    history.row("msg_acked", wait=wait, actor="client", **who, msg=number, pid=number, qos=1,
                reason=0)  # fmt: skip


def first_boot(history: History) -> None:
    """Write the first boot: a minute of messages, and the crash that ends it."""
    history.boot()
    history.row("recovered", count=0, position=0)
    gateway, reader, laggard = (
        session("gateway", PUB), session("reader", READER), session("laggard", LAGGARD)
    )  # fmt: skip
    for who in (gateway, reader, laggard):
        connect(history, who)
    for who in (reader, laggard):
        subscribe(history, who)
    for number in range(1, MESSAGES + 1):
        publish(history, number, wait=1.0)
        deliver(history, reader, number)
        acknowledge(history, reader, number)
    leave(history, reader, 1001)
    history.row("retained_set", topic="a", msg=1, bytes=10, qos=0)
    history.row("retained_set", topic="b", msg=2, bytes=20, qos=0)
    history.row("retained_set", topic="a", msg=3, bytes=15, qos=0)
    history.row("retained_cleared", topic="b")
    history.row("msg_dropped", **laggard, msg=1, reason=1020, count=1)
    history.row("msg_dropped", **laggard, msg=2, reason=1020, count=1)
    history.row("msg_expired", **laggard, msg=3)
    flapper = session("flapper", 1 << 40 | 9, tenant="other")
    for turn in range(FLAPS):
        connect(history, {**flapper, "conn": turn + 1}, resumed=turn > 0)
        history.row("session_taken_over", **{**flapper, "conn": turn + 1}, reason=0x8E)
        leave(history, {**flapper, "conn": turn + 1}, 0x8E)


def second_boot(history: History) -> None:
    """Write what comes after the crash: the reader is back after a minute away."""
    history.boot()
    reader, laggard = session("reader", READER), session("laggard", LAGGARD)
    for who in (session("gateway", PUB), laggard):
        leave(history, {**who, "conn": 0}, 1002)
    history.now += 60
    history.row("recovered", count=4, position=MESSAGES)
    connect(history, reader, resumed=True)
    connect(history, laggard, resumed=True)
    for number in range(4, 14):
        deliver(history, laggard, number)
        acknowledge(history, laggard, number, wait=1.0)
    history.row("clock_step", detail="-3600 s")
    history.row("shutdown")


def scenario() -> History:
    """Return the whole history."""
    history = History("a")
    first_boot(history)
    second_boot(history)
    return history

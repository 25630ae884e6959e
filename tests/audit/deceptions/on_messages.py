"""Attacks on messages: lost, doubled, late, changed, and covered up."""

from itertools import pairwise

from tests.audit.deceptions.attack import BOTH, CHAIN, CLIENTS, FINDINGS, Attacks, later
from tests.audit.deceptions.tale import Event, Tale

EDGES = "not at the begin and end of a boot, where one of the two counts may be incomplete"
attack = Attacks("messages")


def sent(tale: Tale, client_id: str = "reader", qos: int = 1, at: int = 0) -> Event:
    """Return the first sending of a message to a client, which was answered."""
    answered = {row["msg"] for row in tale.of("msg_acked", client_id=client_id)}
    found = tale.of("msg_delivered", client_id=client_id, qos=qos, attempt=1)
    return [row for row in found if row["msg"] in answered][at]


def answer(tale: Tale, sending: Event, ev: str = "msg_acked") -> Event:
    """Return the answer to a sending."""
    return tale.one(ev, msg=sending["msg"], session=sending["session"])


def hide(tale: Tale, *rows: Event) -> None:
    """Take rows out and close the holes, also in what the next boot says."""
    tale.drop(*rows)
    tale.renumber()


@attack("one row of a delivery dropped")
def delivery_dropped(tale: Tale) -> None:
    """Leave a hole."""
    tale.drop(sent(tale))


@attack("the same, and the rows numbered again")
def delivery_dropped_renumbered(tale: Tale) -> None:
    """The next boot still says how many there were."""
    tale.drop(sent(tale))
    tale.renumber(adjusted=False)


@attack(
    "the same, and what the next boot says of their number",
)
def delivery_dropped_adjusted(tale: Tale) -> None:
    """The acknowledgement stays."""
    hide(tale, sent(tale))


@attack("delivery and acknowledgement hidden: one stored message skipped")
def message_skipped(tale: Tale) -> None:
    """As if it had never been sent."""
    sending = sent(tale, at=3)
    hide(tale, sending, answer(tale, sending))


@attack("the last message for a session hidden, and five minutes pass")
def last_message_not_sent(tale: Tale) -> None:
    """Nothing behind it shows that the session skipped it."""
    tale.rows = [row for row in tale.rows if row["boot"] < 3]
    sending = tale.of("msg_delivered", client_id="reader", attempt=1)[-1]
    hide(tale, sending, answer(tale, sending))


@attack("the routing of a message to one stream hidden")
def not_enqueued(tale: Tale) -> None:
    """With all its deliveries."""
    msg = sent(tale, at=3)["msg"]
    rows = [r for r in tale.about(msg) if r["ev"].startswith(("msg_enq", "msg_del", "msg_ack"))]
    rows += tale.of("msg_completed", msg=msg)
    hide(tale, *rows)


@attack(
    "a whole message hidden, from its acceptance on",
    needs=BOTH,
    why="rows and books are all there is, and a forger who changes both leaves none",
)
def message_hidden(tale: Tale) -> None:
    """The books of its minute are corrected, too."""
    msg = tale.one("msg_accepted", topic="a/1")["msg"]
    rows = tale.about(msg)
    for row in rows:
        correct_the_books(tale, row)
    pid = tale.one("msg_accepted", msg=msg)["pid"]
    exchange = tale.of("pub_released", pid=pid) + tale.of("pub_completed", pid=pid)
    hide(tale, *rows, *(row for row in exchange if row["boot"] == 1))


def correct_the_books(tale: Tale, row: Event) -> None:
    """Take a message out of the books of its minute."""
    stages = {
        "msg_accepted": ("accepted", "stored", "ack_owed"),
        "msg_persisted": ("persisted",),
        "pub_acked": ("pub_acked",),
        "msg_delivered": ("delivered",),
        "msg_acked": ("acked",),
        "msg_completed": ("completed",),
    }
    for stage in stages.get(row["ev"], ()):
        books = tale.of("books", stage=stage)
        mine = [each for each in books if each["bin"] <= row["ts"]][-1]
        mine["count"] -= 1
        mine["check1"] = (mine["check1"] - row["msg"]) % (1 << 61)
        mine["check2"] = (mine["check2"] - row["msg"] ** 2) % (1 << 61)


@attack(
    "the row of a message's acceptance hidden, its other rows left",
    needs=FINDINGS,
    why="the broker counted one message more than there are rows",
)
def acceptance_hidden(tale: Tale) -> None:
    """Only what follows is there."""
    hide(tale, tale.one("msg_accepted", topic="a/1"))


@attack("acknowledged to its publisher before it was durable")
def acked_too_early(tale: Tale) -> None:
    """PUBACK before the commit."""
    acked = tale.one("pub_acked", pub_qos=1)
    accepted = tale.one("msg_accepted", msg=acked["msg"])
    tale.move(acked, after=accepted)
    tale.renumber()


@attack("storing and sending of a message hidden, its PUBACK left")
def acked_only(tale: Tale) -> None:
    """It was promised, and nothing became of it."""
    msg = tale.one("pub_acked", pub_qos=1)["msg"]
    keep = ("msg_accepted", "pub_acked")
    hide(tale, *(row for row in tale.about(msg) if row["ev"] not in keep))


@attack("QoS 2: sent again after its PUBREC")
def sent_after_pubrec(tale: Tale) -> None:
    """PUBLISH instead of PUBREL."""
    sending = sent(tale, "exact", 2)
    acked = answer(tale, sending)
    tale.insert(acked, **{**sending, "dup": True, "attempt": 2, **_place(acked)})
    tale.renumber()


@attack("QoS 2: accepted twice in one exchange")
def accepted_twice(tale: Tale) -> None:
    """Between PUBREC and PUBREL."""
    accepted = tale.one("msg_accepted", pub_qos=2)
    acked = tale.one("pub_acked", msg=accepted["msg"])
    again = {**accepted, "dup": True, "msg": 1 << 62 | 1 << 40 | 99, "order": accepted["order"]}
    tale.insert(acked, **{**again, **_place(acked)})
    tale.renumber()


@attack("QoS 2: accepted again with DUP 1 behind a crash, though its PUBREL was not there yet")
def accepted_twice_over_a_crash(tale: Tale) -> None:
    """The exchange was open when the broker died."""
    accepted = [row for row in tale.of("msg_accepted", boot=1, pub_qos=2)][-1]
    resumed = tale.one("session_resumed", boot=2, client_id="giver")
    rest = ("pub_released", "pub_completed")
    gone = [
        row
        for row in tale.rows
        if row["ev"] in rest and row["boot"] == 1 and row["pid"] == accepted["pid"]
    ]
    new = {"dup": True, "msg": 1 << 62 | 2 << 40 | 99, "conn": resumed["conn"]}
    tale.insert(resumed, **{**accepted, **new, **_place(resumed)})
    tale.drop(*gone)
    tale.renumber()


def _place(row: Event) -> Event:
    return {name: row[name] for name in ("boot", "seq", "ts", "mono_ns")}


@attack("QoS 1: sent again on the same connection")
def sent_again_without_reconnect(tale: Tale) -> None:
    """With DUP, but nobody reconnected."""
    sending = sent(tale)
    tale.insert(sending, dup=True, attempt=2)
    tale.renumber()


@attack("the messages of two deliveries swapped")
def deliveries_swapped(tale: Tale) -> None:
    """The acknowledgements name the others."""
    one, other = sent(tale, at=0), sent(tale, at=1)
    one["msg"], other["msg"] = other["msg"], one["msg"]


@attack("the same with their acknowledgements")
def deliveries_swapped_whole(tale: Tale) -> None:
    """The second one arrives before it was accepted."""
    one, other = sent(tale, at=0), sent(tale, at=1)
    acked, other_acked = answer(tale, one), answer(tale, other)
    one["msg"], other["msg"] = other["msg"], one["msg"]
    acked["msg"], other_acked["msg"] = other_acked["msg"], acked["msg"]


@attack("two messages of one publisher and topic in the wrong order")
def wrong_order(tale: Tale) -> None:
    """Of what waited for a session that was away."""
    waited = [
        r for r in tale.of("msg_delivered", client_id="away") if tale.topics()[r["msg"]] == "a/0"
    ]
    one, other = waited[0], waited[1]
    acks = [tale.one("msg_acked", msg=row["msg"], client_id="away") for row in (one, other)]
    for mine, theirs in ((one, other), (acks[0], acks[1])):
        mine["msg"], theirs["msg"] = theirs["msg"], mine["msg"]


@attack("a message sent after it had expired")
def sent_expired(tale: Tale) -> None:
    """Where the broker dropped it."""
    expired = tale.one("msg_expired", client_id="away")
    like = tale.one("msg_delivered", client_id="away")
    pid = 1 + max(row["pid"] for row in tale.of("msg_delivered", client_id="away"))
    own = {"ev": "msg_delivered", "msg": expired["msg"], "pid": pid, "conn": like["conn"]}
    changed = {**like, **own, **_place(expired)}
    acked = {**tale.one("msg_acked", client_id="away"), **own, "ev": "msg_acked", **_place(expired)}
    tale.insert(expired, **acked)
    tale.insert(expired, **changed)
    hide(tale, expired)


@attack("a message dropped as expired before its time")
def expired_early(tale: Tale) -> None:
    """Of one that lives for half an hour."""
    msg = tale.one("msg_accepted", topic="a/long")["msg"]
    sending = tale.one("msg_delivered", client_id="away", msg=msg)
    acked = answer(tale, sending)
    tale.insert(sending, ev="msg_expired", pid=None, qos=None, dup=None, attempt=None, retain=None)
    hide(tale, sending, acked)


@attack("more in flight than the client's Receive Maximum")
def window_exceeded(tale: Tale) -> None:
    """The client said 2; now it says 1."""
    for ev in ("session_created", "session_resumed"):
        for row in tale.of(ev, client_id="exact"):
            row["rmax"] = 1


@attack(
    "a message delivered twice on the wire, written down once",
    needs=CLIENTS,
    why="rows say what the broker meant to send, not what it sent",
)
def twice_on_the_wire(tale: Tale) -> None:
    """Nothing in the history shows it."""


@attack(
    "another payload delivered than was accepted",
    needs=CLIENTS,
    why="the history has no payloads, and sizes only of what was accepted",
)
def payload_changed(tale: Tale) -> None:
    """Nothing in the history shows it."""
    tale.one("msg_accepted", topic="a/0")["bytes"] += 1


@attack(
    "the topic of a message changed to one that nobody wants",
    needs=CLIENTS,
    why="L3 asks whether a message is in every stream that wants it, not whether it is in others",
)
def topic_changed(tale: Tale) -> None:
    """It was routed all the same."""
    tale.one("msg_accepted", topic="a/1")["topic"] = "b/1"


@attack("the topic of a message changed to one that more sessions want")
def topic_changed_to_more(tale: Tale) -> None:
    """They did not get it."""
    tale.one("msg_accepted", topic="a/1")["topic"] = "will/1"


@attack("a delivery written down for another session")
def for_another_session(tale: Tale) -> None:
    """Which gets nothing of this topic."""
    other = tale.one("session_created", client_id="late")
    for row in (sent(tale, at=5), answer(tale, sent(tale, at=5))):
        row |= {name: other[name] for name in ("client_id", "session", "conn")}


@attack("one row's time moved back by five minutes")
def time_of_a_row(tale: Tale) -> None:
    """In the middle of a boot."""
    later(sent(tale, at=4), -300)


@attack(
    "one row's time moved within what its neighbours allow",
    needs=CHAIN,
    why="any order of times that does not go back is possible",
)
def time_between_neighbours(tale: Tale) -> None:
    """By half a second, where a second passes."""
    expired = tale.one("session_expired", client_id="brief")
    after = tale.rows[tale.index(expired) + 1]
    later(expired, (after["ts"] - expired["ts"]).total_seconds() / 2)


@attack("a session that was away told further on than it had got")
def position_ahead(tale: Tale) -> None:
    """As if half of what waits for it had been sent."""
    restored = tale.one("session_restored", boot=2, client_id="away")
    restored["position"] = 10


@attack(
    "messages dropped for a limit that no operator set",
    needs=CLIENTS,
    why="limits are not in the history: a drop is told, and counted in `facts`",
)
def dropped_for_no_reason(tale: Tale) -> None:
    """The broker says so itself, as queue_full."""
    sending = tale.one("msg_delivered", client_id="away")
    acked = answer(tale, sending)
    empty = dict.fromkeys(("pid", "qos", "dup", "attempt", "retain"))
    tale.insert(sending, ev="msg_dropped", reason=1020, count=1, actor="broker", **empty)
    hide(tale, sending, acked)


@attack("three messages more in the books of a minute", needs=FINDINGS, why=EDGES)
def books_of_a_minute(tale: Tale) -> None:
    """Three more than there were."""
    tale.one("books", stage="delivered")["count"] += 3


@attack(
    "a minute's books hidden",
    needs=CHAIN,
    why="a minute of which the broker has no books is compared with nothing",
)
def books_hidden(tale: Tale) -> None:
    """All stages of one minute."""
    first = tale.one("books")
    hide(tale, *tale.of("books", bin=first["bin"]))


@attack("QoS 1: the acknowledgement of a message hidden")
def ack_hidden(tale: Tale) -> None:
    """It seems to be in flight for ever."""
    hide(tale, answer(tale, sent(tale, at=4)))


@attack("a packet identifier that is still in use names another message")
def identifier_reused(tale: Tale) -> None:
    """Two messages in flight at once."""
    sendings = tale.of("msg_delivered", client_id="exact", attempt=1)
    answered = {row["msg"]: tale.index(row) for row in tale.of("msg_completed", client_id="exact")}
    one, other = next(
        (one, other)
        for one, other in pairwise(sendings)
        if one["conn"] == other["conn"] and tale.index(other) < answered.get(one["msg"], 0)
    )
    other["pid"] = one["pid"]

"""Attacks on sessions, wills and retained messages."""

from datetime import timedelta

from tests.audit.deceptions.attack import BOTH, CLIENTS, Attacks, later
from tests.audit.deceptions.on_messages import hide
from tests.audit.deceptions.tale import Event, Tale

attack = Attacks("sessions, wills, retained messages")


@attack("a subscription forgotten at a crash")
def subscription_forgotten(tale: Tale) -> None:
    """What the broker found has one less."""
    for ev in ("session_restored", "session_resumed"):
        row = tale.one(ev, boot=2, client_id="reader")
        row |= {"subs": 1, "subs_check": row["subs_check"] - 1}


@attack("a session gone behind a crash, and begun anew")
def session_gone(tale: Tale) -> None:
    """The broker found one less, and lets the client begin."""
    recovered = tale.one("recovered", boot=2)
    recovered["count"] -= 1
    resumed = tale.one("session_resumed", boot=2, client_id="away")
    resumed |= {"ev": "session_created", "sp": False, "session": 2 << 40 | 99, "subs": 0}
    for row in tale.of("msg_delivered", client_id="away") + tale.of("msg_acked", client_id="away"):
        tale.drop(row)
    hide(tale, tale.one("session_restored", boot=2, client_id="away"))


@attack("what was in flight forgotten at a crash")
def in_flight_forgotten(tale: Tale) -> None:
    """The session comes back with an empty window."""
    for ev in ("session_restored", "session_resumed"):
        tale.one(ev, boot=2, client_id="exact")["inflight"] = 0


@attack("a session expired a minute early")
def session_expired_early(tale: Tale) -> None:
    """Its interval was 200 s."""
    expired = tale.one("session_expired", client_id="later")
    target = next(
        row
        for row in tale.rows
        if row["boot"] == 2 and row["ts"] > expired["ts"] - timedelta(seconds=61)
    )
    expired["at"] = target["ts"]
    tale.move(expired, after=target)
    tale.renumber()


@attack("a session never expired")
def never_expired(tale: Tale) -> None:
    """It was due long ago."""
    hide(tale, tale.one("session_expired", client_id="later"))


@attack("Session Present told wrong")
def session_present(tale: Tale) -> None:
    """1 for a new session."""
    tale.one("session_created", client_id="late")["sp"] = True


@attack(
    "Session Present right in the history, wrong on the wire",
    needs=CLIENTS,
    why="rows say what the broker meant to send, not what it sent",
)
def session_present_on_the_wire(tale: Tale) -> None:
    """Nothing in the history shows it."""


@attack("a Clean Start that its client did not ask for")
def clean_start(tale: Tale) -> None:
    """A session is replaced by an empty one."""
    resumed = tale.one("session_resumed", boot=1, client_id="back")
    ended = {**resumed, "ev": "session_terminated", "reason": 1011, "sp": None, "subs": None}
    tale.rows.insert(tale.index(resumed), ended)
    number = 1 << 40 | 99
    for row in tale.rows[tale.index(resumed) :]:
        if row["client_id"] == "back":
            row["session"] = number
    resumed |= {"ev": "session_created", "sp": False, "clean_start": False}
    tale.renumber()


@attack("two connections of one session: the old one was not sent away")
def not_taken_over(tale: Tale) -> None:
    """It has no 0x8E, and no end."""
    hide(
        tale,
        tale.one("session_taken_over", client_id="twice"),
        tale.one("session_disconnected", client_id="twice", reason=142),
    )


@attack("another subscription than before in a resumed session")
def other_subscription(tale: Tale) -> None:
    """The same number of them."""
    tale.one("session_resumed", boot=1, client_id="exact")["subs_check"] += 1


@attack("a will published twice, with two rows")
def will_twice(tale: Tale) -> None:
    """The client got it twice."""
    fired = tale.one("will_fired", client_id="dying")
    tale.insert(fired)
    tale.renumber()


@attack("a will published twice, with one row")
def will_twice_one_row(tale: Tale) -> None:
    """Another message in its client's name has none."""
    fired = tale.one("will_fired", client_id="waiting")
    rows = [row for row in tale.about(fired["msg"]) if row["ev"].startswith("msg_")]
    copies = [{**row, "msg": 1 << 62 | 1 << 40 | 77} for row in rows if row["ev"] == "msg_accepted"]
    for row in copies:
        row["order"] += 1
        tale.rows.insert(tale.index(fired) + 1, row)
    for row in tale.rows[tale.index(fired) :]:
        if row["boot"] == 1 and row["ev"] == "gc_run" and row["ts"] == fired["ts"]:
            row["count"] += 1
    tale.renumber()


@attack("a will held back for 75 seconds beyond its delay")
def will_late(tale: Tale) -> None:
    """It is published in the next boot."""
    fired = tale.one("will_fired", client_id="waiting")
    resumed = tale.one("will_armed", client_id="waiting")
    due = tale.one("will_delayed", client_id="waiting")
    resumed["expiry_s"] = 5
    due["at"] = due["ts"] + timedelta(seconds=5)
    fired["at"] = due["at"]


@attack("a will never published: its row hidden")
def will_hidden(tale: Tale) -> None:
    """Its message is there."""
    hide(tale, tale.one("will_fired", client_id="dying"))


@attack("a will never published: its row and its message hidden")
def will_and_message_hidden(tale: Tale) -> None:
    """Its client said nothing at the end."""
    fired = tale.one("will_fired", client_id="dying")
    hide(tale, *tale.about(fired["msg"]))


@attack("a will published though its client had said goodbye")
def will_behind_a_disconnect(tale: Tale) -> None:
    """The DISCONNECT had 0x00."""
    cancelled = tale.one("will_cancelled", client_id="calm")
    cancelled |= {"ev": "will_fired", "reason": None, "qos": 1, "msg": 1 << 62 | 1 << 40 | 88}


@attack("a will cancelled by a resume that did not happen")
def will_cancelled(tale: Tale) -> None:
    """Its message is hidden."""
    fired = tale.one("will_fired", client_id="waiting")
    rest = [row for row in tale.about(fired["msg"]) if row is not fired]
    fired |= {"ev": "will_cancelled", "reason": 1041, "msg": None, "qos": None}
    hide(tale, *rest)


@attack("a will that is due at the end of the history and not published")
def will_due_at_the_end(tale: Tale) -> None:
    """What follows is cut off; it had no time left."""
    fired = tale.one("will_fired", client_id="waiting")
    cut = next(at for at, row in enumerate(tale.rows) if row["ts"] >= fired["ts"])
    tale.rows = tale.rows[:cut]
    due = tale.one("will_delayed", client_id="waiting")
    due["at"] -= timedelta(seconds=8)
    tale.one("will_armed", client_id="waiting")["expiry_s"] -= 8


@attack("an older retained message sent than the last one set")
def old_retained(tale: Tale) -> None:
    """As if it had not been replaced."""
    first, _ = tale.of("retained_set", boot=1)
    sent = tale.one("retained_sent", client_id="late")
    sent["at"] = first["at"] - timedelta(seconds=1)


@attack(
    "a retained message not sent to a new subscription",
    needs=CLIENTS,
    why="R1 judges what was sent; what a subscription asks for is not in the history",
)
def retained_not_sent(tale: Tale) -> None:
    """Its row and its acknowledgement are hidden."""
    sent = tale.one("retained_sent", client_id="late")
    after = tale.rows[tale.index(sent) + 1 :]
    acked = next(row for row in after if row["session"] == sent["session"])
    hide(tale, sent, acked)


@attack("a retained message set, and its row hidden")
def retained_set_hidden(tale: Tale) -> None:
    """It is sent all the same."""
    hide(tale, tale.one("retained_set", boot=2))


@attack(
    "a subscription hidden, with its session's check sums corrected",
    needs=BOTH,
    why="a subscription that the history does not have owes nothing",
)
def subscription_hidden(tale: Tale) -> None:
    """And everything that was sent for it."""
    mine = [row for row in tale.rows if row["client_id"] == "late"]
    hidden = [row for row in mine if row["ev"] in ("subscribed", "retained_sent")]
    hidden += [row for row in mine if row["ev"].startswith("msg_")]
    for row in mine:
        if row["subs"]:
            row |= {"subs": 0, "subs_check": 0}
    hide(tale, *hidden)


@attack("all rows of a client hidden", needs=BOTH, why="nothing is left that knows of the client")
def client_hidden(tale: Tale) -> None:
    """It has a session over the crash; the numbers of sessions are corrected."""
    mine = [row for row in tale.rows if row["client_id"] == "calm"]
    for row in tale.of("recovered"):
        row["count"] -= any(_is_restored(each, row["boot"]) for each in mine)
        row["detail"] = f"{row['count']} restored, 0 damaged"
    hide(tale, *mine)


def _is_restored(row: Event, boot: int) -> bool:
    return row["ev"] == "session_restored" and row["boot"] == boot


@attack("a session that was connected all the time told as expired")
def expired_while_connected(tale: Tale) -> None:
    """In the middle of its connection."""
    gc = next(row for row in tale.of("gc_run", boot=2))
    like = tale.one("session_expired", client_id="later")
    mine = tale.one("session_created", client_id="later reader")
    own = {name: mine[name] for name in ("client_id", "session", "tenant")}
    place = {name: gc[name] for name in ("boot", "seq", "ts", "mono_ns")}
    tale.insert(gc, **{**like, **own, **place, "at": gc["ts"]})
    tale.renumber()


@attack("a whole boot ten minutes earlier")
def boot_moved_back(tale: Tale) -> None:
    """Before the end of the one before it."""
    for row in tale.rows:
        if row["boot"] == 2:
            later(row, -600)


@attack(
    "a whole boot, and all behind it, ten minutes later",
    needs=CLIENTS,
    why="the broker may have been down for so long",
)
def boot_moved_on(tale: Tale) -> None:
    """What expires in it expires later, too."""
    for row in tale.rows:
        if row["boot"] == 3:
            later(row, 600)

"""Histories of messages, told in verbs."""

from tests.audit.conftest import History

PUBLISHER = 9


class Story:
    """A history with one stream per filter, whose sessions are told in verbs."""

    def __init__(self, history: History) -> None:
        self.history = history
        self.offset = 0
        self.streams: dict[str, int] = {}
        history.boot()

    def row(self, ev: str, session: int, **columns: object) -> dict[str, object]:
        names = {"tenant": "", "client_id": f"c{session}", "session": session}
        return self.history.row(ev, **{**names, **columns})

    def connect(self, session: int, conn: int = 1, **columns: object) -> None:
        ev = "session_resumed" if columns.get("sp") else "session_created"
        self.row(ev, session, conn=conn, **{"rmax": 10, "expiry_s": 3600, "sp": False, **columns})

    def resume(self, session: int, conn: int = 2, **columns: object) -> None:
        self.row("session_disconnected", session, conn=conn - 1, reason=1001)
        self.connect(session, conn, sp=True, **columns)

    def subscribe(self, session: int, tfilter: str, **columns: object) -> None:
        self.streams.setdefault(tfilter, len(self.streams) + 1)
        held = {"qos": 1, "stream": self.streams[tfilter], "no_local": False}
        self.row("subscribed", session, conn=1, tfilter=tfilter, **{**held, **columns})

    def publish(self, topic: str, *filters: str, acked: bool = True, **columns: object) -> int:
        """Store a message, put it into streams and acknowledge it; return its number."""
        self.offset += 1
        msg = self.offset
        values = {"pub_qos": 1, "pid": 1, "conn": 99, "pub": PUBLISHER, **columns}
        pub = values["pub"]
        assert isinstance(pub, int)
        self.row("msg_accepted", pub, msg=msg, topic=topic, order=msg, **values)
        for tfilter in filters:
            self.history.row("msg_enqueued", msg=msg, stream=self.streams[tfilter])
        if acked:
            self.history.row("msg_persisted", msg=msg)
            self.row("pub_acked", pub, msg=msg, pid=values["pid"], pub_qos=values["pub_qos"])
        return msg

    def say_it_was_the_will_of(self, session: int, msg: int) -> None:
        """Let a message have been a will: accepted in a client's name, in no session."""
        (accepted,) = (
            row for row in self.history.rows if (row["ev"], row.get("msg")) == ("msg_accepted", msg)
        )
        accepted |= {"session": None, "pub": None, "actor": "broker"}
        self.row("will_fired", session, msg=msg, topic=accepted["topic"], qos=1)

    def deliver(self, session: int, msg: int, pid: int = 1, **columns: object) -> None:
        values = {"conn": 1, "qos": 1, "attempt": 1, "dup": False, **columns}
        self.row("msg_delivered", session, msg=msg, pid=pid, **values)

    def ack(self, session: int, msg: int | None, pid: int = 1, **columns: object) -> None:
        values = {"conn": 1, "qos": 1, "reason": 0, **columns}
        self.row("msg_acked", session, msg=msg, pid=pid, **values)

    def exchange(self, session: int, *messages: int, **columns: object) -> None:
        for msg in messages:
            self.deliver(session, msg, **columns)
            self.ack(session, msg)

"""Logs of clients written by hand, and the rows that a history has of the same events."""

import hashlib
from typing import Any

from audit.clients import records as fields
from audit.clients.judgement import Life
from tests.audit.conftest import START, History

Record = dict[str, Any]
START_US = int(START.timestamp() * 1_000_000)


def hash_of(payload: str) -> str:
    """Return the hash that a log has of a payload."""
    return hashlib.sha256(payload.encode()).hexdigest()[: fields.HASH_DIGITS]


class Logbook:
    """A client and the broker, told together: each verb writes both sides, or one of them.

    `log` False leaves out what the client logged, `row` False what the history recorded.
    """

    def __init__(self, history: History, client_id: str, session: int, *, log: str = "") -> None:
        self.history = history
        self.client_id = client_id
        self.session = session
        self.log = log or f"log-{client_id}"
        self.conn = 0
        self.records: list[Record] = []

    def write(self, event: str, **values: object) -> Record:
        """Append a record with the time of the history's last row."""
        given = {
            "v": 1,
            "log": self.log,
            "n": len(self.records) + 1,
            "client_id": self.client_id,
            "at_us": START_US + int(self.history.now * 1_000_000),
            "event": event,
            **values,
        }
        self.records.append({name: given.get(name) for name in fields.FIELDS})
        return self.records[-1]

    def tell(self, ev: str, **columns: object) -> dict[str, object]:
        """Append a row about the client."""
        own = {"tenant": "", "client_id": self.client_id, "session": self.session}
        return self.history.row(ev, **{**own, "conn": self.conn, **columns})

    def connect(self, *, present: bool, row: bool = True, **values: object) -> None:
        """Connect; `present` is what CONNACK said."""
        self.conn += 1
        if row:
            ev = "session_resumed" if present else "session_created"
            self.tell(ev, sp=present, expiry_s=3600, rmax=100, clean_start=False)
        self.write("connected", session_present=present, **{"server": "broker:1883", **values})

    def subscribe(self, tfilter: str, stream: int = 1, qos: int = 1) -> None:
        """Subscribe."""
        self.tell("subscribed", tfilter=tfilter, stream=stream, qos=qos, position=0, no_local=False)
        self.write("subscribed", filter=tfilter, reason=qos)

    def publish(
        self, msg: int, topic: str, payload: str, *, pid: int = 0, qos: int = 1, row: bool = True,
        log: bool = True, reason: int = 0,
    ) -> None:  # fmt: skip
        """Publish a message and get the answer."""
        pid = pid or msg
        if row:
            self.tell(
                "msg_accepted", msg=msg, pub=self.session, topic=topic, pid=pid, pub_qos=qos,
                bytes=len(payload), dup=False, retain=False, order=msg,
            )  # fmt: skip
            self.tell("pub_acked", msg=msg, pid=pid, pub_qos=qos, reason=reason)
        if log:
            self.write(
                "published", pid=pid, qos=qos, topic=topic, hash=hash_of(payload),
                bytes=len(payload), retain=False,
            )  # fmt: skip
            self.write("puback" if qos == 1 else "pubcomp", pid=pid, reason=reason)

    def receive(
        self, msg: int, topic: str, payload: str, *, pid: int = 0, qos: int = 1, row: bool = True,
        log: bool = True,
    ) -> None:  # fmt: skip
        """Get a message and acknowledge it."""
        pid = pid or msg
        if row:
            own = {"msg": msg, "pid": pid, "qos": qos}
            self.tell("msg_delivered", **own, dup=False, retain=False, attempt=1)
            self.tell("msg_acked", **own, reason=0)
            if qos == 2:
                self.tell("msg_completed", **own)
        if log:
            self.write(
                "received", pid=pid, qos=qos, topic=topic, hash=hash_of(payload),
                bytes=len(payload), dup=False, retain=False,
            )  # fmt: skip


def rows_of(history: History, client_id: str) -> list[Record]:
    """Return the rows as the judgement of one client gets them, messages with their topic."""
    topics = {row["msg"]: row["topic"] for row in history.rows if row["ev"] == "msg_accepted"}
    names = ("node", "ev", "conn", "sp", "msg", "topic", "pid", "qos", "pub_qos", "bytes", "reason")
    found = []
    for row in history.rows:
        if row.get("client_id") != client_id:
            continue
        told: Record = {name: row.get(name) for name in names}
        if told["topic"] is None:
            told["topic"] = topics.get(told["msg"])
        boot, seq, ts = row["boot"], row["seq"], row["ts"]
        assert isinstance(boot, int) and isinstance(seq, int)
        told |= {"gseq": boot << 40 | seq, "us": int(ts.timestamp() * 1_000_000)}  # type: ignore[attr-defined]
        found.append(told)
    return found


def lives_of(history: History) -> list[Life]:
    """Return the boots of a history."""
    clean = {row["boot"] for row in history.rows if row["ev"] == "shutdown"}
    return [
        Life(history.node, boot, boot in clean)  # type: ignore[arg-type]
        for boot in sorted({row["boot"] for row in history.rows})  # type: ignore[type-var]
    ]

"""Sessions told row by row, and what the judgement says of them: no Spark."""

import numpy as np

from audit.checks import packed_rows as packed
from audit.checks.judge_session import trace
from audit.checks.packed_rows import OPEN_END, OUTCOMES, SUSPICIONS, Clock, Longs

HOUR = 3_600_000_000


class Session:
    """Rows of a session, a second apart, in the order they are told."""

    def __init__(self, session: int = 1, group: bool = False, node: int = 0) -> None:
        self.rows: list[dict[str, int]] = []
        self.session, self.owner = session, node * 2 + int(group)
        self.boot, self.seq, self.now = 1, 0, 0
        self.conn = 1

    def row(self, kind: int, msg: int = -1, a: int = -1, stream: int = -1, **fields: int) -> int:
        self.seq += 1
        self.now += 1_000_000
        b = kind
        for name, value in fields.items():
            shift, bits = getattr(packed, name.upper())
            assert value < 1 << bits
            b |= value << shift
        gseq = self.boot << 40 | self.seq
        self.rows.append(
            {
                "owner": self.owner,
                "session": self.session,
                "gseq": gseq,
                "ts": self.now,
                "msg": msg,
                "a": a,
                "b": b,
                "stream": stream,
            }
        )
        return gseq

    def connect(self, rmax: int = 10, resumed: bool = False) -> None:
        self.conn += 1
        self.row(packed.CONNECTED, a=self.conn, extra=rmax, dup=int(resumed))

    def resume(self, rmax: int = 10) -> None:
        self.row(packed.OFFLINE)
        self.connect(rmax, resumed=True)

    def crash(self) -> None:
        self.boot += 1
        self.seq = 0

    def owe(self, *messages: int, until: int = OPEN_END) -> None:
        for msg in messages:
            self.row(packed.OWED, msg, until, stream=7)

    def send(self, msg: int, pid: int, qos: int = 1, **fields: int) -> None:
        fields = {"attempt": 1, **fields}
        self.row(packed.DELIVERED, msg, self.conn, qos=qos, pid=pid, **fields)

    def resend(self, msg: int, pid: int, qos: int = 1, **fields: int) -> None:
        self.send(msg, pid, qos, **{"attempt": 2, "dup": 1, **fields})

    def ack(self, msg: int, pid: int, qos: int = 1, reason: int = 0) -> None:
        self.row(packed.ACKED, msg, self.conn, qos=qos, pid=pid, reason=reason)

    def complete(self, msg: int, pid: int) -> None:
        self.row(packed.COMPLETED, msg, self.conn, qos=2, pid=pid)

    def exchange(self, msg: int, pid: int = 1) -> None:
        self.send(msg, pid)
        self.ack(msg, pid)


def traced(
    *sessions: Session, crashed: list[int] | None = None, horizon_us: int = HOUR, wait_us: int = 0
) -> tuple[dict[str, Longs] | None, dict[str, Longs]]:
    """Return deliveries and suspicions, `wait_us` after the newest row of each node."""
    rows = [row for session in sessions for row in session.rows]
    rng = np.random.default_rng(7)
    order = rng.permutation(len(rows))  # the order they come in means nothing
    columns = {name: np.array([rows[at][name] for at in order], np.int64) for name in packed.PACKED}
    died = [max(row["ts"] for row in rows if row["gseq"] >> 40 == boot) for boot in crashed or []]
    end_us: dict[int, int] = {}
    boot: dict[int, int] = {}
    for session in sessions:
        node = session.owner >> 1
        newest = max((row["ts"] for row in session.rows), default=0) + wait_us
        end_us[node] = max(end_us.get(node, 0), newest)
        boot[node] = max(boot.get(node, 0), session.boot)
    clock = Clock(
        end_us=end_us,
        boot=boot,
        crashed={node: crashed or [] for node in boot},
        died_us=dict.fromkeys(boot, died),
        horizon_us=horizon_us,
    )
    return trace(columns, clock)


def table(*sessions: Session, wait_us: int = 0) -> dict[int, dict[str, int]]:
    """Return the columns of each delivery by message, without those that are -1: none."""
    deliveries, _ = traced(*sessions, wait_us=wait_us)
    assert deliveries is not None
    found = [
        {name: int(column[at]) for name, column in deliveries.items() if column[at] != -1}
        for at in range(len(deliveries["msg"]))
    ]
    return {row.pop("msg"): row for row in found}


def accusations(*sessions: Session, wait_us: int = 0) -> list[tuple[str, int, int, int, int]]:
    """Return the suspicions as (what, message, from, to, other)."""
    _, found = traced(*sessions, wait_us=wait_us)
    names = ("msg", "from_gseq", "to_gseq", "other")
    return sorted(
        (SUSPICIONS[int(found["code"][at])][1], *(int(found[name][at]) for name in names))
        for at in range(len(found["code"]))
    )


def judge(
    *sessions: Session, crashed: list[int] | None = None, horizon_us: int = HOUR, wait_us: int = 0
) -> tuple[dict[int, str], list[tuple[str, str, int]]]:
    """Return outcomes by message, and suspicions as (check, what, message)."""
    deliveries, found = traced(*sessions, crashed=crashed, horizon_us=horizon_us, wait_us=wait_us)
    outcomes = {}
    if deliveries is not None:
        outcomes = {
            int(msg): OUTCOMES[code]
            for msg, code in zip(deliveries["msg"], deliveries["outcome"], strict=True)
        }
    suspicions = sorted(
        (*SUSPICIONS[code], int(msg)) for code, msg in zip(found["code"], found["msg"], strict=True)
    )
    return outcomes, suspicions

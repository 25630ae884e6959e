"""The log of one client beside the rows of its history: what does not agree. No Spark.

Messages are matched by topic, packet identifier and QoS, and those a client published also by
length: the history has no payloads. Only counts are compared, so it does not matter which of two
equal messages is which; where both sides have as many, they are paired in order.

A client's clock may be wrong and a log may end anywhere, so time decides little. What is missing on
one side is an accusation only if the same log has something before it and behind it that is on both
sides: then history and log were both written when it happened. A crash of the broker between the
two takes the last rows, but no message that a stored subscription or a retained topic was promised.
"""

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Final

Record = dict[str, Any]
Key = tuple[Any, ...]
Pair = tuple[Record, Record]  # a record and its row
_Sent = tuple[tuple[str, int, int], int, int]  # connection, gseq of the row, place of the record

SEQ_BITS: Final = 40  # of a gseq, as in audit.input.events
CLOCK_TOLERANCE_US: Final = 5_000_000  # between a client's event and its row
PAIR_TOLERANCE_US: Final = 60_000_000  # of a pair, from what is usual in its log
NO_SUBSCRIBERS: Final = 0x10
FAILED: Final = 0x80  # reason codes from here on refuse
NAME_MAX: Final = 1024  # characters; the history shortens longer topics
_INVARIANTS: Final = ("C1", "C2", "C3", "C4")
_CONNECTS: Final = ("session_created", "session_resumed")
_SENT: Final = ("msg_delivered", "retained_sent")


@dataclass(frozen=True)
class Life:
    """A boot of a broker: did it end in order?"""

    node: str
    boot: int
    clean: bool


@dataclass
class Finding:
    """Something that does not agree; `certain` False counts as unknown."""

    invariant: str
    what: str
    certain: bool
    count: int = 1
    node: str | None = None
    from_gseq: int | None = None
    to_gseq: int | None = None
    topic: str | None = None
    hash: str | None = None
    pid: int | None = None
    log: str | None = None
    n: int | None = None
    at_us: int | None = None
    # It may be lost with a crash unless a stored subscription for its topic outlasts that.
    durable: bool = False


@dataclass
class Judged:
    """What the judgement of one client says."""

    findings: list[Finding] = field(default_factory=list)
    checked: dict[str, int] = field(default_factory=lambda: dict.fromkeys(_INVARIANTS, 0))
    # (record, row): the same event on both sides, in the order of the log
    pairs: list[Pair] = field(default_factory=list)
    acked: dict[int, bool] = field(default_factory=dict)  # place of `published` -> acknowledged
    acked_at: dict[int, int] = field(default_factory=dict)  # place of `published` -> of its answer
    unwanted: set[int] = field(default_factory=set)  # places of those answered: no subscribers


def judge(records: Iterable[Record], rows: Iterable[Record], lives: Sequence[Life]) -> Judged:
    """Judge one client. Each record gets `place`, its number in the order of all its logs."""
    log = in_order(records)
    rows = sorted(rows, key=lambda row: (row["node"], row["gseq"]))
    return _Client(log, rows, lives).judged()


def in_order(records: Iterable[Record]) -> list[Record]:
    """Return the records log by log, and number them by `place`."""
    logs: dict[str, list[Record]] = defaultdict(list)
    for record in records:
        logs[record["log"]].append(record)
    for lines in logs.values():
        lines.sort(key=lambda record: record["n"])
    found = sorted(logs.values(), key=lambda lines: (lines[0]["at_us"], lines[0]["log"]))
    ordered = [record for lines in found for record in lines]
    for place, record in enumerate(ordered):
        record["place"] = place
    return ordered


class _Client:
    def __init__(self, log: list[Record], rows: list[Record], lives: Sequence[Life]) -> None:
        self._log: Final = log
        self._rows: Final = rows
        self._crashed: Final = {(life.node, life.boot) for life in lives if not life.clean}
        self._found: Final = Judged()
        self._places: list[int] = []  # of the records in pairs
        self._opened: list[int] = []  # places of CONNACKs
        self._servers: set[str] = set()  # to which a connection is known to the history

    def judged(self) -> Judged:
        published, missing_accepts = self._publications()
        received, missing_sends = self._receipts()
        self._found.pairs += _at_one_distance([*published, *received])
        self._connections()
        self._found.pairs.sort(key=lambda pair: int(pair[0]["place"]))
        self._places = [record["place"] for record, _ in self._found.pairs]
        self._opened = [record["place"] for record in self._log if record["event"] == "connected"]
        self._servers = {
            self._log[place]["server"]
            for number, place in enumerate(self._opened)
            if self._is_known(number) and self._log[place]["server"] is not None
        }
        for key, records, short in missing_accepts:
            self._not_accepted(key, records, short)
        for key, records, short in missing_sends:
            self._not_sent(key, records, short)
        self._received_twice()
        self._never_seen()
        return self._found

    # Published.

    def _publications(self) -> tuple[list[Pair], list[tuple[Key, list[Record], int]]]:
        """Match what was published and acknowledged with what was accepted."""
        published: dict[Key, list[Record]] = defaultdict(list)
        open_: dict[tuple[str, int], Record] = {}
        for record in self._log:
            place = (record["log"], record["pid"] or 0)
            if record["event"] == "published" and record["qos"] > 0:
                open_[place] = record
                self._found.acked[record["place"]] = False
                published[_published_key(record)].append(record)
            elif record["event"] in ("puback", "pubrec", "pubcomp") and place in open_:
                first = open_[place]["place"]
                if record["event"] != "pubrec":
                    del open_[place]
                if record["reason"] < FAILED and first not in self._found.acked_at:
                    self._found.acked[first] = True
                    self._found.acked_at[first] = record["place"]
                    if record["reason"] == NO_SUBSCRIBERS:
                        self._found.unwanted.add(first)
                elif record["reason"] >= FAILED:
                    open_.pop(place, None)
        accepted: dict[Key, list[Record]] = defaultdict(list)
        for row in self._rows:
            if row["ev"] == "msg_accepted" and (row["pid"] or 0) > 0:
                accepted[row["topic"], row["pid"], row["pub_qos"], row["bytes"]].append(row)
        pairs: list[Pair] = []
        missing = []
        for key, records in published.items():
            answered = [record for record in records if self._found.acked[record["place"]]]
            there = accepted.get(key, [])
            if len(records) == len(there):
                pairs += zip(records, there, strict=True)
            elif len(answered) == len(there):
                pairs += zip(answered, there, strict=True)
            if len(answered) > len(there) and len(key[0]) <= NAME_MAX:
                missing.append((key, answered, len(answered) - len(there)))
            self._found.checked["C1"] += min(len(answered), len(there))
        return pairs, missing

    def _not_accepted(self, key: Key, records: list[Record], short: int) -> None:
        """Judge messages that were acknowledged and are not in the history."""
        last = max(self._found.acked_at[record["place"]] for record in records)
        finding = self._finding("C1", "acknowledged, but not in the history", records, last)
        finding.count = short
        if self._crosses(finding):
            if all(record["place"] in self._found.unwanted for record in records):
                return  # nobody was promised anything
            finding.durable = not all(record["retain"] for record in records)
        if finding.certain:
            self._found.checked["C1"] += short
        self._found.findings.append(finding)

    # Received.

    def _receipts(self) -> tuple[list[Pair], list[tuple[Key, list[Record], int]]]:
        """Match what was received with what was sent."""
        received: dict[Key, list[Record]] = defaultdict(list)
        for record in self._log:
            if record["event"] == "received":
                received[record["topic"], record["pid"], record["qos"]].append(record)
        sent: dict[Key, list[Record]] = defaultdict(list)
        nameless: dict[Key, int] = defaultdict(int)
        for row in self._rows:
            if row["ev"] in _SENT:
                pid, qos = row["pid"] or 0, row["qos"] or 0
                if row["topic"] is None:
                    nameless[pid, qos] += 1
                else:
                    sent[row["topic"], pid, qos].append(row)
        pairs: list[Pair] = []
        missing = []
        for key, records in received.items():
            there = sent.get(key, [])
            if len(records) == len(there):
                pairs += zip(records, there, strict=True)
            told = len(there) + nameless[key[1:]]
            self._found.checked["C2"] += min(len(records), told)
            if len(records) > told and _is_recorded(key[0]):
                missing.append((key, records, len(records) - told))
        return pairs, missing

    def _not_sent(self, key: Key, records: list[Record], short: int) -> None:
        """Judge messages that were received and never recorded as sent."""
        finding = self._finding("C2", "received, but not recorded as sent", records)
        finding.count = short
        # A crash takes the rows of what was sent last.
        finding.certain &= not self._crosses(finding)
        if finding.certain:
            self._found.checked["C2"] += short
        self._found.findings.append(finding)

    def _received_twice(self) -> None:
        """C3: at QoS 2 a client gets as many messages as there are, under each identifier."""
        groups: dict[Key, list[Record]] = defaultdict(list)
        for record in self._log:
            if record["event"] == "received" and record["qos"] == 2:
                groups[record["topic"], record["pid"]].append(record)
        messages: dict[Key, set[Any]] = defaultdict(set)
        for row in self._rows:
            if row["ev"] in _SENT and row["qos"] == 2:
                name = row["msg"]
                if row["ev"] == "retained_sent":
                    name = row["gseq"]
                messages[row["topic"], row["pid"]].add(name)
        for key, records in groups.items():
            there = len(messages.get(key, ())) + len(messages.get((None, key[1]), ()))
            twice = _repeated(records)
            self._found.checked["C3"] += len(records)
            if len(records) <= there or there == 0 or not twice or not _is_recorded(key[0]):
                continue
            finding = self._finding("C3", "received twice at QoS 2", twice)
            finding.count = min(len(records) - there, len(twice) - 1)
            finding.certain &= not self._crosses(finding)
            self._found.findings.append(finding)

    def _never_seen(self) -> None:
        """C2: what a client is said to have acknowledged, it has received."""
        seen = {
            (record["topic"], record["pid"], record["qos"])
            for record in self._log
            if record["event"] == "received"
        }
        if not seen:
            return
        known = sorted(
            (_connection_of(row), row["gseq"], record["place"])
            for record, row in self._found.pairs
            if record["event"] == "received"
        )
        sent: dict[Key, Record] = {}
        for row in self._rows:
            if row["ev"] == "msg_delivered":
                sent[(*_connection_of(row), row["msg"])] = row
            is_end = row["ev"] == "msg_completed" or (row["ev"] == "msg_acked" and row["qos"] == 1)
            if not is_end or row["msg"] is None or (row["reason"] or 0) >= FAILED:
                continue
            first = sent.get((*_connection_of(row), row["msg"]))
            if first is None or first["topic"] is None or not _is_recorded(first["topic"]):
                continue
            if (first["topic"], first["pid"], first["qos"]) in seen:
                self._found.checked["C2"] += 1
            elif self._is_logged(known, first):
                self._found.checked["C2"] += 1
                self._found.findings.append(
                    Finding(
                        "C2", "acknowledged, as the history says, by a client that never saw it",
                        True, 1, row["node"], first["gseq"], row["gseq"], first["topic"],
                        pid=first["pid"],
                    )
                )  # fmt: skip

    def _is_logged(self, known: list[_Sent], row: Record) -> bool:
        """Return whether the log has what was sent just before and behind a row, and no hole."""
        conn = _connection_of(row)
        at = bisect_left(known, (conn, row["gseq"], 0))
        if at == 0 or at == len(known):
            return False
        before, after = known[at - 1], known[at]
        if before[0] != conn or after[0] != conn:
            return False
        return not self._has_hole(before[2], after[2])

    def _has_hole(self, start: int, end: int) -> bool:
        if start > end:
            return True
        first, last = self._log[start], self._log[end]
        return bool(first["log"] != last["log"] or last["n"] - first["n"] != end - start)

    # Connected.

    def _connections(self) -> None:
        """C4: pair CONNACKs with the rows of their sessions, and compare Session Present."""
        told = [record for record in self._log if record["event"] == "connected"]
        rows = [row for row in self._rows if row["ev"] in _CONNECTS]
        if not told:
            return
        pairs = self._all_in_order(told, rows)
        if pairs is None:
            pairs = self._by_clock(told, rows)
        for record, row in pairs:
            self._found.checked["C4"] += 1
            if row["sp"] is not None and record["session_present"] != row["sp"]:
                says = "1" if record["session_present"] else "0"
                self._found.findings.append(
                    Finding(
                        "C4", f"CONNACK said Session Present {says}, the history the opposite",
                        True, 1, row["node"], row["gseq"], row["gseq"],
                        log=record["log"], n=record["n"], at_us=record["at_us"],
                    )
                )  # fmt: skip
        left = len(told) - len(pairs)
        if left:
            self._found.findings.append(
                Finding("C4", "a connection that no row can be found for", False, left)
            )
        self._found.pairs += pairs

    def _all_in_order(self, told: list[Record], rows: list[Record]) -> list[Pair] | None:
        """Return the pairs if both sides have as many, at the same distances."""
        if len(told) != len(rows):
            return None
        pairs = list(zip(told, sorted(rows, key=lambda row: int(row["us"])), strict=True))
        apart = [row["us"] - record["at_us"] for record, row in pairs]
        return pairs if max(apart) - min(apart) <= CLOCK_TOLERANCE_US else None

    def _by_clock(self, told: list[Record], rows: list[Record]) -> list[Pair]:
        """Return the pairs of CONNACKs and rows close in time, if the client's clock is known."""
        apart = [row["us"] - record["at_us"] for record, row in self._found.pairs]
        if not apart:
            return []
        offset = int(median(apart))
        both = [(record["at_us"] + offset, 0, record) for record in told]
        both += [(row["us"], 1, row) for row in rows]
        both.sort(key=lambda each: each[:2])
        pairs: list[Pair] = []
        group: list[Any] = []
        for each in [*both, None]:
            if each is None or (group and each[0] - group[-1][0] > CLOCK_TOLERANCE_US):
                records = [one for _, side, one in group if side == 0]
                there = [one for _, side, one in group if side == 1]
                if len(records) == len(there):
                    pairs += zip(records, there, strict=True)
                group = []
            if each is not None:
                group.append(each)
        return pairs

    # Evidence.

    def _finding(
        self, invariant: str, what: str, records: list[Record], last: int | None = None
    ) -> Finding:
        """Return a finding about records, certain if the log brackets them within the history."""
        start = min(record["place"] for record in records)
        end = max(record["place"] for record in records) if last is None else last
        named = records[-1]
        before = after = None
        at = bisect_left(self._places, start)
        if at > 0:
            before = self._found.pairs[at - 1][1]
        at = bisect_right(self._places, end)
        if at < len(self._places):
            after = self._found.pairs[at][1]
        finding = Finding(
            invariant, what, False, topic=named["topic"], hash=named["hash"], pid=named["pid"],
            log=named["log"], n=named["n"], at_us=named["at_us"],
        )  # fmt: skip
        if before is not None and after is not None and before["node"] == after["node"]:
            if before["gseq"] <= after["gseq"]:
                finding.certain = self._is_at_home(start, end)
            finding.node, finding.from_gseq = before["node"], before["gseq"]
            finding.to_gseq = max(after["gseq"], before["gseq"])
        return finding

    def _is_at_home(self, start: int, end: int) -> bool:
        """Return whether each connection in between is known, or was to an address that is.

        Known is a connection of which the history has something.
        """
        first = max(bisect_right(self._opened, start) - 1, 0)
        last = bisect_right(self._opened, end)
        return all(
            self._is_known(number) or self._log[self._opened[number]]["server"] in self._servers
            for number in range(first, last)
        )

    def _is_known(self, number: int) -> bool:
        """Return whether the history has something of a connection."""
        following = self._opened[number + 1 : number + 2]
        until = following[0] if following else len(self._log)
        first = bisect_left(self._places, self._opened[number])
        return first < bisect_left(self._places, until)

    def _crosses(self, finding: Finding) -> bool:
        """Return whether a boot ended without a shutdown within the evidence."""
        if finding.from_gseq is None or finding.to_gseq is None:
            return False
        first, last = finding.from_gseq >> SEQ_BITS, finding.to_gseq >> SEQ_BITS
        return any(node == finding.node and first <= boot < last for node, boot in self._crashed)


def _connection_of(row: Record) -> tuple[str, int, int]:
    return row["node"], row["gseq"] >> SEQ_BITS, row["conn"] or 0


def _at_one_distance(pairs: list[Pair]) -> list[Pair]:
    """Leave out pairs that are far from each other, as the clocks of the others say."""
    if not pairs:
        return []
    middle = median(row["us"] - record["at_us"] for record, row in pairs)
    return [
        (record, row)
        for record, row in pairs
        if abs(row["us"] - record["at_us"] - middle) <= PAIR_TOLERANCE_US
    ]


def _published_key(record: Record) -> Key:
    return record["topic"], record["pid"], record["qos"], record["bytes"]


def _is_recorded(topic: str) -> bool:
    return len(topic) <= NAME_MAX and not topic.startswith("$SYS/")


def _repeated(records: list[Record]) -> list[Record]:
    """Return the records of the payload that came most often, if it came more than once."""
    by_hash: dict[str, list[Record]] = defaultdict(list)
    for record in records:
        by_hash[record["hash"]].append(record)
    most = max(by_hash.values(), key=len)
    return most if len(most) > 1 else []

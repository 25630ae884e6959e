"""Compares what a store has with what its broker has told it, for `holdfast backend verify`.

The broker gives digests page by page, the store is read beside it; neither is changed. Messages are
compared up to the cursor that the store had confirmed, so what is on its way does not count. What
can change while it is read (subscriptions, retained messages, clients) is asked for before and
after, and only what stayed the same is judged. A difference is named if two passes in a row find
it. Read next: `broker.process.desks.comparing`, which answers, `broker.backends.comparing.listing`.
"""

import base64
import struct
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any, Final, TypeAlias

from broker.backends.comparing import digests
from broker.backends.comparing.listing import (
    CLIENT,
    INDEX,
    MESSAGE,
    NOT_OURS,
    RETAINED,
    SETS,
    SHAPES,
    SUBSCRIPTION,
    Entry,
    Window,
)
from broker.backends.message_ids import UNSTORED, message_number, node_number, split_number

PASSES_MAX: Final = 3
ENTRIES_MAX: Final = 2_000_000  # that are held at once: about 1 GiB
MINUTE_MS: Final = 60_000
_ROW: Final = struct.Struct(">QQQQQ")
_OFFSET: Final = struct.Struct(">Q")

# By kind: the action that writes it, and the one that removes it. Messages have what their shape
# says.
ACTIONS: Final = {
    RETAINED: ("on_message_retain", "on_retain_delete"),
    SUBSCRIPTION: ("on_subscribed", "on_unsubscribed"),
    CLIENT: ("on_client_connected", "on_client_disconnected"),
}
# What is wrong.
MISSING: Final = "missing"
FOREIGN: Final = "foreign"
DOUBLED: Final = "doubled"
CHANGED: Final = "changed"
ACKNOWLEDGED: Final = "acknowledged"  # and still there
NO_INDEX: Final = "not in the list of its topic"
NO_MESSAGE: Final = "in the list of its topic only"

Ask = Callable[..., dict[str, Any]]
# The digest of an entry, None = it has expired, so it may be gone or still there; and its text.
Told: TypeAlias = tuple[int | None, str]


class CannotCompare(Exception):
    """There is no answer; one line."""


class Difference:
    """One thing that the store and the broker do not agree on."""

    __slots__ = ("kind", "name", "number", "place", "what")

    def __init__(self, kind: str, what: str, name: str, place: str, number: int = 0) -> None:
        self.kind: Final = kind
        self.number: Final = number  # the id of a message
        self.what: Final = what
        self.name: Final = name  # id of a message, or topic, or client and filter
        self.place: Final = place  # in the store, "" = it is not there


class Tally:
    """Counts and checksums of both sides."""

    __slots__ = ("broker", "broker_sum", "store", "store_sum")

    def __init__(self) -> None:
        self.broker: int = 0
        self.broker_sum: int = 0
        self.store: int = 0
        self.store_sum: int = 0

    def told(self, digest: int) -> None:
        """Count something that the broker knows."""
        self.broker += 1
        self.broker_sum = self.broker_sum + digest & digests.CHECKSUM_MASK

    def found(self, digest: int) -> None:
        """Count something that the store has."""
        self.store += 1
        self.store_sum = self.store_sum + digest & digests.CHECKSUM_MASK

    @property
    def is_equal(self) -> bool:
        """Do both sides agree?"""
        return (self.broker, self.broker_sum) == (self.store, self.store_sum)


class Expected:
    """A message that the store should have."""

    __slots__ = ("body", "gone_ms", "has_body", "has_place", "ms", "place")

    def __init__(self, ms: int, body: int, place: int, gone_ms: int) -> None:
        self.ms: Final = ms
        self.body: Final = body
        self.place: Final = place  # in the list of its topic, if the store has lists
        self.gone_ms: Final = gone_ms  # when it may be gone, 0 = never
        self.has_body: bool = False
        self.has_place: bool = False


class Pass:
    """What one pass has found."""

    def __init__(self, kinds: Collection[str]) -> None:
        """`kinds` are those that the store has."""
        self._of_messages: Final = [kind for kind in (MESSAGE, INDEX) if kind in kinds]
        self.minutes: Final[dict[int, dict[str, Tally]]] = {}
        self.sets: Final[dict[str, Tally]] = {}
        self.differences: Final[dict[tuple[str, str, object, str], Difference]] = {}
        self.in_motion: int = 0  # entries that changed while they were compared
        self.not_ours: int = 0
        self.dead_letters: int = 0
        self.acknowledged: int = 0
        self.unreadable: int = 0
        self.extra: int = 0  # what no rule removes
        self.gaps: list[tuple[int, int, str]] = []
        self.since_ms: int = 0  # messages are compared that were accepted from here on
        self.until_ms: int = 0
        self.behind: str = ""  # why the sets are not compared

    def tally(self, ms: int, kind: str) -> Tally:
        """Return the tally of a minute."""
        number = ms // MINUTE_MS
        if number not in self.minutes:
            self.minutes[number] = {each: Tally() for each in self._of_messages}
        return self.minutes[number][kind]

    def differs(self, kind: str, what: str, key: object, name: str, place: str = "") -> None:
        """Note a difference."""
        number = key if isinstance(key, int) else 0
        self.differences[(kind, what, key, place)] = Difference(kind, what, name, place, number)

    def sorted(self) -> list[Difference]:
        """Return the differences, messages first and those in the order of their time."""
        return sorted(
            self.differences.values(),
            key=lambda each: (each.kind != MESSAGE, each.kind, each.number, each.name, each.place),
        )


class Verification:
    """Compares one store with its broker."""

    def __init__(
        self,
        ask: Ask,
        listing: Callable[[Window], Iterator[Entry]],
        configuration: dict[str, Any],
        *,
        ago_ms: int,
        wait: Callable[[], bool],
    ) -> None:
        """`ask` asks the broker (request, arguments). `ago_ms` is how far back messages go.

        `wait` waits a moment for the store to confirm rows, and says whether to go on waiting.
        """
        self._ask: Final = ask
        self._listing: Final = listing
        self._told: Final = configuration
        self._node: Final = node_number(configuration["node"])
        self._ago_ms: Final = ago_ms
        self._since_ms: int = 0  # broker time
        self._wait: Final = wait
        self._shape: Final = SHAPES[configuration["type"]]
        actions = {rule.get("action") for rule in configuration["rules"]}
        kinds = {kind for kind, each in ACTIONS.items() if each[0] in actions}
        if not actions.isdisjoint(self._shape.message_actions):
            kinds |= {MESSAGE, INDEX} if self._shape.has_index else {MESSAGE}
        self.kinds: Final = frozenset(kinds)
        self._pruned: Final = {kind for kind, each in ACTIONS.items() if each[1] in actions}
        if not self.kinds:
            raise CannotCompare("no rule with an action writes what could be compared")

    def run(self) -> Pass:
        """Compare until two passes agree. Raises `CannotCompare` and what the listing raises."""
        self._since_ms = max(0, self._begin()["now"] - self._ago_ms)
        before: Pass | None = None
        for _ in range(PASSES_MAX):
            found = self._one_pass()
            again = before.differences if before is not None else {}
            passing = [key for key in found.differences if key not in again]
            if not passing:
                return found
            if before is None:
                self._wait()
            before = found
        assert before is not None
        for key in passing:  # seen once: it changes all the time
            del found.differences[key]
            found.in_motion += 1
        return found

    def _one_pass(self) -> Pass:
        found = Pass(self.kinds)
        start = self._begin()
        sets = {kind: self._state(kind) for kind in SETS if kind in self.kinds}
        now = self._caught_up(found) if sets else start
        expected, start_ms = self._messages(found, now)
        acked, rows = self._events(found, now)
        self._expect(expected, rows, start_ms)
        now = self._still_known(found, now, expected)
        letters = self._letters(found)
        for offset in acked:
            expected.pop(offset, None)
        window = Window(self._told["node"], self._node, start_ms, self.kinds)
        stored: dict[str, dict[bytes, Entry]] = {kind: {} for kind in sets}
        judge = _MessageJudge(self, found, now, expected, acked, letters)
        for entry in self._listing(window):
            if entry.kind == NOT_OURS:
                found.not_ours += 1
            elif entry.kind in stored:
                stored[entry.kind][entry.name] = entry
                self.bound(sum(map(len, stored.values())))
            else:
                judge.take(entry)
        after = self._begin()
        later = {"first": now["cursor"], "cursor": after["end"]}
        judge.end(self._events(found, later)[0], after)
        for kind, told in sets.items():
            if not found.behind:
                self._judge_set(found, kind, told, stored[kind], letters)
        return found

    # The broker

    def _begin(self) -> dict[str, Any]:
        told = self._ask("begin", since=str(self._since_ms))
        for key in ("type", "node", "rules"):
            if told[key] != self._told[key]:
                raise CannotCompare(
                    f"the configuration has another {key} than the running broker; restart it"
                )
        return told

    def _caught_up(self, found: Pass) -> dict[str, Any]:
        """Wait until the store has confirmed everything of a moment ago; return where it is."""
        end = self._begin()["end"]
        while True:
            now = self._begin()
            if now["cursor"][0] >= end[0] and now["cursor"][1] >= end[1]:
                return now
            if not self._wait():
                found.behind = f"rows wait: the store is at {now['cursor']}, the broker at {end}"
                return now

    def _messages(self, found: Pass, now: dict[str, Any]) -> tuple[dict[int, Expected], int]:
        """Return what the store should have of the log, by offset, and since when."""
        after, upto = now["first"][0], now["cursor"][0]
        start_ms = max(self._since_ms, now["first_ms"])
        found.since_ms, found.until_ms = start_ms, now["now"]
        expected: dict[int, Expected] = {}
        while MESSAGE in self.kinds and after < upto:
            page = self._ask("messages", after=str(after), upto=str(upto))
            self._expect(expected, _rows(page["rows"]), start_ms)
            found.unreadable += page["lost"]
            after = page["after"]
            self.bound(len(expected))
        return expected, start_ms

    def _expect(
        self, expected: dict[int, Expected], rows: Iterable[tuple[int, ...]], start_ms: int
    ) -> None:
        """Add messages; one that is there already goes as soon as either says."""
        for offset, ms, body, place, gone_ms in rows:
            if ms < start_ms:
                continue
            before = expected.get(offset)
            if before is not None and before.gone_ms:
                gone_ms = min(gone_ms, before.gone_ms) if gone_ms else before.gone_ms
            expected[offset] = Expected(ms, body, place, gone_ms)

    def _events(self, found: Pass, now: dict[str, Any]) -> tuple[set[int], list[tuple[int, ...]]]:
        """Return the offsets of messages that were acknowledged for all, and rows of messages.

        Those are messages that events tell of: with QoS 0, and retained ones where the store has
        them among its messages.
        """
        after, upto = now["first"][1], now["cursor"][1]
        acked: set[int] = set()
        rows: list[tuple[int, ...]] = []
        while MESSAGE in self.kinds and after < upto:
            page = self._ask("events", after=str(after), upto=str(upto))
            for (offset,) in _OFFSET.iter_unpack(base64.b64decode(page["acked"])):
                acked.add(offset)
            rows += _rows(page["rows"])
            for first, last, why in page["gaps"]:
                found.gaps.append((first, last, why))
            if page["after"] <= after:
                break
            after = page["after"]
            self.bound(len(acked) + len(rows))
        found.acknowledged += len(acked)
        return acked, rows

    def _still_known(
        self, found: Pass, now: dict[str, Any], expected: dict[int, Expected]
    ) -> dict[str, Any]:
        """Leave out messages whose acknowledgements may have been deleted while they were read."""
        again = self._begin()
        for offset in [each for each in expected if not _is_behind(each, again["first"])]:
            del expected[offset]
        found.since_ms = max(found.since_ms, again["first_ms"])
        return {**now, "first": again["first"], "first_ms": again["first_ms"]}

    def _letters(self, found: Pass) -> set[object]:
        """Return what is in dead letters: offsets of messages, names of anything else."""
        letters: set[object] = set()
        perhaps: set[object] = set()  # what a letter without its row may be about instead
        after, has_more = 0, True
        while has_more:
            page = self._ask("letters", after=str(after))
            for kind, what, *others in page["letters"]:
                letters.add(what if kind == MESSAGE else bytes.fromhex(what))
                perhaps.update(others)
            after, has_more = page["after"], page["has_more"]
        found.dead_letters = len(letters)
        return letters | perhaps

    def _state(self, kind: str) -> dict[bytes, Told]:
        """Return what there is of a kind by its name."""
        told: dict[bytes, Told] = {}
        number, has_more = 0, True
        while has_more:
            page = self._ask("state", kind=kind, after=str(number))
            if page.get("is_out_of_order"):
                raise CannotCompare("another comparison of this backend has begun meanwhile")
            for name, digest, text in page["rows"]:
                told[bytes.fromhex(name)] = (int(digest, 16) if digest else None, text)
            has_more = page["more"]
            number += 1
            self.bound(len(told))
        return told

    def bound(self, count: int) -> None:
        """Raise `CannotCompare` if so many entries are too many."""
        if count > ENTRIES_MAX:
            raise CannotCompare(f"more than {ENTRIES_MAX} entries: a smaller --since has fewer")

    # Judging

    def _judge_set(
        self,
        found: Pass,
        kind: str,
        before: dict[bytes, Told],
        stored: dict[bytes, Entry],
        letters: set[object],
    ) -> None:
        after = self._state(kind)
        tally = found.sets[kind] = Tally()
        for name in before.keys() | after.keys() | stored.keys():
            told, entry = before.get(name), stored.get(name)
            if name in letters:
                continue
            if told != after.get(name):
                found.in_motion += 1
                continue
            if told is None:
                assert entry is not None
                if kind not in self._pruned:
                    found.extra += 1
                    continue
                tally.found(entry.digest)
                found.differs(kind, FOREIGN, name, entry.text, entry.place)
                continue
            if told[0] is None:
                continue
            tally.told(told[0])
            if entry is None:
                found.differs(kind, MISSING, name, told[1])
                continue
            tally.found(entry.digest)
            if entry.digest != told[0]:
                found.differs(kind, CHANGED, name, told[1], entry.place)

    def describe(self, difference: Difference) -> str:
        """Return the topic and the publisher of a message that the broker knows, "" = unknown."""
        if difference.kind != MESSAGE or difference.number == 0:
            return ""
        _, _, offset = split_number(difference.number)
        told = self._ask("message", after=str(offset))
        if self.number(told["ms"], offset) != difference.number:
            return ""
        return f"{told['topic']} from {told['from']}"

    def id_of(self, number: int) -> str:
        """Return the id of a message as the store writes it."""
        return self._shape.written_id(number)

    def number(self, ms: int, offset: int) -> int:
        """Return the number of the id of one of our messages."""
        return message_number(ms, self._node, offset)


def _rows(page: str) -> Iterator[tuple[int, ...]]:
    return _ROW.iter_unpack(base64.b64decode(page))


def _is_behind(offset: int, cursor: list[int]) -> bool:
    """Is a message behind a cursor? One that is not in the log has the number of its event."""
    if offset & UNSTORED:
        return offset ^ UNSTORED > cursor[1]
    return offset > cursor[0]


class _MessageJudge:
    """Compares the messages of a store, one entry after another."""

    def __init__(
        self,
        verification: Verification,
        found: Pass,
        now: dict[str, Any],
        expected: dict[int, Expected],
        acked: set[int],
        letters: set[object],
    ) -> None:
        self._verification: Final = verification
        self._found: Final = found
        self._now: Final = now
        self._expected: Final = expected
        self._has_index: Final = INDEX in verification.kinds
        self._acked: Final = acked
        self._letters: Final = letters
        self._seen: Final[set[tuple[str, int, str]]] = set()  # that are not as expected
        self._newer: Final[list[Entry]] = []

    def take(self, entry: Entry) -> None:
        """Take a message, or its place in the list of a topic."""
        us, _, offset = split_number(entry.number)
        ms = us // 1000
        if offset in self._letters:
            return
        told = self._expected.get(offset)
        if told is None or self._verification.number(told.ms, offset) != entry.number:
            self._take_unknown(entry, ms, offset)
            return
        if entry.kind == MESSAGE:
            is_first, told.has_body = not told.has_body, True
            is_as_told = entry.digest == told.body
        else:
            is_as_told = entry.digest == told.place
            is_first = not is_as_told or not told.has_place
            told.has_place |= is_as_told
        key = (entry.kind, entry.number, entry.place)
        if not is_first or key in self._seen:
            return  # a page of the store may have what an earlier one had
        self._found.tally(ms, entry.kind).found(entry.digest)
        if not is_as_told:
            self._seen.add(key)
            what = CHANGED if entry.kind == MESSAGE else DOUBLED
            self._differs(what, entry.number, entry.place)

    def _take_unknown(self, entry: Entry, ms: int, offset: int) -> None:
        """Take what the broker does not expect."""
        now, found = self._now, self._found
        if _is_behind(offset, now["cursor"]):
            self._newer.append(entry)
            self._verification.bound(len(self._newer))
            return
        is_known = _is_behind(offset, now["first"])
        if is_known and found.unreadable:
            return  # it may be one of those that cannot be read here
        first_ms = now["first_ms"]
        if not is_known and (offset & UNSTORED or not first_ms or ms <= first_ms):
            return  # so old that the broker knows no more whether it was there
        self._note_unknown(entry, ACKNOWLEDGED if offset in self._acked else FOREIGN)

    def _note_unknown(self, entry: Entry, what: str) -> None:
        key = (entry.kind, entry.number, entry.place)
        if key in self._seen:
            return
        self._seen.add(key)
        self._verification.bound(len(self._seen))
        ms = split_number(entry.number)[0] // 1000
        self._found.tally(ms, entry.kind).found(entry.digest)
        self._differs(what, entry.number, entry.place)

    def end(self, optional: set[int], after: dict[str, Any]) -> None:
        """Note what did not come; `optional` may be there or not.

        `after` says where the log ends now: what the store has from behind that is not ours.
        """
        for entry in self._newer:
            if _is_behind(split_number(entry.number)[2], after["end"]):
                self._note_unknown(entry, FOREIGN)
        now_ms = after["now"]
        for offset, told in self._expected.items():
            if offset in self._letters:
                continue
            is_optional = offset in optional or 0 < told.gone_ms <= now_ms
            number = self._verification.number(told.ms, offset)
            if told.has_body or not is_optional:
                self._found.tally(told.ms, MESSAGE).told(told.body)
            if self._has_index and (told.has_place or not is_optional):
                self._found.tally(told.ms, INDEX).told(told.place)
            if is_optional:
                continue
            if not told.has_body:
                self._differs(NO_MESSAGE if told.has_place else MISSING, number, "")
            elif self._has_index and not told.has_place:
                self._differs(NO_INDEX, number, "")

    def _differs(self, what: str, number: int, place: str) -> None:
        name = self._verification.id_of(number)
        self._found.differs(MESSAGE, what, number, name, place)

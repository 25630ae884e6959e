"""Records of the history for tests: a builder by name, and any record that has a meaning."""

from array import array
from dataclasses import dataclass, field
from typing import Any, Final

from hypothesis import strategies as st

from storage.history import events, packed_rows
from storage.history.packed_rows import Row

NOW_MS: Final = 1_763_711_111_111
BOOT_MS: Final = NOW_MS - 3_600_000
NODE: Final = "node7"
BOOT: Final = 3

SHIFTS: Final = {
    "reason": packed_rows.REASON_SHIFT,
    "actor": packed_rows.ACTOR_SHIFT,
    "qos": packed_rows.QOS_SHIFT,
    "pub_qos": packed_rows.PUB_QOS_SHIFT,
    "dup": packed_rows.DUP_SHIFT,
    "retain": packed_rows.RETAIN_SHIFT,
    "sp": packed_rows.SP_SHIFT,
    "clean_start": packed_rows.CLEAN_START_SHIFT,
    "no_local": packed_rows.NO_LOCAL_SHIFT,
    "proto": packed_rows.PROTO_SHIFT,
}


@dataclass
class Tick:
    """Gathers the records of one tick as the broker does."""

    words: list[int] = field(default_factory=list)
    extras: list[int] = field(default_factory=list)
    names: list[str] = field(default_factory=list)

    def name(self, text: str | None) -> int:
        """Return the number by which a record names `text`."""
        if text is None:
            return 0
        if text not in self.names:
            self.names.append(text)
        return self.names.index(text) + 1

    def extra(self, *numbers: int) -> int:
        """Return the word that refers to `numbers`, which go into the extras."""
        self.extras.extend(numbers)
        return ~(len(self.extras) - len(numbers))

    def record(
        self,
        ev: int,
        has: int = 0,
        *,
        who: str | None = None,
        text: str | None = None,
        text2: str | None = None,
        n: int = 1,
        words: dict[int, int] | None = None,
        **fields: int,
    ) -> None:
        """Add a record: the fields of w0 by name, w1 to w9 by number."""
        record = [0] * packed_rows.RECORD_WORDS
        record[0] = ev | has
        for field_name, value in fields.items():
            record[0] |= value << SHIFTS[field_name]
        record[3] = (
            self.name(who)
            | self.name(text) << packed_rows.TEXT_SHIFT
            | self.name(text2) << packed_rows.TEXT2_SHIFT
        )
        record[5] = n
        for word, value in (words or {}).items():
            record[word] = value
        self.words += record

    def pack(self, first_seq: int = 1, now_ms: int = NOW_MS) -> bytes:
        """Return the bytes of the tick."""
        events_count = packed_rows.count_events(self.words, self.extras)
        return packed_rows.pack(
            now_ms, BOOT_MS, first_seq, events_count, self.words, self.extras, self.names
        )

    def row(self, first_seq: int = 1, now_ms: int = NOW_MS) -> Row:
        """Return the tick as its reader sees it."""
        return packed_rows.unpack(self.pack(first_seq, now_ms))


def told(row: Row) -> list[dict[str, object]]:
    """Return what each event of a row says beside the envelope that all of them share."""
    shared = ("v", "node", "boot", "ts", "mono_ns")
    return [
        {name: value for name, value in flat.items() if value is not None and name not in shared}
        for flat in packed_rows.expand(row, NODE, BOOT)
    ]


def run_of_messages() -> Tick:
    """Return a tick with one publisher's run of three messages and what became of them."""
    tick = Tick()
    tick.record(
        events.MSG_ACCEPTED,
        packed_rows.HAS_MSG
        | packed_rows.HAS_PUB_QOS
        | packed_rows.HAS_FLAGS
        | packed_rows.HAS_PID
        | packed_rows.HAS_BYTES,
        who="sensor\0plant",
        text="täg/☃",
        n=3,
        actor=events.CLIENT,
        pub_qos=1,
        words={1: 70, 2: 9, 4: 500, 6: 65_534, 7: 128, 9: tick.extra(2, 31, 32)},
    )
    tick.record(
        events.MSG_PERSISTED, packed_rows.HAS_MSG, n=3, actor=events.STORAGE, words={4: 500}
    )
    tick.record(
        events.PUB_ACKED,
        packed_rows.HAS_MSG
        | packed_rows.HAS_PUB_QOS
        | packed_rows.HAS_PID
        | packed_rows.HAS_REASON,
        who="sensor\0plant",
        n=3,
        pub_qos=1,
        reason=16,
        words={1: 70, 2: 9, 4: 500, 6: tick.extra(65_534, 65_535, 1), 9: tick.extra(500, 0, 502)},
    )
    tick.record(
        events.MSG_DELIVERED,
        packed_rows.HAS_MSG | packed_rows.HAS_QOS | packed_rows.HAS_FLAGS | packed_rows.HAS_PID,
        who="reader\0",
        text2="group",
        n=2,
        qos=1,
        dup=1,
        words={1: 71, 2: 10, 4: 500, 6: 1, 9: tick.extra(500, 502)},
    )
    return tick


def everything_else() -> Tick:
    """Return a tick with a record of every other kind."""
    tick = Tick()
    tick.record(
        events.SESSION_RESUMED,
        packed_rows.HAS_SESSION_STATE | packed_rows.HAS_POSITION | packed_rows.HAS_EXPIRY,
        who="reader\0",
        actor=events.CLIENT,
        proto=5,
        sp=1,
        words={1: 71, 2: 10, 4: 499, 7: tick.extra(2, 1, 2**33, 20, 0), 8: 2**32 - 1},
    )
    tick.record(
        events.SESSION_DISCONNECTED,
        packed_rows.HAS_SESSION_STATE
        | packed_rows.HAS_POSITION
        | packed_rows.HAS_EXPIRY
        | packed_rows.HAS_REASON,
        who="reader\0",
        reason=1002,
        words={
            1: 71,
            4: 499,
            7: tick.extra(2, 1, packed_rows.NULL, packed_rows.NULL, NOW_MS - 7),
            8: 60,
        },
    )
    tick.record(
        events.SUBSCRIBED,
        packed_rows.HAS_QOS | packed_rows.HAS_STREAM | packed_rows.HAS_POSITION,
        who="reader\0",
        text="$share/group/a/+",
        text2="group",
        qos=2,
        no_local=1,
        words={1: 71, 2: 10, 4: 400, 7: 31},
    )
    tick.record(
        events.MSG_DROPPED,
        packed_rows.HAS_MSG | packed_rows.HAS_REASON | packed_rows.HAS_COUNT,
        who="reader\0",
        reason=1027,
        words={1: 71, 4: 300, 8: 350, 9: 12},
    )
    tick.record(
        events.WILL_DELAYED,
        packed_rows.HAS_AT,
        who="sensor\0plant",
        words={1: 70, 8: NOW_MS + 5000},
    )
    tick.record(
        events.RETAINED_SET,
        packed_rows.HAS_MSG | packed_rows.HAS_QOS | packed_rows.HAS_BYTES | packed_rows.HAS_AT,
        who="sensor\0plant",
        text="a/b",
        words={1: 70, 4: 501, 7: 3, 8: NOW_MS},
    )
    tick.record(
        events.BOOT,
        packed_rows.HAS_COUNT | packed_rows.HAS_POSITION,
        text="books",
        words={4: 499, 9: 12_345},
    )
    tick.record(
        events.BOOKS,
        who="\0plant",
        reason=events.STAGE_DELIVERED,
        words={4: NOW_MS - NOW_MS % 60_000, 6: 10, 7: 1280, 8: 2**61 - 1, 9: 2**60},
    )
    return tick


def stores() -> Tick:
    """Return a tick with what the history says of external stores."""
    tick = Tick()
    tick.record(
        events.BACKEND_OPENED,
        packed_rows.HAS_POSITION | packed_rows.HAS_COUNT | packed_rows.HAS_REASON,
        text2="cache",
        reason=events.NAMES_HASHED,
        words={4: 2**40, 9: 1},
    )
    tick.record(
        events.BACKEND_FOLLOWS,
        packed_rows.HAS_POSITION,
        text="täg/+",
        text2="cache",
        words={4: 2**40 - 1},
    )
    minute = NOW_MS - NOW_MS % 60_000
    tick.record(
        events.BACKEND_TOLD,
        packed_rows.RANGE_FLAGS,
        text2="cache",
        reason=events.CONFIRMED,
        words={1: 2**40 + 9, 4: 2**40 + 1, 6: 2**61 - 1, 7: 2**60, 8: minute, 9: 7},
    )
    tick.record(
        events.BACKEND_GAP,
        packed_rows.RANGE_FLAGS,
        text2="cache",
        reason=events.BACKLOG_FULL,
        words={1: 2**40 + 99, 4: 2**40 + 10, 8: minute},
    )
    tick.record(
        events.BACKEND_FORGOTTEN, packed_rows.HAS_POSITION, text2="cache", words={4: 2**40 + 99}
    )
    return tick


_NUMBERS: Final = st.integers(0, 2**62)
_SMALL: Final = st.integers(0, 2**31 - 1)
_PIDS: Final = st.integers(0, packed_rows.PID_MAX)
_WORDS: Final = st.text(st.characters(exclude_characters="\0", codec="utf-8"), max_size=6)
_TIMES: Final = st.integers(0, 2**42)
_W7: Final = (0, packed_rows.HAS_BYTES, packed_rows.HAS_STREAM, packed_rows.HAS_SESSION_STATE)


@st.composite
def ticks(draw: st.DrawFn, records_max: int = 6, ev: int = 0) -> Tick:
    """Return a tick of any records that have a meaning, sensible or not; `ev` 0 is any event."""
    tick = Tick()
    for _ in range(draw(st.integers(0, records_max))):
        _draw_record(draw, tick, ev or draw(st.sampled_from(sorted(events.EVENTS))))
    return tick


def _draw_record(draw: st.DrawFn, tick: Tick, ev: int) -> None:
    n = 1 if ev in (events.BOOKS, *packed_rows.RANGES) else draw(st.integers(1, 5))
    has = draw(st.integers(0, 2**13 - 1)) << 48
    has &= ~(packed_rows.HAS_BYTES | packed_rows.HAS_STREAM | packed_rows.HAS_SESSION_STATE)
    if has & packed_rows.HAS_MSG:
        has &= ~packed_rows.HAS_POSITION
    if has & packed_rows.HAS_EXPIRY:
        has &= ~packed_rows.HAS_AT
    if ev == events.MSG_ACCEPTED:
        has &= ~packed_rows.HAS_COUNT
    w7 = draw(st.sampled_from(_W7))
    if ev == events.BOOKS:
        has = w7 = 0
    elif ev in packed_rows.RANGES:
        has, w7 = packed_rows.RANGE_FLAGS, 0
    words: dict[int, Any] = {1: draw(_NUMBERS), 2: draw(_SMALL), 4: draw(_TIMES), 8: draw(_TIMES)}
    words[6] = draw(st.one_of(_PIDS, st.lists(_PIDS, min_size=n, max_size=n).map(tuple)))
    words[7] = draw(_NUMBERS)
    words[9] = draw(_NUMBERS)
    if w7 == packed_rows.HAS_BYTES:
        words[7] = draw(st.one_of(_SMALL, st.lists(_SMALL, min_size=n, max_size=n).map(tuple)))
    elif w7 == packed_rows.HAS_SESSION_STATE:
        state = [draw(st.one_of(st.just(packed_rows.NULL), _SMALL)) for _ in range(4)]
        words[7] = (*state, draw(_TIMES))
    if ev == events.MSG_ACCEPTED:
        filters = draw(st.one_of(st.none(), st.lists(_NUMBERS, max_size=3)))
        words[9] = 0 if filters is None else (len(filters), *filters)
    elif ev != events.BOOKS and not has & packed_rows.HAS_COUNT:
        ids = st.lists(_NUMBERS, min_size=n, max_size=n).map(tuple)
        words[9] = draw(st.one_of(st.just(0), ids))
    for at, value in words.items():
        if isinstance(value, tuple):
            words[at] = tick.extra(*value)
    who = draw(st.one_of(st.none(), st.tuples(_WORDS, _WORDS)))
    reason = draw(st.sampled_from(sorted(events.STAGES if ev == events.BOOKS else events.REASONS)))
    tick.record(
        ev,
        has | w7,
        who=None if who is None else "\0".join(who),
        text=draw(st.one_of(st.none(), _WORDS)),
        text2=draw(st.one_of(st.none(), _WORDS)),
        n=n,
        words=words,
        reason=reason,
        actor=draw(st.sampled_from(sorted(events.ACTORS))),
        qos=draw(st.integers(0, 2)),
        pub_qos=draw(st.integers(0, 2)),
        dup=draw(st.integers(0, 1)),
        retain=draw(st.integers(0, 1)),
        sp=draw(st.integers(0, 1)),
        clean_start=draw(st.integers(0, 1)),
        no_local=draw(st.integers(0, 1)),
        proto=draw(st.integers(0, 5)),
    )


def numbers(*values: int) -> "array[int]":
    """Return words or extras as a row holds them."""
    return array("q", values)

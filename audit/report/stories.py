"""Stories of witnesses: which rows of the history are around a finding, in words. Pure.

`chosen` says whose rows are wanted, `audit.analytics.witness_rows` gets them with Spark, and `told`
makes a story of them. Both are bounded, so a page of many violations stays small.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from audit.report.summary import Story, Told
from storage.history.words import describe, printable

STORIES_MAX: Final = 20
ROWS_MAX: Final = 30  # of a story
TEXT_MAX: Final = 300  # characters of a row
SEQ_BITS: Final = 40  # of a place: boot << 40 | seq
# Names of the places in witnesses, those nearest to what went wrong first.
_PLACES: Final = ("at", "to", "to_seq", "from", "from_seq", "other")


@dataclass(frozen=True, slots=True)
class Focus:
    """Whose rows a story is made of: those of a message, of a session, and those near a place."""

    invariant: str
    number: int
    node: str
    msg: int | None
    session: int | None
    place: int | None  # boot << 40 | seq


def chosen(found: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[Focus]:
    """Return the witnesses that get a story: the first of each invariant, then the second, ..."""
    longest = max((len(witnesses) for witnesses in found.values()), default=0)
    picked = [
        focus
        for number in range(min(longest, STORIES_MAX))
        for invariant, witnesses in found.items()
        if number < len(witnesses)
        and (focus := _focus(invariant, number, witnesses[number])) is not None
    ]
    return picked[:STORIES_MAX]


def _focus(invariant: str, number: int, witness: Mapping[str, Any]) -> Focus | None:
    node = witness.get("node")
    if not isinstance(node, str) or witness.get("suppressed"):
        return None
    msg, session = (_number(witness.get(name)) for name in ("msg", "session"))
    place = _place(witness)
    if msg is None and session is None and place is None:
        return None
    return Focus(invariant, number, node, msg, session, place)


def _number(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _place(witness: Mapping[str, Any]) -> int | None:
    boot, seq = _number(witness.get("boot")), _number(witness.get("seq"))
    if boot is not None and seq is not None:
        return boot << SEQ_BITS | seq
    for name in _PLACES:
        value = witness.get(name)
        if isinstance(value, Mapping):
            inner = [_number(value.get(part)) for part in ("boot", "seq")]
            if inner[0] is not None and inner[1] is not None:
                return inner[0] << SEQ_BITS | inner[1]
        elif boot is not None and name.endswith("_seq") and _number(value) is not None:
            return boot << SEQ_BITS | (_number(value) or 0)
    return None


def told(focus: Focus, rows: Sequence[Mapping[str, Any]], total: int) -> Story:
    """Return the story of rows of the history (`at_us` instead of `ts`), of `total` that fit."""
    ordered = sorted(rows, key=lambda row: (row["boot"], row["seq"]))
    return Story(
        focus.invariant,
        focus.number,
        focus.node,
        [_told(focus, row) for row in ordered[:ROWS_MAX]],
        max(0, total - min(len(ordered), ROWS_MAX)),
    )


def _told(focus: Focus, row: Mapping[str, Any]) -> Told:
    text = describe(dict(row))
    return Told(
        row["at_us"],
        focus.node,
        row["boot"],
        row["seq"],
        printable(str(row.get("client_id") or "")),
        text if len(text) <= TEXT_MAX else f"{text[: TEXT_MAX - 1]}…",
        (row["boot"] << SEQ_BITS | row["seq"]) == focus.place,
    )


def as_json(stories: Sequence[Story]) -> list[dict[str, Any]]:
    """Return stories as they are kept in a file."""
    return [asdict(story) for story in stories]


def of_json(kept: Sequence[Mapping[str, Any]]) -> list[Story]:
    """Return the stories of such a file."""
    return [
        Story(
            each["invariant"], each["number"], each["node"],
            [Told(**row) for row in each["rows"]], each["left_out"],
        )
        for each in kept
    ]  # fmt: skip

"""Compare what the history says an external store was told with what the store got.

The store notes the offset of every message that it was ever told. Each range of the history, and
what is still open in the backend's record, must have exactly these, and the ranges must follow each
other. Read next: `session.feed.told_counts`, `tests.simulation.retold`, which reads the history.
"""

from collections.abc import Iterable
from typing import Final

from session.history.stage_counts import check1_of, check2_of
from session.state.told_record import CHECK_MASK, Told
from storage.history.events import LOST_THERE, TOLD_AGAIN
from tests.simulation.rare import sometimes
from tests.simulation.verdict import Violation

NAME: Final = "history_balances_stores"


class ToldBalance:
    """What the history has said of one store so far."""

    def __init__(self, *, has_damage: bool) -> None:
        """With damage, what a crash left unsaid may be read later although the store has it not."""
        self._has_damage: Final = has_damage
        self._upto: int | None = None  # the last offset that was told of, None = it is not known
        self._gaps: Final[list[tuple[int, int]]] = []
        self._tallies: dict[tuple[int, int], list[int]] = {}  # of the ranges that are read now

    def judge(
        self, flats: Iterable[dict[str, object]], ever: set[int], open_now: Told | None
    ) -> None:
        """Take in events of the history, and compare them with the offsets that the store got.

        `open_now` is what the record of the backend holds, which was stored with these events.
        """
        for flat in flats:
            self._take(flat)
        for (first, last), tally in self._tallies.items():
            self._compare(f"messages {first} to {last}", ever, first, last, tally)
        self._tallies.clear()
        if open_now is None:
            return
        if self._upto is not None and open_now.upto != self._upto:
            raise Violation(NAME, f"told up to {self._upto}, the record says {open_now.upto}")
        both = zip(open_now.confirmed, open_now.dead, open_now.refused, strict=True)
        tally = [sum(each) for each in both]
        what = f"the open minute behind {open_now.upto}"
        self._compare(what, ever, open_now.upto + 1, open_now.counted, tally)

    def _take(self, flat: dict[str, object]) -> None:
        name, reason = flat["ev"], flat["reason"]
        if name == "backend_opened":
            position = _number(flat["position"])
            if self._upto is not None and position != self._upto:
                raise Violation(NAME, f"opened at {position}, and told up to {self._upto}")
            self._upto = position
        elif name == "backend_gap" and reason != LOST_THERE:
            self._gaps.append((_number(flat["msg"]), _number(flat["msg_last"])))
        elif name == "backend_told" and reason == TOLD_AGAIN:
            sometimes("store_told_again")
        elif name == "backend_told":
            key = _number(flat["msg"]), _number(flat["msg_last"])
            tally = self._tallies.setdefault(key, [0, 0, 0])
            for at, column in enumerate(("count", "check1", "check2")):
                tally[at] += _number(flat[column])
            if self._upto is not None and key[0] != self._upto + 1 and key[1] != self._upto:
                raise Violation(NAME, f"{key} follows {self._upto}")
            self._upto = key[1]

    def _compare(self, what: str, ever: set[int], first: int, last: int, tally: list[int]) -> None:
        got = [
            offset
            for offset in ever
            if first <= offset <= last and not any(gap[0] <= offset <= gap[1] for gap in self._gaps)
        ]
        expected = [
            len(got),
            sum(check1_of(offset, 1) for offset in got) & CHECK_MASK,
            sum(check2_of(offset, 1) for offset in got) & CHECK_MASK,
        ]
        told = [tally[0], tally[1] & CHECK_MASK, tally[2] & CHECK_MASK]
        if self._has_damage and told[0] > expected[0]:
            return
        if told != expected:
            raise Violation(
                NAME, f"{what}: {told} are told, the store got {expected}: {sorted(got)}"
            )


def _number(value: object) -> int:
    assert isinstance(value, int)
    return value

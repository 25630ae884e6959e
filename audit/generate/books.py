"""The books that a broker writes beside the rows, counted here from all rows, also hidden ones.

Open books are written with the next piece of the history, so sums over rows of the same minute,
stage and tenant are correct.
"""

from typing import Final

import numpy as np
import numpy.typing as npt

from audit.generate.columns import NULL, Piece, Words
from audit.generate.state import SECOND, UNSTORED
from audit.generate.steady import NUMBERS_FROM, Ints
from storage.history import events as ev

MINUTE: Final = 60 * SECOND
MASK: Final = (1 << ev.CHECK_BITS) - 1
ROOT_MASK: Final = (1 << ev.CHECK_ROOT_BITS) - 1
NUMBER_MASK: Final = (1 << 40) - 1
_TENANTS: Final = 1 << 20  # more than there are words
_STAGES: Final = 16

# Answers of a session: counted without bytes, because those were counted before.
_ANSWERED: Final = {ev.MSG_ACKED: ev.STAGE_ACKED, ev.MSG_COMPLETED: ev.STAGE_COMPLETED}


class _Known:
    """Size, minute and tenant of accepted messages, by offset or number."""

    def __init__(self) -> None:
        self.facts: Ints = np.zeros((3, 0), np.int64)

    def put(self, at: Ints, size: Ints, minute: Ints, tenant: Ints) -> None:
        if not len(at):
            return
        needed = int(at.max()) + 1
        if needed > self.facts.shape[1]:
            wider = np.zeros((3, needed * 2), np.int64)
            wider[:, : self.facts.shape[1]] = self.facts
            self.facts = wider
        self.facts[:, at] = np.stack([size, minute, tenant])

    def get(self, at: Ints) -> Ints:
        if not self.facts.shape[1]:
            return np.zeros((3, len(at)), np.int64)
        return self.facts[:, np.minimum(at, self.facts.shape[1] - 1)]


class Ledger:
    """The open books of one node."""

    def __init__(self, words: Words) -> None:
        self._words = words
        self._tenants: dict[int, str] = {}
        self._log = _Known()
        self._unstored = {False: _Known(), True: _Known()}  # stamped or not, of this boot
        self._open: dict[tuple[int, int, int], list[int]] = {}

    def begin_boot(self) -> None:
        """Reset the numbers of messages that are not stored."""
        self._unstored = {False: _Known(), True: _Known()}

    def add(self, piece: Piece) -> None:
        """Count all rows of a piece."""
        event, ts, msg = piece.column("ev"), piece.column("ts"), piece.column("msg")
        tenant = np.maximum(piece.column("tenant"), 0)
        minute = ts // MINUTE
        accepted = event == ev.MSG_ACCEPTED
        self._register(
            msg[accepted], piece.column("bytes")[accepted], minute[accepted], tenant[accepted]
        )
        size, born, owner = self._look_up(msg)
        self._count(ev.STAGE_ACCEPTED, accepted, minute, tenant, size, msg)
        self._count(ev.STAGE_STORED, accepted & (msg < UNSTORED), minute, tenant, size, msg)
        owed = accepted & (piece.column("pub_qos") > 0) & (piece.column("pid") > 0)
        self._count(ev.STAGE_ACK_OWED, owed, minute, tenant, size, msg)
        self._count(ev.STAGE_PERSISTED, event == ev.MSG_PERSISTED, born, owner, size, msg)
        self._count(ev.STAGE_PUB_ACKED, event == ev.PUB_ACKED, born, tenant, size, msg)
        sent, again = event == ev.MSG_DELIVERED, piece.column("attempt") == 2
        self._count(ev.STAGE_DELIVERED, sent & ~again, minute, tenant, size, msg)
        self._count(ev.STAGE_REDELIVERED, sent & again, minute, tenant, size, msg)
        retained, weight = event == ev.RETAINED_SENT, piece.column("weight")
        self._count(ev.STAGE_DELIVERED, retained, minute, tenant, weight, msg)
        nothing = np.zeros(piece.size, np.int64)
        for code, stage in _ANSWERED.items():
            self._count(stage, event == code, minute, tenant, nothing, msg)
        self._count(ev.STAGE_EXPIRED, event == ev.MSG_EXPIRED, minute, tenant, size, msg)
        # A range has a count of messages, but neither their sizes nor their ids.
        dropped, ranged = event == ev.MSG_DROPPED, piece.column("msg_last") != NULL
        self._count(ev.STAGE_DROPPED, dropped & ~ranged, minute, tenant, size, msg)
        many = np.repeat(np.flatnonzero(dropped & ranged), piece.column("count")[dropped & ranged])
        whole = np.ones(len(many), np.bool_)
        nulls = np.full(len(many), NULL, np.int64)
        self._count(ev.STAGE_DROPPED, whole, minute[many], tenant[many], nothing[many], nulls)

    def _register(self, msg: Ints, size: Ints, minute: Ints, tenant: Ints) -> None:
        stored = msg < UNSTORED
        self._log.put(msg[stored], size[stored], minute[stored], tenant[stored])
        number = msg & NUMBER_MASK
        for stamped, known in self._unstored.items():
            here = ~stored & ((number >= NUMBERS_FROM) == stamped)
            at = number[here] - (NUMBERS_FROM if stamped else 0)
            known.put(at, size[here], minute[here], tenant[here])

    def _look_up(self, msg: Ints) -> Ints:
        """Return size, minute and tenant of messages; zeros for NULL."""
        facts = np.zeros((3, len(msg)), np.int64)
        stored = (msg != NULL) & (msg < UNSTORED)
        facts[:, stored] = self._log.get(msg[stored])
        number = msg & NUMBER_MASK
        for stamped, known in self._unstored.items():
            here = (msg >= UNSTORED) & ((number >= NUMBERS_FROM) == stamped)
            facts[:, here] = known.get(number[here] - (NUMBERS_FROM if stamped else 0))
        return facts

    def _count(
        self,
        stage: int,
        rows: npt.NDArray[np.bool_],
        minute: Ints,
        tenant: Ints,
        size: Ints,
        msg: Ints,
    ) -> None:
        if not rows.any():
            return
        minute, tenant, size, msg = minute[rows], tenant[rows], size[rows], msg[rows]
        stored = (msg != NULL) & (msg < UNSTORED)
        offset = np.where(stored, msg, 0).astype(np.uint64)
        square = (offset & np.uint64(ROOT_MASK)) ** np.uint64(2)
        key = minute * _TENANTS + tenant
        order = np.argsort(key, kind="stable")
        key = key[order]
        starts = np.flatnonzero(np.r_[True, key[1:] != key[:-1]])
        counts = np.diff(np.r_[starts, len(key)])
        sizes = np.add.reduceat(size[order], starts)
        # Sums wrap at 2 ** 64, which is a multiple of 2 ** 61.
        checks = [np.add.reduceat(part[order], starts) for part in (offset, square)]
        for index, start in enumerate(starts.tolist()):
            place = (int(key[start]) // _TENANTS, int(key[start]) % _TENANTS, stage)
            values = self._open.setdefault(place, [0, 0, 0, 0])
            values[0] += int(counts[index])
            values[1] += int(sizes[index])
            values[2] = (values[2] + int(checks[0][index])) & MASK
            values[3] = (values[3] + int(checks[1][index])) & MASK

    def tell(self, at: int, slot: int) -> Piece:
        """Return the rows of the open books, and begin new books."""
        told, self._open = sorted(self._open.items()), {}
        piece = Piece(len(told))
        columns: dict[str, list[int]] = {
            "ev": [ev.BOOKS] * len(told),
            "actor": [ev.BROKER] * len(told),
            "ts": [at] * len(told),
            "slot": [slot] * len(told),
            "bin": [minute * MINUTE for (minute, _, _), _ in told],
            "tenant": [tenant for (_, tenant, _), _ in told],
            "stage": [self._words.index(ev.STAGES[stage]) for (_, _, stage), _ in told],
            "count": [values[0] for _, values in told],
            "total_bytes": [values[1] for _, values in told],
            "check1": [values[2] for _, values in told],
            "check2": [values[3] for _, values in told],
        }
        piece.numbers = {name: np.array(values, np.int64) for name, values in columns.items()}
        return piece

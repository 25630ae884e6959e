"""Decides whether a log that is not whole has a torn tail or has lost something.

A power cut leaves less than was written: a shorter file, zeros where pages were not yet written, a
log and not the one before it. It takes only what was not synced. So what is missing behind the last
batch known to be durable is a torn tail, and the broker starts with what is before it; what is
missing before that is a loss, and refused. Bytes that are neither right nor zero are damage of
another kind, and refused anywhere.

How many batches were durable is known from the watermark, at most a second old, and from the
batches behind the hole: each says how many were durable when it was written. Batches have
consecutive numbers, so a hole shows even where RocksDB would go on behind it. Pure: knows no file.
Read next: `storage.local.opening`, which acts on it.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from storage.local.log_format import (
    CLEAN,
    DAMAGED,
    GAP,
    SHORT,
    TORN,
    Records,
    newest_proof,
    walk,
)
from storage.local.watermark import Synced


class Finding(NamedTuple):
    """Where the logs stop being whole."""

    log: int  # the number of the file
    offset: int  # everything from here on, and in later logs, is given up
    problem: str
    batches: int  # number of the last batch before it, 0 = not known
    durable: int  # batches known to have been durable
    is_loss: bool  # some of them are missing

    @property
    def is_torn(self) -> bool:
        """Return whether a power cut may have done it, at no loss of anything durable."""
        return self.problem in TORN and not self.is_loss


def examine(
    numbers: Sequence[int], read: Callable[[int], bytes], synced: Synced, *, check: str = "torn"
) -> Finding | None:
    """Return where the logs stop being whole, None if they are.

    `numbers` are those of all logs, `read` returns the bytes of one. `check` is as for `walk`. Logs
    from before the last opening are not needed any more, so nothing is said about them.
    """
    needed = sorted(number for number in numbers if number >= synced.opening_log)
    last = before = end = 0  # the newest batch so far, the log that holds it, and where it ends
    if needed[:1] == [synced.log] and synced.length == 0:
        last, before = synced.sequence, synced.log  # nothing was synced since the opening
    empty = 0  # the first log without a batch
    open_problem: tuple[int, int, str] | None = None  # log, offset, problem
    for number in needed:
        expected = last + 1 if last else 0
        found = walk(read(number), expected=expected, trusted=synced.sequence, check=check)
        if found.first and found.first != expected:
            if last:
                open_problem = open_problem or (before, end, GAP)
            elif empty:  # RocksDB begins no log behind an empty one
                open_problem = open_problem or (empty, 0, GAP)
            if open_problem is not None:
                break
        if found.first:
            # It continues the log before it, so what that one has at its end was given up before.
            open_problem = None
            last, before, end = found.last, number, found.end
        elif not empty:
            empty = number
        if found.problem != CLEAN and open_problem is None:
            open_problem = (number, found.end, found.problem)
    if open_problem is None:
        return None
    log, offset, problem = open_problem
    proof = newest_proof(read(log), offset)
    for number in needed:
        if number > log:
            proof = max(proof, newest_proof(read(number), 0))
    batches = last
    durable = max(synced.sequence, proof)
    if batches:
        is_loss = durable > batches
    else:  # the batches before this log are in tables, who knows how many
        is_loss = log < synced.log or (log == synced.log and synced.length > 0)
        is_loss = is_loss or proof > synced.sequence
    return Finding(log, offset, problem, batches, durable, is_loss)


class ManifestFinding(NamedTuple):
    """Where a MANIFEST stops being whole."""

    offset: int  # everything from here on is given up
    is_torn: bool  # a power cut may have done it; False: some of it was synced


def examine_manifest(data: bytes, synced_length: int) -> ManifestFinding | None:
    """Return where a MANIFEST stops being whole, None if it is or if RocksDB will say so.

    `synced_length` is how much of it is known to have been synced, 0 = not known.
    """
    records = Records(data)
    while records.step(check="torn"):
        pass
    if len(data) < synced_length:
        return ManifestFinding(records.begin, is_torn=False)
    if records.problem in (CLEAN, DAMAGED):
        return None
    if records.begin < synced_length:  # it was synced as far as a record ends
        return ManifestFinding(records.begin, is_torn=False)
    rest_is_empty = records.problem == SHORT or not data[records.missing :].strip(b"\0")
    if records.begin == 0 or (synced_length == 0 and not rest_is_empty):
        return None
    return ManifestFinding(records.begin, is_torn=True)

"""A new log for a cluster whose log is gone: the database of one node is what it begins with.

The last resort, when the log has lost more than the tail of any node has. Everything that the tail
has behind the database is applied first. Then the database says that it is at the beginning of a
log whose first record must name a number made here: only copies of this database can follow it, and
an empty one, or one of the old log, is told so. Read next: `storage.replicated.applied`.
"""

import secrets
import shutil
from contextlib import closing
from pathlib import Path
from typing import Final, NamedTuple

from storage.api import Store
from storage.errors import StorageError
from storage.local.data_directory import DataDirectory
from storage.local.opening import open_database
from storage.replicated import anchors, applied, batch_codec
from storage.replicated.applied import Reached
from storage.replicated.record import BATCH, CLAIM, DIGEST_BYTES, Position, after, counts, decode
from storage.replicated.tail import Tail
from storage.tables.tables import FAMILIES

TAIL: Final = "tail"  # in the data directory


class Renewed(NamedTuple):
    """What the new log begins with."""

    last: int  # record of the old log that the database has
    from_tail: int  # batches that the tail had behind the database


def renew(path: Path) -> Renewed:
    """Make the database in a data directory, which no process uses, the beginning of a new log.

    Durable on return; a crash before it has it done again. Raises `StorageError`.
    """
    if not (path / "db").is_dir():
        raise StorageError(f"{path}: no database")
    with closing(DataDirectory(path)) as directory:
        opened = open_database(directory, families=FAMILIES)
        with closing(opened.watermark), closing(opened.store) as store:
            before = applied.load_reached(store)
            if before == Reached(Position(), 0):
                raise StorageError(f"{path}: no log was read into this database: nothing to renew")
            tail = path / TAIL
            with closing(Tail(tail)) as records:
                end, count = _apply_tail(store, records, before)
            _begin(store, end)
            shutil.rmtree(tail)
    return Renewed(end.index, count)


def _apply_tail(store: Store, tail: Tail, reached: Reached) -> tuple[Position, int]:
    """Apply what the tail has behind the database; return where that ends, and the batches."""
    end, families, count = reached.position, set(store.families()), 0
    done, parts = end, list[bytes]()
    for _, data in tail.read_from(end.index + 1):
        record = decode(data)
        if not counts(record, end):
            break
        end = after(record, data)
        if record.kind == CLAIM:
            parts.clear()
            continue
        parts.append(record.body)
        if record.kind == BATCH:
            operations = batch_codec.decode(b"".join(parts))
            applied.apply(store, families, operations, Reached(end, reached.place))
            parts.clear()
            done, count = end, count + 1
    return done, count


def _begin(store: Store, end: Position) -> None:
    start = Position(end.epoch, 0, secrets.token_bytes(DIGEST_BYTES))
    applied.apply(store, set(store.families()), (), Reached(start, 0))
    anchors.save(store, ())
    store.sync()

"""Attacks on the history as such: its segments, its boots, and whole stretches of it."""

import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from tests.audit.deceptions.attack import BOTH, CHAIN, Attacks
from tests.audit.deceptions.tale import Tale, lie_of_a_disk

attack = Attacks("the log")


def _of_boot(paths: list[Path], boot: int) -> Path:
    return next(path for path in paths if f"-{boot:08}-" in path.name)


@attack("a segment deleted in the middle")
def segment_deleted(tale: Tale) -> None:
    """That of the second boot."""
    tale.on_files.append(lambda paths: _of_boot(paths, 2).unlink())


@attack("a segment there twice, under another name")
def segment_twice(tale: Tale) -> None:
    """As if another hour had begun."""

    def copy(paths: list[Path]) -> None:
        path = _of_boot(paths, 2)
        hour = path.parent.with_name("hour=23")
        hour.mkdir(exist_ok=True)
        shutil.copy(path, hour / path.name)

    tale.on_files.append(copy)


@attack("a segment cut off in its middle")
def segment_cut(tale: Tale) -> None:
    """The footer is gone."""

    def cut(paths: list[Path]) -> None:
        path = _of_boot(paths, 2)
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])

    tale.on_files.append(cut)


@attack("rows taken out of a segment whose footer is left")
def footer_left(tale: Tale) -> None:
    """The file has fewer rows than it says."""

    def thin(paths: list[Path]) -> None:
        path = _of_boot(paths, 2)
        table = pq.read_table(path, partitioning=None)
        kept = pa.concat_tables([table.slice(0, 30), table.slice(40)])
        pq.write_table(kept.replace_schema_metadata(table.schema.metadata), path)

    tale.on_files.append(thin)


@attack("the last rows before a crash cut off")
def tail_cut(tale: Tale) -> None:
    """The next boot says how many there were."""
    tale.rows = [r for r in tale.rows if r["boot"] != 1 or r["seq"] <= 235]


@attack(
    "the last boot deleted",
    needs=CHAIN,
    why="a history that ends earlier is one that was audited earlier",
)
def last_boot_deleted(tale: Tale) -> None:
    """Nothing comes behind it that would know."""
    tale.rows = [row for row in tale.rows if row["boot"] < 3]


@attack(
    "the first boot deleted",
    why="a history may begin late, as after the retention; what came before is not judged",
    needs=CHAIN,
)
def first_boot_deleted(tale: Tale) -> None:
    """As if its time to be kept was over."""
    tale.rows = [row for row in tale.rows if row["boot"] > 1]


@attack("a boot that was never there inserted: a copy of the last one")
def boot_repeated(tale: Tale) -> None:
    """With the next number."""
    last = [row for row in tale.rows if row["boot"] == 3]
    copies = [{**row, "boot": 4} for row in last]
    copies[0]["count"] = len(last)
    tale.rows += copies


@attack("rows missing, and a gap invented that explains them")
def gap_invented(tale: Tale) -> None:
    """The history says itself that the outbox was full."""
    gone = [row for row in tale.rows if row["boot"] == 2 and 60 <= row["seq"] < 70]
    tale.drop(*gone)
    last = tale.of("gc_run", boot=2)[-1]
    last |= {"ev": "history_gap", "reason": 1051, "count": len(gone)}


@attack("a lower level of detail invented, and a delivery hidden behind it")
def level_invented(tale: Tale) -> None:
    """As if an operator had changed it."""
    for row in tale.of("boot"):
        row["detail"] = "books" if row["boot"] == 2 else row["detail"]
    kinds = ("msg_", "pub_", "retained_sent")
    tale.rows = [r for r in tale.rows if r["boot"] != 2 or not r["ev"].startswith(kinds)]
    tale.renumber()


@attack("a node that records books only, beside others at full")
def at_books(tale: Tale) -> None:
    """Nothing was hidden: it was never recorded."""
    for row in tale.of("boot"):
        row["detail"] = "books"
    kinds = ("msg_", "pub_", "retained_sent")
    tale.rows = [row for row in tale.rows if not row["ev"].startswith(kinds)]
    tale.renumber()


@attack(
    "a disk that lies: acknowledged messages and a session gone with their rows",
    needs=BOTH,
    why="history and state agree; rows that were never exported cannot be missed",
)
def disk_lied(tale: Tale) -> None:
    """The broker itself believes it."""
    tale.rows = lie_of_a_disk(exported=False)


@attack("a disk that lies, and its rows had been exported")
def disk_lied_exported(tale: Tale) -> None:
    """The next boot does not find what was exported."""
    tale.rows = lie_of_a_disk(exported=True)


@attack("two rows of a boot exchanged")
def rows_exchanged(tale: Tale) -> None:
    """A PUBACK stands where its message was enqueued."""
    accepted = tale.one("msg_accepted", topic="a/0", boot=3)
    acked = tale.one("pub_acked", msg=accepted["msg"])
    at, other = tale.index(accepted), tale.index(acked)
    tale.rows[at], tale.rows[other] = acked, accepted
    tale.renumber()

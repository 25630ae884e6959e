"""Segments: the Parquet files of the exported history, and their footers.

A segment holds events of one node, boot and hour without a hole. It appears under its name
(`storage.history.segment_names`) complete and durable, or not at all; writing the same events again
replaces it. Only one process at a time may write or remove segments in a directory. Needs the extra
`history`. Read next: `storage.history.chain`, `storage.history.row_digest`.
"""

import errno
import json
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from storage.history import chain
from storage.history.chain import Chained, Link, Piece
from storage.history.columns import ARROW_SCHEMA
from storage.history.events import SCHEMA_VERSION
from storage.history.row_digest import digest_of, digest_of_columns
from storage.history.segment_names import (
    SegmentName,
    hours,
    names_in,
    parse_name,
    segment_names,
    segment_path,
)
from storage.local import failpoint

EVENTS_MAX: Final = 500_000  # per segment: about 10 MB, and 1 GB of memory while it is audited
HOUR_US: Final = 3_600_000_000
_HOUR_MS: Final = 3_600_000
_DAY_MS: Final = 24 * _HOUR_MS

_UNFINISHED: Final = ".unfinished"  # with a leading dot: readers of Parquet folders skip the file
# Columns that grow by one from event to event take 0.4 to 1.1 bytes an event as differences instead
# of 3.5, and no more time.
_DIFFERENCES: Final = ("seq", "msg", "order", "pid")
# Names are written once, however many and long: beyond the default of 1 MiB Parquet would repeat
# them with every event. The rows of one segment have at most about 64 MiB of names.
_NAMES_BYTES_MAX: Final = 1 << 30
_META: Final = "holdfast."

Segment = SegmentName


class SegmentError(Exception):
    """A segment cannot be written, read or removed; the text is one line that names the file."""


@dataclass(frozen=True)
class Footer:
    """The metadata of a segment."""

    schema: int
    node: str
    boot: int
    first_seq: int
    last_seq: int
    rows: int
    counts: dict[str, int]  # by event
    link: Link | None = None  # None = it is not chained


def split_for_segments(table: pa.Table) -> Iterator[pa.Table]:
    """Split a table of events into pieces that can each be a segment.

    A piece ends at `EVENTS_MAX` events, at a new hour or boot, and at a hole in the seq.
    """
    if table.num_rows == 0:
        return
    for start, end in pairwise([0, *_cuts(table), table.num_rows]):
        for at in range(start, end, EVENTS_MAX):
            yield table.slice(at, min(EVENTS_MAX, end - at))


def write_segment(
    directory: Path,
    table: pa.Table,
    node: str,
    boot: int,
    *,
    before: str = chain.NONE,
    is_copy: bool = False,
) -> tuple[Segment, str]:
    """Write events of one boot and hour, without a hole, as one segment. Durable on return.

    Returns it and its head; `before` is the head of the segment before it. Raises `SegmentError`
    when the file system refuses; then the segment is complete or absent, and the same events can be
    written again.
    """
    assert table.num_rows > 0
    assert table.schema.equals(ARROW_SCHEMA), "columns other than ours"
    assert not _cuts(table), "more than one segment"
    seq = table.column("seq")
    first_seq, last_seq = seq[0].as_py(), seq[-1].as_py()
    first_ms = table.column("ts").cast(pa.int64())[0].as_py() // 1000
    path = segment_path(directory, node, boot, first_seq, last_seq, first_ms=first_ms)
    segment = parse_name(path)
    assert segment is not None and segment.node == node and node[0] not in "._", f"node {node!r}"
    meta = {
        "schema": SCHEMA_VERSION,
        "node": node,
        "boot": boot,
        "first_seq": first_seq,
        "last_seq": last_seq,
        "rows": table.num_rows,
        "counts": json.dumps(_counts(table)),
    }
    digest = digest_of(table)
    head = chain.head_of(node, boot, first_seq, last_seq, digest, before)
    meta |= {"chain": chain.VERSION, "digest": digest, "before": before, "head": head}
    if is_copy:
        meta["copy"] = 1
    folder = path.parent
    unfinished = folder / f".{path.name}{_UNFINISHED}"
    try:
        _make_folder(folder)
        with open(unfinished, "wb") as file:
            _write(table, file, {_META + key: str(value) for key, value in meta.items()})
            file.flush()
            os.fsync(file.fileno())
        if failpoint.hook is not None:
            failpoint.hook(failpoint.HISTORY_BEFORE_RENAME)
        os.replace(unfinished, path)
        if failpoint.hook is not None:
            failpoint.hook(failpoint.HISTORY_AFTER_RENAME)
        _sync_folder(folder)
    except (OSError, pa.ArrowException) as problem:
        with suppress(OSError):  # a remaining file is removed when its hour is over
            unfinished.unlink()
        raise SegmentError(f"history segment {path}: {_reason(problem)}") from problem
    return segment, head


def _write(table: pa.Table, file: Any, meta: dict[str, str]) -> None:
    pq.write_table(
        table.replace_schema_metadata(meta),
        file,
        compression="zstd",
        dictionary_pagesize_limit=_NAMES_BYTES_MAX,
        use_dictionary=[name for name in ARROW_SCHEMA.names if name not in _DIFFERENCES],
        column_encoding=dict.fromkeys(_DIFFERENCES, "DELTA_BINARY_PACKED"),
        write_page_checksum=True,
    )


def read_footer(path: Path) -> Footer:
    """Return the metadata of a segment; raises `SegmentError` unless it is a complete segment.

    A truncated file cannot be read at all: the footer is at the end.
    """
    try:
        metadata = pq.read_metadata(path)
        meta = {key.decode(): value.decode() for key, value in (metadata.metadata or {}).items()}
        counts = json.loads(meta[_META + "counts"])
        if not isinstance(counts, dict) or not all(type(n) is int for n in counts.values()):
            raise ValueError(f"counts {counts!r}")
        schema, boot, first_seq, last_seq, rows = (
            int(meta[_META + key]) for key in ("schema", "boot", "first_seq", "last_seq", "rows")
        )
        node, link = meta[_META + "node"], _link(meta)
        footer = Footer(schema, node, boot, first_seq, last_seq, rows, counts, link)
    except (OSError, pa.ArrowException, ValueError) as problem:
        raise SegmentError(f"history segment {path}: {_reason(problem)}") from problem
    except KeyError as problem:
        raise SegmentError(f"history segment {path}: no {problem} in its footer") from problem
    if metadata.num_rows != rows:
        raise SegmentError(f"history segment {path}: {metadata.num_rows} rows, expected {rows}")
    return footer


def _link(meta: dict[str, str]) -> Link | None:
    """Return what a footer says of the chain. Raises `KeyError`, `ValueError`."""
    version = meta.get(_META + "chain")
    if version is None:
        return None
    if version != chain.VERSION:
        raise ValueError(f"chain {version}, this version knows {chain.VERSION}")
    digest, before, head = (meta[_META + key] for key in ("digest", "before", "head"))
    return Link(digest, before, head, is_copy=_META + "copy" in meta)


def newest_piece(directory: Path, node: str) -> Piece | None:
    """Return the last segment of `node`, which the next one follows; None = there is none.

    The rows are read of a segment of an earlier version, which has no head. A damaged one has no
    head: after it a chain begins anew.
    """
    newest: Segment | None = None
    for segment in segment_names(directory, node):
        if newest is None or (segment.boot, segment.last_seq) > (newest.boot, newest.last_seq):
            newest = segment
    if newest is None:
        return None
    _, piece = examine(newest)
    if piece.is_readable and piece.link is None:
        _, piece = examine(newest, thorough=True)
    return piece


@dataclass(frozen=True)
class Survey:
    """The contents of a directory of segments, and the problems found."""

    problems: list[str]  # a line of text each
    segments: int
    events: int  # by the file names
    boots: int  # of all nodes
    nodes: int
    pieces: list[Piece]
    chained: Chained


def verify(directory: Path, *, thorough: bool = False) -> list[str]:
    """Return the problems with the segments of a directory, one line of text each."""
    return survey(directory, thorough=thorough).problems


def survey(directory: Path, *, thorough: bool = False) -> Survey:
    """Check every segment of a directory. Raises `SegmentError` if it cannot be listed.

    Checks names, footers, that each seq of a boot is there exactly once, and the chain. `thorough`
    also reads every event and the checksums of the pages (Parquet has none for its headers), and
    compares the digests of the rows. Segments of a node may have been removed by age, so nothing
    before the oldest one counts as missing. A segment that the retention removes during the check
    is no problem.
    """
    problems: list[str] = []
    named: list[Segment] = []
    pieces: list[Piece] = []
    try:
        folders = list(hours(directory))
        paths = [path for folder in folders for path in sorted(folder.iterdir())]
    except OSError as problem:
        raise SegmentError(f"history directory {directory}: {_reason(problem)}") from problem
    for path in paths:
        segment = parse_name(path)
        if segment is not None:
            found, piece = examine(segment, thorough=thorough)
            if not found or path.exists():
                named.append(segment)
                pieces.append(piece)
                problems += found
        elif path.name[0] not in "._":  # readers of the directory skip such names
            problems.append(f"{path}: not a name of a segment")
    named.sort(key=lambda each: (each.node, each.boot, each.first_seq, each.last_seq))
    chained = chain.follow(pieces, {})
    return Survey(
        problems + list(_seq_problems(named)) + list(_chain_problems(chained)),
        len(named),
        sum(each.last_seq - each.first_seq + 1 for each in named),
        len({(each.node, each.boot) for each in named}),
        len({each.node for each in named}),
        pieces,
        chained,
    )


def check(segment: Segment, *, thorough: bool = False) -> list[str]:
    """Return the problems with one segment: whether it is complete and agrees with its name."""
    return examine(segment, thorough=thorough)[0]


def examine(segment: Segment, *, thorough: bool = False) -> tuple[list[str], Piece]:
    """Return the problems with one segment, and its part of the chain.

    That has the digest of its rows if it is `thorough`. A changed footer or digest is no problem
    here: the chain shows it.
    """
    names = segment.path.name, segment.node, segment.boot, segment.first_seq, segment.last_seq
    digest = ""
    try:
        footer = read_footer(segment.path)
        found = list(_disagreements(segment, footer))
        if thorough:
            digest, table = _read(segment.path)
            found += _damage(table, footer)
    except SegmentError as problem:
        return [str(problem)], Piece(*names, is_readable=False)
    except (pa.ArrowException, KeyError) as problem:
        text = f"history segment {segment.path}: {_reason(problem)}"
        return [text], Piece(*names, is_readable=False)
    is_itself = not any(_disagreements(segment, footer))
    piece = Piece(*names, link=footer.link, digest=digest, is_readable=is_itself)
    return [f"{segment.path}: {problem}" for problem in found], piece


def drop_older(directory: Path, node: str, keep_days: int, now_ms: int) -> list[Segment]:
    """Remove segments of `node` for hours that ended more than `keep_days` ago; return them.

    `keep_days` 0 keeps all of them. Unfinished files of a crash are removed once their hour is
    over. Nodes may share a directory, each with its own `keep_days`: files of others stay. `now_ms`
    is broker time, like the times of the events. Raises `SegmentError`.
    """
    removed: list[Segment] = []
    try:
        for folder in hours(directory):
            ended_ms = _hour_ms(folder) + _HOUR_MS
            if keep_days > 0 and ended_ms <= now_ms - keep_days * _DAY_MS:
                removed += _empty(folder, node)
            elif ended_ms <= now_ms:
                for path in _unfinished(folder, node):
                    path.unlink()
    except OSError as problem:
        raise SegmentError(f"history directory {directory}: {_reason(problem)}") from problem
    return removed


def _empty(folder: Path, node: str) -> list[Segment]:
    """Remove the node's files from the folder of an hour, and folders that are then empty."""
    removed = names_in(folder, node)
    for path in [segment.path for segment in removed] + _unfinished(folder, node):
        path.unlink()
    for empty in (folder, folder.parent):
        try:
            empty.rmdir()
        except OSError as problem:
            if problem.errno not in (errno.ENOTEMPTY, errno.ENOENT):  # not ours alone
                raise
            break
    return removed


def _unfinished(folder: Path, node: str) -> list[Path]:
    """Return the unfinished files of the node in the folder of an hour."""
    found = []
    for path in folder.glob(f".*{_UNFINISHED}"):
        segment = parse_name(path.with_name(path.name[1:].removesuffix(_UNFINISHED)))
        if segment is not None and segment.node == node:
            found.append(path)
    return found


def _numbers(table: pa.Table, name: str) -> Any:
    return table.column(name).cast(pa.int64()).to_numpy()


def _cuts(table: pa.Table) -> list[int]:
    """Return the rows at which a new hour or boot begins, or the seq has a hole before."""
    seq, boot = _numbers(table, "seq"), _numbers(table, "boot")
    hour = _numbers(table, "ts") // HOUR_US
    is_cut = (np.diff(seq) != 1) | (np.diff(boot) != 0) | (np.diff(hour) != 0)
    cuts: list[int] = (np.flatnonzero(is_cut) + 1).tolist()
    return cuts


def _counts(table: pa.Table) -> dict[str, int]:
    """Return the number of events of each kind in a table."""
    counted = pc.value_counts(table.column("ev").combine_chunks()).to_pylist()
    return {pair["values"]: pair["counts"] for pair in counted}


def _hour_ms(folder: Path) -> int:
    day, hour = folder.parent.name.removeprefix("date="), folder.name.removeprefix("hour=")
    return int(datetime.fromisoformat(f"{day}T{hour}:00:00+00:00").timestamp()) * 1000


def _disagreements(segment: Segment, footer: Footer) -> Iterator[str]:
    if footer.schema > SCHEMA_VERSION:
        yield f"schema {footer.schema}, this version knows {SCHEMA_VERSION}"
    for what in ("node", "boot", "first_seq", "last_seq"):
        named, written = getattr(segment, what), getattr(footer, what)
        if named != written:
            yield f"{what} is {named} by its name and {written} by its footer"
    events = footer.last_seq - footer.first_seq + 1
    if footer.rows != events:
        yield f"{footer.rows} rows, but {events} events by its footer"
    counted = sum(footer.counts.values())
    if footer.rows != counted:
        yield f"{footer.rows} rows, but {counted} by the counts of its footer"


def _damage(table: pa.Table, footer: Footer) -> Iterator[str]:
    """Yield how the events of a segment differ from its footer."""
    if not np.array_equal(_numbers(table, "seq"), np.arange(footer.first_seq, footer.last_seq + 1)):
        yield "its events are not those of its footer"
    if _counts(table) != footer.counts:
        yield "its events are not as many of each kind as its footer says"


def _read(path: Path) -> tuple[str, pa.Table]:
    """Return the digest of a segment's rows, and their columns `seq` and `ev`.

    Reads one column at a time, which takes little memory, and compares their checksums. Raises
    `SegmentError`, `KeyError`.
    """
    kept: dict[str, pa.ChunkedArray] = {}

    def columns(file: pq.ParquetFile) -> Iterator[tuple[pa.Field, pa.ChunkedArray]]:
        for field in file.schema_arrow:
            column = file.read(columns=[field.name]).column(0)
            if field.name in ("seq", "ev"):
                kept[field.name] = column
            yield field, column

    try:
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            digest = digest_of_columns(file.metadata.num_rows, columns(file))
    except (OSError, pa.ArrowException) as problem:
        raise SegmentError(f"history segment {path}: {_reason(problem)}") from problem
    return digest, pa.table({name: kept[name] for name in ("seq", "ev")})


def _chain_problems(chained: Chained) -> Iterator[str]:
    """Yield where the chain does not hold, but not where events are missing: that is said."""
    for each in chained.breaks:
        piece, before = each.piece, each.before
        if before is not None and before.boot == piece.boot:
            if before.last_seq + 1 != piece.first_seq:
                continue
        after = "" if before is None else f", {before.name}"
        yield (
            f"{piece.node} boot {piece.boot}, from event {piece.first_seq} on: {each.what}"
            f"{after}: {piece.name}"
        )


def _seq_problems(segments: list[Segment]) -> Iterator[str]:
    """Yield which events of a boot are in no segment, or in two; `segments` must be sorted."""
    before: Segment | None = None
    end = 0  # of the boot so far
    for segment in segments:
        where = f"{segment.node} boot {segment.boot}"
        if before is None or before.node != segment.node:
            end = segment.first_seq - 1
        elif before.boot != segment.boot:
            end = 0
        if segment.first_seq > end + 1:
            yield f"{where}: events {end + 1} to {segment.first_seq - 1} are missing"
        elif segment.first_seq <= end:
            last = min(end, segment.last_seq)
            yield f"{where}: events {segment.first_seq} to {last} are there twice"
        end = max(end, segment.last_seq)
        before = segment


def _make_folder(folder: Path) -> None:
    """Create a folder and those above it, durably."""
    if folder.is_dir():
        return
    _make_folder(folder.parent)
    folder.mkdir(exist_ok=True)
    _sync_folder(folder.parent)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _reason(problem: Exception) -> str:
    """Return the first line of an error's text."""
    if isinstance(problem, FileExistsError):  # a file has the name of the folder to create
        return f"{problem.filename}: not a directory"
    text = problem.strerror if isinstance(problem, OSError) and problem.strerror else str(problem)
    return (text or type(problem).__name__).splitlines()[0]

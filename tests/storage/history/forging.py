"""What somebody does who may write to the directory of segments: edits of files and footers."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from storage.history import chain
from storage.history.columns import ARROW_SCHEMA
from storage.history.row_digest import digest_of
from storage.history.segment_names import SegmentName, parse_name, segment_names

Rows = list[dict[str, Any]]


def in_order(directory: Path, node: str | None = None) -> list[SegmentName]:
    """Return the segments in the order of the chain."""
    return sorted(segment_names(directory, node), key=lambda s: (s.node, s.boot, s.first_seq))


def edit(segment: SegmentName, change: Callable[[Rows], Rows], *, digest: str = "") -> SegmentName:
    """Change rows of a segment, and its name and footer with them; no word of the chain.

    With `digest` the footer gets that one, or, if it is "right", the one that the rows have.
    """
    old = pq.read_table(segment.path, partitioning=None)
    table = pa.Table.from_pylist(change(old.to_pylist()), ARROW_SCHEMA)
    first, last = table.column("seq")[0].as_py(), table.column("seq")[-1].as_py()
    counts: dict[str, int] = {}
    for ev in table.column("ev").to_pylist():
        counts[ev] = counts.get(ev, 0) + 1
    new: dict[str, object] = {"first_seq": first, "last_seq": last, "rows": table.num_rows}
    new["counts"] = str(counts).replace("'", '"')
    if digest:
        new["digest"] = digest_of(table) if digest == "right" else digest
    name = f"{segment.node}-{segment.boot:08}-{first:016}-{last:016}.parquet"
    segment.path.unlink()
    found = parse_name(segment.path.with_name(name))
    assert found is not None
    pq.write_table(table.replace_schema_metadata(old.schema.metadata), found.path)
    relabel(found, **new)
    return found


def relabel(segment: SegmentName, **words: object) -> None:
    """Write other words into the footer of a segment; None removes one."""
    table = pq.read_table(segment.path, partitioning=None)
    meta = dict(table.schema.metadata or {})
    for key, value in words.items():
        meta[f"holdfast.{key}".encode()] = str(value).encode()
        if value is None:
            del meta[f"holdfast.{key}".encode()]
    pq.write_table(table.replace_schema_metadata(meta), segment.path)


def unchain(segment: SegmentName) -> None:
    """Write a segment as versions without a chain did."""
    relabel(segment, chain=None, digest=None, before=None, head=None)


def rechain(directory: Path, node: str | None = None) -> None:
    """Write the whole chain anew, as the rows are now: nothing but a witness shows that."""
    heads: dict[str, str] = {}
    for segment in in_order(directory, node):
        digest = digest_of(pq.read_table(segment.path, partitioning=None))
        before = heads.get(segment.node, chain.NONE)
        head = chain.head_of(
            segment.node, segment.boot, segment.first_seq, segment.last_seq, digest, before
        )
        heads[segment.node] = head
        relabel(segment, chain=chain.VERSION, digest=digest, before=before, head=head)


def swap(one: SegmentName, other: SegmentName) -> None:
    """Exchange the contents of two files."""
    aside = one.path.with_name("aside")
    shutil.move(one.path, aside)
    shutil.move(other.path, one.path)
    shutil.move(aside, other.path)

"""`generate`: a history of several nodes in one directory, and the manifest of its faults.

Faults played by clients are on the first node. The second, if faults or gaps are requested, has the
faults of the history itself: rows hidden, deleted or missing, a missing segment, a wrong footer. On
the third the disk loses acknowledged messages. So no fault can hide another one.
"""

import dataclasses
import json
import random
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pyarrow.parquet as pq

from audit.generate import faults, session_faults
from audit.generate.node import CRASH, FORGETFUL_CRASH, RUNNING, SHUTDOWN, Node, Outline
from audit.generate.scenes import Injection, Play
from audit.generate.state import SECOND
from storage.history.segments import Segment

BEGAN_AT: Final = 1_773_532_260 * SECOND  # 2026-03-14 23:51 UTC, shortly before midnight
MANIFEST: Final = "_manifest.json"  # readers of Parquet folders skip names that begin with _
SECOND_NODE: Final = "beta"
TWO: Final = {"alpha": 0.65, SECOND_NODE: 0.35}
SMALL: Final = (CRASH, SHUTDOWN, RUNNING)
LARGE: Final = 1_000_000  # from this many events on there are more and longer boots
PLAYED_SHARE: Final = 0.035  # of a large history is played by the model, half of a small one
PLAYED_MIN: Final = 30_000

PLAYS: Final[dict[str, Play]] = {**faults.PLAYS, **session_faults.PLAYS}
# Not played by clients; on the second and third node.
HONEST: Final = ("lowered_level", "trimmed")
HISTORY_FAULTS: Final = ("hole", "missing_segment", "footer_lies")
DISK_FAULTS: Final = ("disk_forgot",)
KINDS: Final = (*PLAYS, *HISTORY_FAULTS, *DISK_FAULTS, *HONEST)


@dataclass
class Manifest:
    """The description of a generated history."""

    events: int
    seed: int
    nodes: list[str]
    injections: list[Injection]
    honest: list[Injection]  # gaps: results that touch them are unknown, never violated

    def write(self, path: Path) -> None:
        """Write it as JSON."""
        path.write_text(json.dumps(dataclasses.asdict(self), indent=1) + "\n")


def load(path: Path) -> Manifest:
    """Return the manifest of a file that `Manifest.write` wrote."""
    fields = json.loads(path.read_text())
    for name in ("injections", "honest"):
        fields[name] = [Injection(**injection) for injection in fields[name]]
    return Manifest(**fields)


def kinds_of(word: str) -> tuple[str, ...]:
    """Return the faults meant by `none`, `honest` (gaps only) or `all`."""
    return {"none": (), "honest": HONEST, "all": KINDS}[word]


def expected(manifest: Manifest) -> dict[str, list[Injection]]:
    """Return the faults that must be found, by invariant; `tolerated` lists what else may be."""
    found: dict[str, list[Injection]] = {}
    for injection in manifest.injections:
        found.setdefault(injection.invariant, []).append(injection)
    return found


def generate(
    directory: Path,
    events: int = 10_000_000,
    seed: int = 1,
    kinds: Collection[str] = (),
    times: int = 1,
) -> Manifest:
    """Write a history of about `events` rows with every fault of `kinds`, each `times` times.

    The same arguments give the same rows. `directory` is created; it must be empty if it exists.
    """
    unknown = sorted(set(kinds) - set(KINDS))
    if unknown:
        raise ValueError(f"fault {unknown[0]!r} is not one of {', '.join(KINDS)}")
    directory.mkdir(parents=True, exist_ok=True)
    if any(directory.iterdir()):
        raise ValueError(f"directory {directory} is not empty")
    manifest = Manifest(0, seed, [], [], [])
    for outline in _outlines(events, seed, kinds, times):
        node = Node(outline)
        node.play()
        segments = node.write(directory)
        manifest.nodes.append(outline.node)
        manifest.injections += node.stage.injections
        manifest.honest += node.honest
        if outline.node == SECOND_NODE:
            manifest.injections += _spoil(segments, kinds)
        left = (segment for segment in segments if segment.path.exists())
        manifest.events += sum(segment.last_seq - segment.first_seq + 1 for segment in left)
    manifest.write(directory / MANIFEST)
    return manifest


def _outlines(events: int, seed: int, kinds: Collection[str], times: int) -> list[Outline]:
    """Divide the events among the nodes, and the faults among the boots of the first node."""
    ends = [CRASH, SHUTDOWN, CRASH, CRASH, RUNNING] if events >= LARGE else [*SMALL]
    forgets = "disk_forgot" in kinds
    shares = {"alpha": 0.6, SECOND_NODE: 0.3, "gamma": 0.1} if forgets else dict(TWO)
    played = min(events // 2, int(PLAYED_MIN + PLAYED_SHARE * events))
    made = {
        name: Outline(
            node=name,
            seed=seed * 1000 + number,
            events=int(events * share),
            played=int(played * share),
            began_at=BEGAN_AT + number * SECOND,
            duration_s=2400 if events >= LARGE else 900,
            ends=ends,
        )
        for number, (name, share) in enumerate(shares.items())
    }
    rng = random.Random(seed)
    crashes = [number for number, end in enumerate(ends) if end == CRASH]
    for kind in PLAYS:
        for _ in range(times if kind in kinds else 0):
            boot = rng.randrange(len(ends))
            if kind in faults.LAST_BOOT:
                boot = len(ends) - 1
            elif kind in session_faults.CRASHES:
                boot = rng.choice(crashes)
            made["alpha"].plays.append((boot, PLAYS[kind]))
    second = made[SECOND_NODE]
    second.hide, second.trim, second.hole = (
        kind in kinds for kind in ("lowered_level", "trimmed", "hole")
    )
    if forgets:
        made["gamma"].ends = [FORGETFUL_CRASH, SHUTDOWN, RUNNING]
    return list(made.values())


def _spoil(segments: list[Segment], kinds: Collection[str]) -> list[Injection]:
    """Remove a segment of the first boot; write a wrong footer in the second."""
    made = []
    for boot, kind in ((1, "missing_segment"), (2, "footer_lies")):
        if kind in kinds:
            inner = [segment for segment in segments if segment.boot == boot][1:-1]
            segment = inner[len(inner) // 2]
            if boot == 1:
                segment.path.unlink()
            else:
                _lie(segment)
            made.append(Injection("H1", kind, segment.node, boot=boot, seq=segment.first_seq))
    return made


def _lie(segment: Segment) -> None:
    """Write a footer that claims seven rows more than there are."""
    table = pq.read_table(segment.path, partitioning=None)
    meta = dict(table.schema.metadata)
    meta[b"holdfast.rows"] = str(table.num_rows + 7).encode()
    pq.write_table(table.replace_schema_metadata(meta), segment.path, compression="zstd")

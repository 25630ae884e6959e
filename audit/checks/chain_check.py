"""H1: exported segments are as they were written, and none that a witness knows is missing.

The chain in the footers (`storage.history.chain`) shows a segment that was changed, exchanged or
removed; a witness (`storage.history.witness`) shows that the end is missing, or that all of it was
written anew. Segments of earlier versions have no chain: the facts say how many. Plain code; only
segments on a local disk are read.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from audit.checks.verdict import Outcome
from audit.files import is_local
from audit.input.batch_view import View
from audit.input.events import gseq
from audit.input.gaps import HOLE, Boot, Gap
from storage.history.chain import Break, Piece, Place, follow
from storage.history.witness import Difference, Witness, compare

HEADS_MAX: Final = 256  # of a node, that the next run knows
NAMED_MAX: Final = 20  # files named in the facts


def check(view: View) -> list[Outcome]:
    """Return what the chain and the witnesses add to H1; each chained segment counts once."""
    pieces = view.pieces
    chained = follow(pieces, view.heads_before)
    witnesses = [_of_break(each) for each in chained.breaks if not _is_known(view, each)]
    unknown = len(chained.unproven)
    ahead: list[dict[str, object]] = []
    checked = chained.chained
    for witness in view.witnesses:
        found = differences(witness, view.boots, view.gaps, heads(view), pieces)
        checked += len(witness.marks)
        witnesses += [_of_witness(witness, each) for each in found if each.is_proven]
        ahead += [_of_witness(witness, each) for each in found if not each.is_proven]
    facts: dict[str, Any] = {
        "chained": chained.chained,
        "not_chained": len(chained.unchained),
        "not_chained_files": _names(chained.unchained),
        "not_read": sum(not is_local(segment.path) for segment in view.segments),
        "unproven_files": _names(chained.unproven),
        "witnesses": [witness.place for witness in view.witnesses],
        "witness_ahead": ahead,
    }
    most = view.settings.witnesses_max
    return [Outcome("H1", checked, len(witnesses), unknown, witnesses[:most], {"chain": facts})]


def heads(view: View) -> dict[str, dict[Place, str]]:
    """Return the heads of the newest segments of each node, for the next run."""
    found = {node: dict(known) for node, known in view.heads_before.items()}
    for piece in view.pieces:
        if piece.is_readable and piece.head:
            found.setdefault(piece.node, {})[piece.place] = piece.head
    return {node: dict(sorted(known.items())[-HEADS_MAX:]) for node, known in found.items()}


def differences(
    witness: Witness,
    boots: Sequence[Boot],
    gaps: Sequence[Gap],
    known: Mapping[str, Mapping[Place, str]],
    pieces: Sequence[Piece],
) -> list[Difference]:
    """Return what the history lacks of what a witness knows, or has otherwise.

    What the history itself says was deleted before its export is not missing.
    """
    node = witness.node
    spans = {boot.boot: (boot.first_seq, boot.last_seq) for boot in boots if boot.node == node}
    mine = [piece for piece in pieces if piece.node == node]
    told = [gap for gap in gaps if gap.kind == HOLE and gap.explained]
    return [
        each
        for each in compare(witness, spans, known.get(node, {}), mine)
        if not any(
            gap.touches(node, gseq(each.boot, each.from_seq), gseq(each.boot, each.to_seq))
            for gap in told
        )
    ]


def with_witnesses(
    document: dict[str, Any],
    witnesses: Sequence[Witness],
    boots: Sequence[Boot],
    gaps: Sequence[Gap],
    known: Mapping[str, Mapping[Place, str]],
) -> dict[str, Any]:
    """Return an earlier verdict with what witnesses say against all that was read until then."""
    found = [
        _of_witness(witness, each)
        for witness in witnesses
        for each in differences(witness, boots, gaps, known, ())
        if each.is_proven
    ]
    if not found:
        return document
    h1 = document["invariants"]["H1"]
    changed = {
        "status": "violated",
        "violated": h1["violated"] + len(found),
        "witnesses": [*found, *h1["witnesses"]],
    }
    invariants = document["invariants"] | {"H1": h1 | changed}
    return document | {"status": "violated", "invariants": invariants}


def _is_known(view: View, found: Break) -> bool:
    """Return whether H1 accuses somebody of the missing rows before this segment anyway."""
    if not found.is_order:
        return False
    piece = found.piece
    earlier = [each for each in view.heads_before.get(piece.node, {}) if each < piece.place]
    if found.before is not None:
        earlier.append(found.before.place)
    boot, last_seq = max(earlier)
    start, end = gseq(boot, last_seq + 1), gseq(piece.boot, piece.first_seq) - 1
    return any(
        gap.kind == HOLE and not gap.explained and gap.touches(piece.node, start, end)
        for gap in view.gaps
    )


def _of_break(found: Break) -> dict[str, object]:
    piece, before = found.piece, found.before
    files = [] if before is None else [before.name]
    return {
        "what": f"a segment is not as it was written: {found.what}",
        "node": piece.node,
        "from": {"boot": piece.boot, "seq": piece.first_seq},
        "to": {"boot": piece.boot, "seq": piece.last_seq},
        "files": [*files, piece.name],
    }


def _of_witness(witness: Witness, found: Difference) -> dict[str, object]:
    return {
        "what": f"the witness knows these events: {found.what}",
        "node": witness.node,
        "from": {"boot": found.boot, "seq": found.from_seq},
        "to": {"boot": found.boot, "seq": found.to_seq},
        "witness": witness.place,
    }


def _names(pieces: Sequence[Piece]) -> list[str]:
    return [piece.name for piece in pieces[:NAMED_MAX]]

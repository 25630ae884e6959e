"""H1: what the chain of segments and a witness say; without Spark."""

from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from pyspark.sql import SparkSession

from audit.checks.chain_check import HEADS_MAX, check, differences, heads, with_witnesses
from audit.checks.verdict import Outcome
from audit.input.batch_view import Settings, View
from audit.input.gaps import HOLE, Boot, Gap
from audit.input.segments import Segment, find
from storage.history.segments import examine
from storage.history.witness import Mark, Witness
from tests.storage.history.forging import edit, in_order, rechain, unchain
from tests.storage.history.test_chain import NODE, drop, history, lie, name


def gseq(boot: int, seq: int) -> int:
    return boot << 40 | seq


def boots_of(directory: Path) -> list[Boot]:
    """Return the boots that the rows show."""
    spans: dict[int, list[int]] = {}
    for segment in in_order(directory, NODE):
        spans.setdefault(segment.boot, []).extend((segment.first_seq, segment.last_seq))
    return [
        Boot(NODE, boot, "full", "full", 1, min(seqs), max(seqs), 0, 0)
        for boot, seqs in spans.items()
    ]


def view_of(directory: Path, **facts: Any) -> View:
    """Return a view of the segments of a directory; no row is read by Spark."""
    none = cast(Any, None)
    found = find(cast(SparkSession, none), str(directory))
    boots = facts.pop("boots", boots_of(directory))
    return View(none, none, none, none, boots=boots, segments=found,
                **({"gaps": (), "settings": Settings()} | facts))  # fmt: skip


def outcome_of(view: View) -> Outcome:
    (outcome,) = check(view)
    assert outcome.invariant == "H1"
    return outcome


def chain_of(outcome: Outcome) -> dict[str, Any]:
    return cast(dict[str, Any], outcome.facts["chain"])


def test_an_honest_chain_is_checked_and_accuses_nobody(tmp_path: Path) -> None:
    history(tmp_path)
    outcome = outcome_of(view_of(tmp_path))
    assert (outcome.status, outcome.checked, outcome.unknown) == ("ok", 7, 0)
    assert chain_of(outcome) == {
        "chained": 7,
        "not_chained": 0,
        "not_chained_files": [],
        "not_read": 0,
        "unproven_files": [],
        "witnesses": [],
        "witness_ahead": [],
    }


def test_a_changed_segment_is_named_with_node_rows_and_file(tmp_path: Path) -> None:
    edit(history(tmp_path)[1], lie, digest="right")
    outcome = outcome_of(view_of(tmp_path))
    assert outcome.status == "violated"
    assert outcome.witnesses == [
        {
            "what": "a segment is not as it was written: its footer was changed",
            "node": NODE,
            "from": {"boot": 1, "seq": 4},
            "to": {"boot": 1, "seq": 6},
            "files": [name(1, 4, 6)],
        }
    ]


def test_a_removed_boot_is_named_by_those_around_it_once(tmp_path: Path) -> None:
    segments = history(tmp_path)
    for segment in segments[3:5]:
        segment.path.unlink()
    (witness,) = outcome_of(view_of(tmp_path)).witnesses
    assert witness["files"] == [name(1, 7, 9), name(3, 1, 3)]
    hole = Gap(NODE, gseq(1, 10), gseq(3, 0), "rows are missing", HOLE, explained=False)
    assert outcome_of(view_of(tmp_path, gaps=(hole,))).status == "ok"  # H1 has that hole
    told = replace(hole, explained=True)
    assert outcome_of(view_of(tmp_path, gaps=(told,))).status == "violated"


def test_segments_of_earlier_versions_are_told_of_and_ok(tmp_path: Path) -> None:
    for segment in history(tmp_path):
        unchain(segment)
    outcome = outcome_of(view_of(tmp_path))
    assert (outcome.status, outcome.checked) == ("ok", 0)
    facts = chain_of(outcome)
    assert (facts["chained"], facts["not_chained"]) == (0, 7)
    assert facts["not_chained_files"][0] == name(1, 1, 3)


def test_behind_a_damaged_segment_it_cannot_be_told(tmp_path: Path) -> None:
    damaged = history(tmp_path)[1]
    damaged.path.write_bytes(b"")
    outcome = outcome_of(view_of(tmp_path))
    assert (outcome.status, outcome.unknown) == ("unknown", 1)
    assert chain_of(outcome)["unproven_files"] == [name(1, 7, 9)]


def test_segments_in_an_object_store_are_not_read(tmp_path: Path) -> None:
    elsewhere = Segment(f"s3a://bucket/{name(1, 1, 3)}", NODE, 1, 1, 3, "")
    outcome = outcome_of(replace(view_of(tmp_path), segments=[elsewhere]))
    assert (outcome.status, outcome.checked, chain_of(outcome)["not_read"]) == ("ok", 0, 1)


# From run to run


def test_the_next_run_knows_the_newest_heads(tmp_path: Path) -> None:
    segments = history(tmp_path)
    first = view_of(tmp_path)
    known = heads(replace(first, segments=first.segments[:3]))
    ends = [(segment.boot, segment.last_seq) for segment in segments[:3]]
    heads_there = [examine(segment)[1].head for segment in segments[:3]]
    assert known == {NODE: dict(zip(ends, heads_there, strict=True))}
    later = replace(first, segments=first.segments[3:], heads_before=known)
    assert outcome_of(later).status == "ok"
    assert len(heads(later)[NODE]) == 7
    other = {NODE: {place: "another" for place in known[NODE]}}
    (witness,) = outcome_of(replace(later, heads_before=other)).witnesses
    assert witness["from"] == {"boot": 2, "seq": 1}
    hole = Gap(NODE, gseq(1, 10), gseq(2, 0), "rows are missing", HOLE, explained=False)
    assert outcome_of(replace(later, heads_before=other, gaps=(hole,))).status == "ok"
    many = {NODE: {(0, seq): "old" for seq in range(HEADS_MAX)}}
    kept = heads(replace(later, heads_before=many))[NODE]
    assert len(kept) == HEADS_MAX
    assert list(kept)[-1] == (3, 6)


# Witnesses


def test_a_witness_names_what_the_chain_cannot(tmp_path: Path) -> None:
    segments = history(tmp_path)
    marks = (Mark(1, 9, 9, examine(segments[2])[1].head), Mark(3, 6, 6, "head"), Mark(4, 5, 2, "x"))
    witness = Witness("/other/witness", NODE, marks)
    edit(segments[1], lie)
    rechain(tmp_path)
    outcome = outcome_of(view_of(tmp_path, witnesses=(witness,)))
    assert (outcome.status, outcome.checked) == ("violated", 10)
    assert [(each["from"], each["to"]) for each in outcome.witnesses] == [
        ({"boot": 1, "seq": 7}, {"boot": 1, "seq": 9}),
        ({"boot": 3, "seq": 4}, {"boot": 3, "seq": 6}),
        ({"boot": 4, "seq": 1}, {"boot": 4, "seq": 2}),
    ]
    assert outcome.witnesses[2] == {
        "what": "the witness knows these events: they were exported, and the history does not have "
        "them",
        "node": NODE,
        "from": {"boot": 4, "seq": 1},
        "to": {"boot": 4, "seq": 2},
        "witness": "/other/witness",
    }
    (ahead,) = chain_of(outcome)["witness_ahead"]
    assert (ahead["from"], ahead["to"]) == ({"boot": 4, "seq": 3}, {"boot": 4, "seq": 5})
    assert chain_of(outcome)["witnesses"] == ["/other/witness"]


def test_what_the_history_says_was_deleted_is_not_missing(tmp_path: Path) -> None:
    history(tmp_path)
    witness = Witness("w", NODE, (Mark(1, 20),))
    boots = boots_of(tmp_path)
    (missing,) = differences(witness, boots, (), {}, ())
    assert (missing.from_seq, missing.to_seq) == (10, 20)
    gap = Gap(NODE, gseq(1, 10), gseq(1, 25), "outbox_trimmed", HOLE)
    assert differences(witness, boots, (gap,), {}, ()) == []
    other = replace(gap, explained=False)
    assert differences(witness, boots, (other,), {}, ()) == [missing]


def test_an_earlier_verdict_is_compared_where_nothing_is_new(tmp_path: Path) -> None:
    history(tmp_path)
    boots = boots_of(tmp_path)
    h1 = {"status": "ok", "violated": 0, "witnesses": [], "checked": 7}
    document = {"status": "ok", "invariants": {"H1": h1, "L1": {"status": "ok"}}}
    known = {NODE: {(3, 6): "head"}}
    good = Witness("w", NODE, (Mark(3, 99, 6, "head"),))
    assert with_witnesses(document, [good], boots, (), known) == document
    bad = Witness("w", NODE, (Mark(3, 99, 8, "head"), Mark(4, 7, 7, "head")))
    told = with_witnesses(document, [good, bad], boots, (), known)
    assert (told["status"], told["invariants"]["H1"]["violated"]) == ("violated", 2)
    assert [each["to"]["seq"] for each in told["invariants"]["H1"]["witnesses"]] == [8, 7]
    assert document["status"] == "ok"


@pytest.mark.parametrize("attack", [lie, drop])
def test_a_forger_who_has_all_of_it_passes_without_a_witness(attack: Any, tmp_path: Path) -> None:
    """That is what the witness is for."""
    edit(history(tmp_path, {1: 1})[0], attack)
    rechain(tmp_path)
    assert outcome_of(view_of(tmp_path)).status == "ok"

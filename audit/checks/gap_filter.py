"""From findings to an Outcome: compare them with the gaps, count them, and fetch some witnesses.

Findings are a DataFrame with at least `node`, `from_gseq`, `to_gseq` (all the evidence lies between
them), `what` (text), `ts` and `session`; other columns are copied into the witnesses.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from audit.checks.verdict import Outcome
from audit.input.batch_view import View
from audit.input.events import boot_of, seq_of
from audit.pace import is_small


@dataclass
class Tally:
    """The number of findings, and the first of those that are violations."""

    violated: int = 0
    unknown: int = 0
    witnesses: list[dict[str, object]] = field(default_factory=list)

    def with_(self, other: "Tally") -> "Tally":
        """Return the findings of both."""
        return Tally(
            self.violated + other.violated,
            self.unknown + other.unknown,
            self.witnesses + other.witnesses,
        )

    def outcome(
        self, view: View, invariant: str, checked: int, *, facts: dict[str, object] | None = None
    ) -> Outcome:
        """Return the Outcome of an invariant with `checked` cases that could be decided."""
        first = self.witnesses[: view.settings.witnesses_max]
        return Outcome(invariant, checked, self.violated, self.unknown, first, facts or {})


def against_gaps(view: View, findings: DataFrame) -> DataFrame:
    """Add `unknown` to the findings: true if their evidence touches a gap.

    So are those outside of what the view judges.
    """
    return findings.withColumn("unknown", _is_unknown(view))


def _is_unknown(view: View) -> Column:
    place = F.col("from_gseq"), F.col("to_gseq")
    unknown = F.coalesce(view.touches_gap(F.col("node"), *place), F.lit(True))
    if view.judged is not None:
        unknown |= ~view.is_judged(F.col("node"), F.col("session"), *place)
    return unknown


def weigh(
    view: View, cases: DataFrame, columns: Sequence[str], sums: Mapping[str, Column]
) -> tuple[dict[str, int], Tally]:
    """Return sums over all cases, and the Tally of those that are wrong: in one Spark job.

    A case is wrong where `what` is not null; `columns` are those of its witness. Another job
    fetches witnesses if there are any.
    """
    wrong, unknown = F.col("what").isNotNull(), _is_unknown(view)
    counted = cases.agg(
        F.count_if(wrong & ~unknown).alias("violated"),
        F.count_if(wrong & unknown).alias("unknown"),
        *(F.coalesce(F.sum(value.cast("long")), F.lit(0)).alias(n) for n, value in sums.items()),
    )
    row = counted.collect()[0].asDict()
    found = Tally(row.pop("violated"), row.pop("unknown"))
    if found.violated:
        marked = against_gaps(view, cases.where(wrong).select(*columns))
        _name(view, marked.withColumn("invariant", F.lit("")), {"": found}, [""])
    return row, found


def tallies(
    view: View,
    findings: DataFrame,
    invariants: Iterable[str],
    counts: Iterable[tuple[str, bool, int]] | None = None,
) -> dict[str, Tally]:
    """Return a Tally per invariant of findings that have `invariant` and `unknown`.

    Two Spark jobs at most: one counts, unless `counts` (invariant, unknown, number) are given, and
    one fetches the witnesses if there are any.
    """
    result = {invariant: Tally() for invariant in invariants}
    if counts is None:
        rows = findings.groupBy("invariant", "unknown").count().collect()
        counts = [(row.invariant, row.unknown, row["count"]) for row in rows]
    for invariant, is_unknown, number in counts:
        tally = result[invariant]
        if is_unknown:
            tally.unknown += number
        else:
            tally.violated += number
    guilty = [invariant for invariant, tally in result.items() if tally.violated]
    if guilty:
        _name(view, findings, result, guilty)
    return result


def tally(view: View, findings: DataFrame) -> Tally:
    """Return the Tally of findings of one invariant, which need no column `invariant`."""
    return tally_marked(view, against_gaps(view, findings))


def tally_marked(view: View, findings: DataFrame) -> Tally:
    """Return the Tally of findings of one invariant that already have `unknown`.

    The findings are cached between the two jobs: computing them may be expensive, and they are few.
    In a small run it is not, and mostly there are none.
    """
    marked = findings.withColumn("invariant", F.lit(""))
    if is_small(view.spark):
        return tallies(view, marked, [""])[""]
    marked = marked.persist()
    try:
        return tallies(view, marked, [""])[""]
    finally:
        marked.unpersist()


def _name(view: View, findings: DataFrame, result: dict[str, Tally], guilty: Sequence[str]) -> None:
    """Add the first violations of the guilty invariants to their tallies: one Spark job for all."""
    first = F.row_number().over(Window.partitionBy("invariant").orderBy("node", "to_gseq"))
    accused = findings.where(~F.col("unknown") & F.col("invariant").isin(*guilty))
    named = accused.withColumn("place", first).where(F.col("place") <= view.settings.witnesses_max)
    rows = sorted((row.asDict() for row in named.collect()), key=lambda row: row.pop("place"))
    clients = client_ids(view, {row["session"] for row in rows if row.get("session") is not None})
    for row in rows:
        client = clients.get((row["node"], row.get("session")))
        result[row["invariant"]].witnesses.append(_witness(row, client))


def client_ids(view: View, sessions: Iterable[int]) -> dict[tuple[str, int | None], str]:
    """Return the client ids of some sessions, by (node, session)."""
    wanted = sorted(sessions)
    if not wanted:
        return {}
    rows = (
        view.sessions.where(F.col("session").isin(wanted) & F.col("client_id").isNotNull())
        .groupBy("node", "session")
        .agg(F.max("client_id").alias("client_id"))
        .collect()
    )
    return {(row.node, row.session): row.client_id for row in rows}


def _witness(row: dict[str, object], client_id: str | None) -> dict[str, object]:
    """Return a finding as a witness: places in readable form, empty fields left out."""
    witness: dict[str, object] = {"what": row["what"], "node": row["node"]}
    if client_id is not None:
        witness["client_id"] = client_id
    for name, value in row.items():
        if name in ("what", "node", "invariant", "unknown") or value is None:
            continue
        if name in ("from_gseq", "to_gseq"):
            assert isinstance(value, int)
            witness[name[:-5]] = {"boot": boot_of(value), "seq": seq_of(value)}
        else:
            witness[name] = value.isoformat() if isinstance(value, datetime) else value
    return witness

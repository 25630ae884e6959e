"""The audit against the generator and the oracle: the same faults, and identical numbers."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import duckdb
import pytest
from pyspark.sql import SparkSession

from audit.checks.verdict import INVARIANTS
from audit.generate.history import expected, generate, kinds_of
from audit.generate.scenes import Injection
from audit.run import EXIT_CODES, run
from storage.history.events import REASONS
from tests.audit.generate.conftest import Made
from tests.audit.generate.oracle import Oracle

ROOT = Path(__file__).parents[3]
EVENTS_LARGE = 10_000_000
EACH = pytest.mark.parametrize("name", ["innocent", "guilty"])


@dataclass
class Audited:
    """A history, what the audit said of it, and where it wrote that."""

    made: Made
    out: Path
    document: dict[str, Any]

    def table(self, name: str, columns: str) -> list[tuple[Any, ...]]:
        """Return rows of a table of the audit."""
        return duckdb.sql(
            f"SELECT {columns} FROM read_parquet('{self.out}/tables/{name}/*/*.parquet')"
        ).fetchall()

    @cached_property
    def oracle(self) -> Oracle:
        """The second opinion, on what the audit could read: not the segment whose footer lies."""
        lying = {
            (one.boot, one.seq)
            for one in self.made.manifest.injections
            if one.kind == "footer_lies"
        }
        names = {
            path.name
            for path in self.made.directory.glob("date=*/hour=*/beta-*.parquet")
            if tuple(map(int, path.stem.split("-")[1:3])) in lying
        }
        assert len(names) == len(lying)
        return Oracle(self.made.directory, without=names)

    def witnesses(self, invariant: str) -> list[dict[str, Any]]:
        """Return the witnesses of an invariant."""
        found: list[dict[str, Any]] = self.document["invariants"][invariant]["witnesses"]
        return found


def audited(spark: SparkSession, made: Made, out: Path) -> Audited:
    """Audit a history."""
    verdict = run(spark, str(made.directory), str(out), progress=lambda line: None)
    return Audited(made, out, verdict.document)


@pytest.fixture(scope="module")
def innocent(spark: SparkSession, clean: Made, tmp_path_factory: pytest.TempPathFactory) -> Audited:
    """The true history, audited."""
    return audited(spark, clean, tmp_path_factory.mktemp("innocent"))


@pytest.fixture(scope="module")
def guilty(spark: SparkSession, faulty: Made, tmp_path_factory: pytest.TempPathFactory) -> Audited:
    """The history with every fault, audited."""
    return audited(spark, faulty, tmp_path_factory.mktemp("guilty"))


def judged(document: dict[str, Any]) -> Iterator[str]:
    """Yield the invariants that the audit judges."""
    yield from (invariant for invariant in INVARIANTS if invariant in document["invariants"])


def is_of(witness: dict[str, Any], injection: Injection) -> bool:
    """Tell whether a witness names what was done."""
    place = witness.get("from") or {}
    named = {
        "node": (witness.get("node"), injection.node),
        "session": (witness.get("session"), injection.session),
        "msg": (witness.get("msg"), injection.msg),
        "topic": (witness.get("topic"), injection.topic),
    }
    if injection.invariant == "H1":
        boot = witness.get("boot", place.get("boot"))
        named |= {"boot": (boot, injection.boot), "seq": (place.get("seq"), injection.seq)}
    if injection.invariant == "L3":
        del named["session"]  # one of those that hold the stream is named
    return all(one is None or two is None or one == two for one, two in named.values())


def check_witnesses(case: Audited) -> None:
    """Check that every fault has its witness, and every witness its fault."""
    wanted = expected(case.made.manifest)
    for invariant in judged(case.document):
        witnesses = case.witnesses(invariant)
        # These brokers have no stores: B1 has histories of its own (`tests.audit.checks.mirrored`).
        planted = wanted.get(invariant, [])
        for injection in planted:
            found = [one for one in witnesses if is_of(one, injection)]
            assert found, f"not found: {injection}"
        tolerated = {
            (one.node, session)
            for one in case.made.manifest.injections
            if invariant in one.tolerated
            for session in (one.session, one.other_session)
        }
        for witness in witnesses:
            explained = any(is_of(witness, injection) for injection in planted)
            key = witness.get("node"), witness.get("session")
            assert explained or key in tolerated, f"{invariant}: accused falsely: {witness}"


def check_deliveries(case: Audited) -> None:
    """Check that what became of every delivery is the same for audit and oracle."""
    (counted,) = case.table("deliveries", "count(*)")
    assert counted[0] > 1000
    assert case.oracle.disputed(f"{case.out}/tables/deliveries/*/*.parquet") == []


def test_a_true_history_is_not_accused(innocent: Audited) -> None:
    for invariant in judged(innocent.document):
        found = innocent.document["invariants"][invariant]
        assert found["violated"] == 0, (invariant, found["witnesses"])
        assert found["unknown"] == 0, invariant
    assert innocent.document["status"] == "ok"


def test_every_fault_is_found_and_nobody_accused_falsely(guilty: Audited) -> None:
    check_witnesses(guilty)
    assert guilty.document["status"] == "violated"


def test_what_gaps_hide_is_unknown(guilty: Audited) -> None:
    found = guilty.document["invariants"]
    assert found["H1"]["unknown"] >= 1
    if "L2" in found:
        assert found["L2"]["unknown"] > 10


@pytest.mark.usefixtures("spark")
@EACH
def test_facts_are_those_of_the_oracle(name: str, request: pytest.FixtureRequest) -> None:
    case: Audited = request.getfixturevalue(name)
    ours, theirs = case.oracle.facts(), case.document["facts"]
    assert theirs["accepted"] == ours["msg_accepted"]
    assert theirs["acknowledged"] == ours["pub_acked"]
    assert theirs["delivered"] == ours["msg_delivered"] + ours["redelivered"]
    assert theirs["redelivered"] == ours["redelivered"]
    assert theirs["acked"] == ours["msg_acked"]
    assert theirs["completed"] == ours["msg_completed"]
    assert theirs["expired"] == ours["msg_expired"]
    assert theirs["events"]["msg_persisted"] == ours["msg_persisted"]
    assert theirs["dropped"] == {
        REASONS[int(fact.removeprefix("dropped "))]: count
        for fact, count in ours.items()
        if fact.startswith("dropped ")
    }


@pytest.mark.usefixtures("spark")
@EACH
def test_deliveries_are_those_of_the_oracle(name: str, request: pytest.FixtureRequest) -> None:
    check_deliveries(request.getfixturevalue(name))


def test_books_are_those_of_the_oracle(innocent: Audited) -> None:
    rows = innocent.table(
        "books_minute",
        "source, minute, tenant, stage, count, total_bytes, check1, check2",
    )
    for source, ours in (
        ("broker", innocent.oracle.books_told()),
        ("events", innocent.oracle.books_counted()),
    ):
        summed: dict[tuple[Any, ...], list[int]] = {}
        for _, minute, tenant, stage, *numbers in ours:
            total = summed.setdefault((minute, tenant, stage), [0, 0, 0, 0])
            for index, number in enumerate(numbers):
                total[index] = (total[index] + number) % (1 << 61)
        theirs = {row[1:4]: list(row[4:]) for row in rows if row[0] == source}
        assert theirs.keys() == summed.keys()
        for key, numbers in theirs.items():
            if numbers[1] is None:  # the events of this stage do not know sizes
                numbers[1] = summed[key][1]
            assert numbers == summed[key], (source, key)


@pytest.mark.slow
def test_ten_million_events_with_every_fault(tmp_path: Path) -> None:
    """As a user has it audited: by the command, with 2 GB for the driver."""
    directory, out = tmp_path / "history", tmp_path / "out"
    manifest = generate(directory, EVENTS_LARGE, seed=1, kinds=kinds_of("all"), times=5)
    assert 9_500_000 < manifest.events < 10_500_000
    ran = subprocess.run(
        [*(sys.executable, "-m", "broker", "audit", "run", "--memory", "2g"),
         *("--history", str(directory), "--out", str(out))],
        env={**os.environ, "PYTHONPATH": str(ROOT)}, cwd=tmp_path,
        capture_output=True, text=True, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert ran.returncode == EXIT_CODES["violated"], ran.stderr
    document = json.loads((out / "verdict.json").read_text())
    case = Audited(Made(directory, manifest), out, document)
    check_witnesses(case)
    check_deliveries(case)

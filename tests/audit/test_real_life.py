"""A history of real clients and a real broker: the audit and the oracle of the tests agree on it.

The generator, which both know well, may share their mistakes. Here nothing went wrong, over several
kill -9, so neither may accuse anybody. Then two lies are written into a copy, and both name them.
"""

import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from audit.run import Verdict, run
from storage.history.events import CHECK_BITS, UNSTORED
from tests.audit.generate.oracle import ACCUSATIONS, Oracle
from tests.audit.real_broker import recording, whole_history
from tests.audit.real_life import KILLS, live
from tests.storage.history.forging import rechain

pytestmark = [
    pytest.mark.ci,
    pytest.mark.skipif(
        shutil.which("mosquitto_sub") is None, reason="Debian's mosquitto-clients is not installed"
    ),
]

Change = dict[str, object]
FORGOTTEN = UNSTORED | 1 << 60  # a message of no broker


@pytest.fixture(scope="module")
def lived(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The history, at `full`, of a broker to which everything happened."""
    directory = tmp_path_factory.mktemp("lived")
    broker = recording(directory / "broker", node="lived")
    try:
        live(broker)
        return whole_history(broker, directory / "whole")
    finally:
        broker.close()


def audited(spark: SparkSession, history: Path, out: Path) -> Verdict:
    """Audit a history."""
    return run(spark, str(history), str(out), progress=lambda line: None)


def accused_by_audit(verdict: Verdict) -> dict[str, set[tuple[object, ...]]]:
    """Return (node, session, msg) of the witnesses, by invariant."""
    return {
        name: {
            (witness.get("node"), witness.get("session"), witness.get("msg"))
            for witness in each["witnesses"]
        }
        for name, each in verdict.document["invariants"].items()
        if each["status"] != "ok"
    }


def accused_by_oracle(oracle: Oracle) -> dict[str, set[tuple[Any, ...]]]:
    """Return whom the oracle accuses, by invariant."""
    accused = {name: oracle.accuse(name) for name in ACCUSATIONS}
    return {name: found for name, found in accused.items() if found}


def summed(rows: Iterable[tuple[Any, ...]]) -> dict[tuple[Any, ...], list[int]]:
    """Return the books by (minute, tenant, stage)."""
    found: dict[tuple[Any, ...], list[int]] = {}
    for _, minute, tenant, stage, *numbers in rows:
        sums = found.setdefault((minute, tenant, stage), [0] * len(numbers))
        found[minute, tenant, stage] = [
            (old + (new or 0)) % (1 << CHECK_BITS) for old, new in zip(sums, numbers, strict=True)
        ]
    return found


def rewrite(history: Path, changes: dict[tuple[int, int], Change]) -> None:
    """Change columns of the rows (boot, seq) in their segments, and write the chain anew.

    So the rows alone have to show the lie.
    """
    left = dict(changes)
    for path in history.rglob("*.parquet"):
        table = pq.read_table(path, partitioning=None)
        rows = table.to_pylist()
        mine = [row for row in rows if (row["boot"], row["seq"]) in changes]
        if mine:
            for row in mine:
                row.update(left.pop((row["boot"], row["seq"])))
            pq.write_table(pa.Table.from_pylist(rows, table.schema), path)
    assert not left
    rechain(history)


def swap_two_deliveries(oracle: Oracle) -> tuple[dict[tuple[int, int], Change], set[Any]]:
    """Return a lie: two messages in flight at once, each sent under the other's number."""
    sql = """WITH d AS (SELECT s.*, a.pid AS acked_pid, a.g AS acked_g, a.boot AS acked_boot
            FROM sent AS s JOIN h AS a USING (node, session, msg)
            WHERE a.ev = 'msg_acked' AND s.qos = 1 AND s.attempt = 1 AND s.share IS NULL
                AND s.msg < 4611686018427387904 AND a.boot = s.boot AND s.g0 IS NULL
                AND (SELECT count(*) FROM h AS o WHERE o.session = s.session AND o.msg = s.msg) = 2)
        SELECT one.node, one.boot, one.g, one.session, one.msg, other.g, other.msg
        FROM d AS one JOIN d AS other ON one.session = other.session AND one.boot = other.boot
            AND one.g < other.g AND other.g < one.acked_g AND one.pid <> other.pid
        JOIN msgs AS m ON m.msg = other.msg JOIN msgs AS n ON n.msg = one.msg
        WHERE m.g < one.g AND m.topic <> n.topic ORDER BY one.g LIMIT 1"""
    ((node, boot, first, session, one, second, other),) = oracle.rows(sql)
    low = (1 << 40) - 1
    lie: dict[tuple[int, int], Change] = {
        (boot, first & low): {"msg": other},
        (boot, second & low): {"msg": one},
    }
    return lie, {(node, session, one), (node, session, other)}


def forget_an_identifier(oracle: Oracle) -> tuple[dict[tuple[int, int], Change], set[Any]]:
    """Return a lie: what was sent again after a kill was accepted as a new message."""
    sql = """SELECT node, boot, seq, session FROM h WHERE ev = 'pub_dup_received'
        AND client_id = 'opener' ORDER BY g LIMIT 1"""
    ((node, boot, seq, session),) = oracle.rows(sql)
    assert boot > 1
    accepted = {"ev": "msg_accepted", "msg": FORGOTTEN, "pub": session, "topic": "open/x"}
    lie: Change = {**accepted, "dup": True, "retain": False, "bytes": 0}
    return {(boot, seq): lie}, {(node, session, FORGOTTEN)}


def test_nobody_is_accused_by_the_audit_or_by_the_oracle(
    lived: Path, spark: SparkSession, tmp_path: Path
) -> None:
    oracle = Oracle(lived)
    assert oracle.rows("SELECT count(*), count_if(clean) FROM boots") == [(KILLS + 1, 1)]
    sent_again = "SELECT count(*) FROM h WHERE ev = 'msg_accepted' AND pub_qos = 2 AND dup"
    assert oracle.rows(sent_again)[0][0] >= KILLS, "no PUBREL was forgotten with its PUBCOMP"
    assert accused_by_oracle(oracle) == {}
    verdict = audited(spark, lived, tmp_path / "out")
    assert accused_by_audit(verdict) == {}
    assert (verdict.status, verdict.exit_code) == ("ok", 0)
    assert oracle.disputed(f"{tmp_path}/out/tables/deliveries/*/*.parquet") == []


def test_the_books_are_those_of_the_events_over_every_kill(lived: Path) -> None:
    oracle = Oracle(lived)
    told = summed(row for row in oracle.books_told() if row[3] != "unanswered")
    assert told == summed(oracle.books_counted())
    assert {stage for _, _, stage in told} > {"acked", "completed", "redelivered", "ack_owed"}


def test_two_lies_are_named_by_both(lived: Path, spark: SparkSession, tmp_path: Path) -> None:
    history = tmp_path / "history"
    shutil.copytree(lived, history)
    honest = Oracle(lived)
    swapped, confused = swap_two_deliveries(honest)
    forgotten, doubled = forget_an_identifier(honest)
    rewrite(history, swapped | forgotten)
    wanted = {"D1": doubled, "D3": confused}
    assert accused_by_oracle(Oracle(history)) == wanted
    assert accused_by_audit(audited(spark, history, tmp_path / "out")) == wanted

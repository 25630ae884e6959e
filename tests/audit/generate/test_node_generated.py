"""Gaps and crashes of a node are told as a broker tells them."""

from audit.generate.node import CRASH, RUNNING, Node, Outline
from audit.generate.state import SECOND, Row
from tests.audit.generate.conftest import Made


def rows_of(seed: int) -> list[Row]:
    node = Node(Outline("n", seed, 2000, 1000, 60 * SECOND, 300, [CRASH, RUNNING]))
    node.play()
    return [row for boot in node.broker.boots for row in boot.rows]


def test_the_same_seed_plays_the_same_history() -> None:
    assert rows_of(1) == rows_of(1)
    assert rows_of(1) != rows_of(2)


def test_a_gap_of_messages_says_how_many_rows_it_suppressed(faulty: Made) -> None:
    (began, ended) = faulty.oracle.rows(
        """SELECT reason, detail, g, count FROM h
        WHERE ev = 'history_gap' AND detail IS NOT NULL AND reason <> 1051 ORDER BY g"""
    )
    assert (began[:2], ended[:2]) == ((1053, "books"), (1050, "full"))
    assert ended[3] > 100
    inside = faulty.oracle.rows(
        f"""SELECT count(*) FILTER (ev LIKE 'msg%'), count(*) FROM h
        WHERE node = 'beta' AND g > {began[2]} AND g < {ended[2]}"""
    )
    assert inside[0][0] == 0
    assert inside[0][1] > 0


def test_rows_thrown_away_leave_a_hole_of_their_number(faulty: Made) -> None:
    (row,) = faulty.oracle.rows(
        "SELECT boot, seq, count FROM h WHERE ev = 'history_gap' AND reason = 1051"
    )
    boot, seq, count = row
    (before,) = faulty.oracle.rows(
        f"""SELECT max(t.seq) FROM h AS t SEMI JOIN h AS u ON u.node = t.node AND u.boot = t.boot
            AND u.seq = t.seq + {count} + 1
        WHERE t.node = 'beta' AND t.boot = {boot} AND t.seq < {seq}
            AND NOT EXISTS (FROM h AS v WHERE v.node = 'beta' AND v.boot = {boot}
                AND v.seq = t.seq + 1)"""
    )
    assert count > 100
    assert before[0] is not None


def test_the_disk_forgot_what_the_history_knows(faulty: Made) -> None:
    (row,) = faulty.oracle.rows(
        "SELECT node, boot, last_seq, claimed FROM boots WHERE claimed < last_seq"
    )
    assert row[0] == "gamma"
    forgotten = {ev for (ev,) in faulty.oracle.rows("SELECT DISTINCT ev FROM forgotten")}
    assert {"msg_persisted", "pub_acked"} <= forgotten


def test_a_crash_is_admitted_once_per_session_that_was_connected(clean: Made) -> None:
    twice = clean.oracle.rows(
        """SELECT node, boot, session FROM life WHERE reason = 1002
        GROUP BY ALL HAVING count(*) > 1"""
    )
    (admitted,) = clean.oracle.rows("SELECT count(*) FROM life WHERE reason = 1002")
    assert twice == []
    assert admitted[0] > 20

"""Rows get their numbers and times in one order."""

from tests.audit.generate.conftest import Made


def test_time_never_goes_back_within_a_boot(clean: Made) -> None:
    back = clean.oracle.rows(
        """SELECT * FROM (SELECT us, lag(us) OVER (PARTITION BY node, boot ORDER BY seq) AS us0
            FROM h) WHERE us < us0"""
    )
    assert back == []


def test_sequence_numbers_have_no_holes(clean: Made) -> None:
    for rows, first, last in clean.oracle.rows(
        "SELECT count(*), min(seq), max(seq) FROM h GROUP BY node, boot"
    ):
        assert (first, last) == (1, rows)


def test_boots_chain(clean: Made) -> None:
    chains = clean.oracle.rows("SELECT last_seq, claimed FROM boots WHERE claimed IS NOT NULL")
    assert len(chains) == 4
    assert all(last == claimed for last, claimed in chains)
    first = clean.oracle.rows("SELECT ev, count FROM h WHERE seq = 1 AND boot = 1")
    assert first == [("boot", 0)] * 2


def test_offsets_have_no_holes_and_rise(clean: Made) -> None:
    for rows, first, last, order in clean.oracle.rows(
        """SELECT count(*), min(msg), max(msg), bool_and(msg = n) FROM (
            SELECT node, msg, row_number() OVER (PARTITION BY node ORDER BY g) AS n
            FROM h WHERE ev = 'msg_accepted' AND msg < 4611686018427387904) GROUP BY node"""
    ):
        assert (first, last, order) == (1, rows, True)


def test_numbers_of_nodes_overlap(clean: Made) -> None:
    """Nothing but the node tells two sessions of two nodes apart."""
    (both,) = clean.oracle.rows(
        """SELECT count(*) FROM (SELECT session FROM h WHERE session IS NOT NULL
            GROUP BY session HAVING count(DISTINCT node) = 2)"""
    )
    assert both[0] > 50


def test_every_unit_of_the_steady_traffic_publishes_to_its_own_topic(clean: Made) -> None:
    rows = clean.oracle.rows(
        r"""SELECT DISTINCT regexp_extract(client_id, '-(\d+)-unit$', 1),
            regexp_extract(topic, '/unit(\d+)/', 1)
            FROM h WHERE ev = 'msg_accepted' AND client_id LIKE '%-fleet-%-unit'"""
    )
    assert ("0", "0") in rows
    assert len(rows) > 4
    assert all(unit == topic for unit, topic in rows)

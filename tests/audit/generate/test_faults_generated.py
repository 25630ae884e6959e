"""Every fault of a message is told in the manifest with what is needed to find it."""

import pytest

from audit.generate.faults import LAST_BOOT, PLAYS
from tests.audit.generate.conftest import Made


def test_what_needs_the_last_boot_is_a_play() -> None:
    assert set(PLAYS) > LAST_BOOT


@pytest.mark.parametrize("invariant", ["L1", "L2", "L3", "D1", "D2", "D3", "F1", "O1", "E1"])
def test_faults_of_messages_name_message_and_session(faulty: Made, invariant: str) -> None:
    made = [one for one in faulty.manifest.injections if one.invariant == invariant]
    assert made
    for injection in made:
        found = faulty.oracle.rows(
            f"""SELECT count(*) FROM (SELECT * FROM h UNION ALL SELECT * FROM forgotten)
            WHERE node = '{injection.node}' AND msg = {injection.msg}"""
        )
        assert found[0][0] > 0, injection
        assert injection.session is not None


def test_the_row_of_an_injection_is_there(faulty: Made) -> None:
    for injection in faulty.manifest.injections:
        if injection.session is None or injection.seq is None:
            continue
        (row,) = faulty.oracle.rows(
            f"""SELECT session, pub, msg FROM (SELECT * FROM h UNION ALL SELECT * FROM forgotten)
            WHERE node = '{injection.node}' AND boot = {injection.boot}
                AND seq = {injection.seq}"""
        )
        assert injection.session in row or injection.msg in row, injection

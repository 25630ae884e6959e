"""Every fault of a session is told in the manifest with what is needed to find it."""

from audit.generate import session_faults
from tests.audit.generate.conftest import Made


def test_what_needs_a_crash_is_a_play() -> None:
    assert set(session_faults.PLAYS) > session_faults.CRASHES


def test_faults_of_sessions_name_session_and_client(faulty: Made) -> None:
    made = [
        one
        for one in faulty.manifest.injections
        if one.invariant in ("S1", "S2", "S3", "S4", "S5", "W1") and one.kind != "disk_shorter"
    ]
    assert len(made) == 2 * len(session_faults.PLAYS)
    for injection in made:
        found = faulty.oracle.rows(
            f"""SELECT DISTINCT client_id FROM life
            WHERE node = '{injection.node}' AND session = {injection.session}"""
        )
        assert found == [(injection.client_id,)], injection

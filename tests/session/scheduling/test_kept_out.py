"""Who is kept out, and for how long."""

from session.scheduling.kept_out import KeptOut


def test_a_client_is_kept_out_until_all_work_on_its_session_is_over() -> None:
    kept_out = KeptOut()
    for client_id in ("a", "a", "b"):
        kept_out.keep(client_id)
    assert "a" in kept_out and "b" in kept_out and "c" not in kept_out
    kept_out.release("a")
    assert "a" in kept_out
    kept_out.release("a")
    assert "a" not in kept_out and "b" in kept_out
    kept_out.release("b")
    assert not len(kept_out)

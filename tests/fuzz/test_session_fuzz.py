"""Does the engine keep its rules whatever two or three clients send, and would the fuzz notice?"""

import pytest

import session.engine
from session.packets.dispatch import Dispatcher
from tests.fuzz.box import Box
from tests.fuzz.command import PACKETS_PER_HISTORY, run_history, run_many
from tests.fuzz.watcher import Fault, View
from tests.simulation.mutants import MUTANTS

is_compiled = not (session.engine.__file__ or "").endswith(".py")


def test_twenty_thousand_packets_break_no_rule() -> None:
    _, sent, received, problems = run_many(0, 20_000)
    assert not problems, "\n".join(problems[:3])
    assert sent >= 20_000
    assert received > 5_000  # clients get far enough to be answered


@pytest.mark.slow
@pytest.mark.parametrize("part", range(8))
def test_two_million_packets_break_no_rule(part: int) -> None:
    _, sent, _, problems = run_many(10_000 + part * 1_000_000, 250_000)
    assert not problems, "\n".join(problems[:3])
    assert sent >= 250_000


def test_a_history_is_the_same_twice() -> None:
    boxes = [Box(5), Box(5)]
    for box in boxes:
        box.run(PACKETS_PER_HISTORY)
    one, two = boxes
    assert (one.now, one.packets, one.received) == (two.now, two.packets, two.received)
    assert one.published.messages == two.published.messages


def test_a_packet_limit_is_remembered_when_the_answer_to_an_older_connect_comes_late() -> None:
    """The takeover had the limit, and what was too large for it is gone by right."""
    view = View()
    view.limit_order = 7
    view.begin(6)
    assert view.limit_order == 7
    view.begin(8)
    assert view.limit_order == 0


@pytest.mark.skipif(is_compiled, reason="compiled code cannot be patched")
@pytest.mark.parametrize(
    "name",
    [
        "close_before_disconnect_is_durable",
        "crashed_connections_are_not_recovered",
        "dup_is_not_set",
        "in_flight_is_not_stored",
        "incoming_id_never_deleted",
        "packet_id_is_reused_in_flight",
        "receive_maximum_is_ignored_on_resume",
        "takeover_forgets_the_old_connection",
        "unsubscribed_filter_is_resurrected",
    ],
)
def test_a_planted_bug_is_found(name: str) -> None:
    with MUTANTS[name].planted(), pytest.raises((Fault, AssertionError, KeyError)):
        for seed in range(60):
            Box(seed).run(PACKETS_PER_HISTORY)


@pytest.mark.skipif(is_compiled, reason="compiled code cannot be patched")
def test_an_exception_of_the_engine_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: Dispatcher, connection: object, packet: object) -> None:
        raise KeyError("a bug")

    monkeypatch.setattr(Dispatcher, "dispatch", broken)
    _, _, problem = run_history(0)
    assert problem is not None
    assert "KeyError: 'a bug'" in problem
    assert "--seed 0" in problem

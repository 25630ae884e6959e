"""Anomalies: what is called odd, what is not, and why."""

from audit.analytics import oddities
from audit.analytics.oddities import Difference, Hour, Moves
from audit.report.summary import Backlog, Churn, Talker

HOUR = 3_600_000_000


def hours(*accepted: int) -> list[Hour]:
    """Return one tenant's hours."""
    return [Hour("t", i * HOUR, number) for i, number in enumerate(accepted)]


def test_one_wild_hour_is_named_with_its_numbers() -> None:
    (found,) = oddities.unusual_hours(hours(1000, 1010, 990, 1005, 995, 9000))
    assert found.at_us == 5 * HOUR
    assert "9,000 messages in this hour" in found.reason
    assert "z-score" in found.reason


def test_a_silent_hour_is_odd_too() -> None:
    (found,) = oddities.unusual_hours(hours(1000, 1010, 990, 1005, 995, 0))
    assert found.at_us == 5 * HOUR


def test_a_wild_value_cannot_hide_itself() -> None:
    scores = oddities.robust_z([10, 11, 9, 10, 10, 1000])
    assert max(scores) > 100
    assert all(abs(score) < 2 for score in scores[:-1])


def test_few_hours_small_differences_and_steady_growth_are_quiet() -> None:
    assert not oddities.unusual_hours(hours(10, 10, 10, 9000))
    assert not oddities.unusual_hours(hours(1, 1, 1, 1, 1, 1, 60))
    assert not oddities.unusual_hours(hours(*range(100, 1000, 50)))
    assert oddities.robust_z([]) == []


def test_many_connections_lost_in_one_minute_are_a_mass_disconnect() -> None:
    quiet = [Moves(i * 60, 2, 1) for i in range(30)]
    (found,) = oddities.mass_disconnects([*quiet, Moves(1800, 5, 400)], 1000)
    assert found.at_us == 1800
    assert "400 connections lost within one minute, of 1,000 clients" in found.reason


def test_few_lost_connections_are_no_mass() -> None:
    quiet = [Moves(i * 60, 2, 1) for i in range(30)]
    assert not oddities.mass_disconnects([*quiet, Moves(1800, 5, 19)], 20)
    assert not oddities.mass_disconnects([*quiet, Moves(1800, 5, 99)], 1000)
    assert not oddities.mass_disconnects([Moves(i * 60, 300, 300) for i in range(30)], 1000)


def test_half_of_all_clients_in_a_short_history_are_a_mass() -> None:
    assert oddities.mass_disconnects([Moves(0, 0, 50)], 100)


def test_one_client_with_most_of_the_traffic_is_named() -> None:
    talkers = [Talker("t", "loud", 900_000, 1, None), Talker("t", "quiet", 50_000, 1, None)]
    (found,) = oddities.one_client(talkers, 1_000_000, 50)
    assert found.subject == "loud"
    assert "90% of all 1,000,000 messages" in found.reason


def test_few_clients_share_what_there_is() -> None:
    talkers = [Talker("t", "a", 5000, 1, None)]
    assert not oddities.one_client(talkers, 5000, 1)
    assert not oddities.one_client([Talker("t", "a", 500, 1, None)], 600, 50)


def test_a_client_that_comes_again_and_again_is_flapping() -> None:
    (found,) = oddities.flapping([Churn("t", "c", 400, 12, 30)], 2.0, 4 * 3600)
    assert "400 connects in 4 h, 100 an hour" in found.reason
    assert "12 times taking over its own connection, 30 of them lost" in found.reason


def test_a_history_of_seconds_counts_as_a_minute() -> None:
    (found,) = oddities.flapping([Churn("t", "c", 100, 0, 0)], 1.0, 10)
    assert "100 connects in 10 s, 6k an hour" in found.reason


def test_from_a_dozen_connects_an_hour_on_a_client_is_flapping() -> None:
    hours = 10_000
    limit = int(hours * oddities.FLAPPING_PER_HOUR)
    assert oddities.flapping([Churn("t", "c", limit, 0, 0)], 1.0, hours * 3600)
    assert not oddities.flapping([Churn("t", "c", limit - 1, 0, 0)], 1.0, hours * 3600)


def test_a_client_like_all_others_is_not_flapping() -> None:
    assert not oddities.flapping([Churn("t", "c", 400, 0, 0)], 300.0, 4 * 3600)
    assert not oddities.flapping([Churn("t", "c", 40, 0, 0)], 1.0, 24 * 3600)
    assert not oddities.flapping([Churn("t", "c", 19, 0, 0)], 1.0, 60)


def test_a_backlog_that_only_grows_is_named() -> None:
    points = [(i * 60_000_000, 50 * i) for i in range(20)]
    (found,) = oddities.growing_backlogs([Backlog("t", "c", points, 950)])
    assert "950 messages owed at the end, 450 half-way" in found.reason


def test_a_backlog_that_shrinks_or_stands_is_quiet() -> None:
    shrinking = [(i, 1000 - 50 * i) for i in range(20)]
    standing = [(i, 1000) for i in range(20)]
    small = [(i, i) for i in range(20)]
    for points in (shrinking, standing, small, []):
        assert not oddities.growing_backlogs([Backlog("t", "c", points, 0)])


def test_books_that_differ_say_how() -> None:
    (one,) = oddities.books([Difference("t", 0, "accepted", "the events", 5, 4, False)])
    assert one.reason == "Stage accepted against the events: 5 here, 4 there."
    (two,) = oddities.books([Difference("t", 60, "accepted", "the events", 5, 5, True)])
    assert "5 messages in both, but not the same ones" in two.reason
    assert (two.at_us, two.tenant) == (60, "t")


def test_many_lines_that_differ_are_one_finding() -> None:
    minute = 60_000_000
    lines = [Difference("t", n * minute, "accepted", "the events", 5, 4, False) for n in range(9)]
    lines.append(Difference("u", 3 * minute, "persisted", "stage stored", 1, 2, False))
    (found,) = oddities.books(reversed(lines))
    assert (found.at_us, found.tenant) == (0, "")
    assert found.reason == (
        "10 lines of 2 users in 9 minutes until 1970-01-01 00:08: "
        "accepted against the events (9), persisted against stage stored (1). "
        "The first: Stage accepted against the events: 5 here, 4 there."
    )
    (one,) = oddities.books(lines[:9])
    assert one.reason.startswith("9 lines in 9 minutes until ")
    assert one.tenant == "t"
    assert oddities.books([]) == []


def test_one_kind_cannot_drown_the_others() -> None:
    steps = [(i, "n", "") for i in range(1000)]
    assert len(oddities.clock_steps(steps)) == oddities.PER_KIND_MAX

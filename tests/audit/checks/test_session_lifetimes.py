"""S1 to S5 and G1 over rows written by hand: true lives, false ones, and those with a hole."""

import pytest

NEVER = 0xFFFFFFFF


def _life(history):
    history.boot()
    session = history.session()
    session.create()
    session.subscribe("a/+")
    return session


def test_a_true_life_accuses_nobody(history, accused, verdicts) -> None:
    session = _life(history)
    session.subscribe("b", 2)
    session.subscribe("a/+", 0)
    session.unsubscribe("b")
    session.leave(4, wait=5)
    session.resume(wait=10)
    session.row("session_taken_over", reason=0x8E)
    session.leave(0x8E)
    session.resume()
    session.row("session_expiry_changed", expiry_s=20)
    session.expiry_s = 20
    session.leave()
    session.expire(wait=21)
    assert accused(history) == []
    counts = verdicts(history)
    assert counts["S1"] == (3, 0, 0)
    assert counts["S2"][0] >= 5
    assert counts["S3"] == (3, 0, 0)
    assert all(unknown == 0 for _, _, unknown in counts.values())


# S1


def test_no_session_present_though_there_is_a_session(history, accused) -> None:
    _life(history).leave()
    history.session(number=2).create()
    assert accused(history) == [("S1", "no Session Present, but there was a session")]


def test_session_present_of_a_new_session(history, accused) -> None:
    history.boot()
    history.session().create(sp=True)
    assert accused(history) == [("S1", "Session Present, but the session is new")]


def test_a_resumed_session_whose_client_was_told_of_none(history, accused) -> None:
    session = _life(history)
    session.leave()
    session.resume(sp=False)
    assert accused(history)[0] == ("S1", "a session was resumed, but its client was told of none")


def test_a_session_resumed_after_its_end(history, accused) -> None:
    session = _life(history)
    session.expiry_s = 5
    session.leave()
    session.expire(wait=6)
    session.resume()
    assert accused(history) == [("S1", "session_resumed of a session that is not there")]


def test_in_a_hole_a_session_may_have_ended(history, accused, verdicts) -> None:
    _life(history).leave()
    history.lose()
    history.session(number=2).create()
    assert accused(history) == []
    assert verdicts(history)["S1"][2] == 1


def test_sessions_older_than_the_history_are_not_judged(history, accused, verdicts) -> None:
    history.number, history.seq = 7, 50
    session = history.session()
    session.filters["x"] = 1
    session.resume()
    session.leave()
    assert accused(history) == []
    assert "S1" not in verdicts(history)
    assert all(unknown == 0 for _, _, unknown in verdicts(history).values())


def test_a_clean_start_that_leaves_the_old_session_behind(history, accused) -> None:
    _life(history).leave()
    history.session(number=2).create(clean_start=True)
    assert accused(history) == [("G1", "a clean start left the session before it without an end")]


# S2


def test_a_subscription_that_is_lost_is_one_violation(history, accused) -> None:
    session = _life(history)
    session.subscribe("b", 2)
    session.leave()
    del session.filters["b"]
    session.resume(wait=5)
    session.leave()
    session.resume()
    assert accused(history) == [("S2", "its subscriptions differ from those it made")]


def test_another_granted_qos_is_another_subscription(history, accused) -> None:
    session = _life(history)
    session.leave()
    session.filters["a/+"] = 2
    session.resume()
    assert accused(history) == [("S2", "its subscriptions differ from those it made")]


def test_after_a_hole_subscriptions_are_unknown_until_they_agree(
    history, accused, verdicts
) -> None:
    session = _life(history)
    history.lose()
    session.filters["in the hole"] = 1
    session.leave()
    session.unsubscribe("in the hole")
    session.resume()
    session.filters["lost"] = 0
    session.leave()
    assert verdicts(history)["S2"][2] == 1
    assert accused(history) == [("S2", "its subscriptions differ from those it made")]


def test_the_number_in_flight_follows_what_was_sent(history, accused) -> None:
    session = _life(history)
    session.row("#balance", least=2, most=2)
    session.inflight = 2
    session.leave()
    session.inflight = 1
    session.resume()
    what = "the number in flight is not what was sent and not acknowledged"
    assert accused(history) == [("S2", what)]


def test_what_another_invariant_accuses_is_no_violation_of_this_one(history, accused) -> None:
    session = _life(history)
    session.row("#balance", conn=1, least=1, most=1)
    session.inflight = 1
    session.leave()
    session.resume()
    # Sent again as if for the first time (D2), and acknowledged once.
    session.row("#balance", conn=2, least=0, most=0)
    session.inflight = 0
    session.leave()
    session.resume()
    # Sent again though it was complete (D1), and acknowledged again.
    session.row("#balance", conn=3, least=-1, most=-1, again=1)
    session.leave()
    assert accused(history) == []


def test_one_lie_is_one_violation(history, accused) -> None:
    session = _life(history)
    session.leave()
    session.resume(subs=2)
    session.leave()
    session.resume(subs=2)
    session.leave()
    assert accused(history) == [("S2", "its subscriptions differ from those it made")]


def test_a_position_does_not_go_back_while_offline(history, accused) -> None:
    session = _life(history)
    session.leave(position=7)
    session.resume(position=6)
    assert accused(history) == [("S2", "its position went back while it was offline")]


# S3


def test_expiry_early_late_connected_and_never(history, accused) -> None:
    history.boot()
    players = [history.session(f"c{number}", number) for number in range(5)]
    early, late, connected, never, in_time = players
    for player in players:
        player.expiry_s = 100
    never.expiry_s = NEVER
    for player in players:
        player.create()
    for player in (early, late, never, in_time):
        player.leave()
    early.expire(wait=50)
    connected.expire()
    never.expire()
    in_time.expire(wait=100)
    late.expire(wait=200)
    assert sorted(what for invariant, what in accused(history) if invariant == "S3") == [
        "expired before its time",
        "expired late",
        "expired though it never does",
        "expired while its client was connected",
    ]
    assert [what for invariant, what in accused(history) if invariant == "G1"] == [
        "garbage collection took a session whose client was connected"
    ]


def test_resumed_past_its_time(history, accused) -> None:
    session = _life(history)
    session.expiry_s = 10
    session.leave()
    session.resume(wait=12)
    assert accused(history) == [("S3", "resumed past its time")]


@pytest.mark.parametrize(
    ("seconds", "s3", "g1"),
    [
        (5, (0, 0, 0), (0, 0, 0)),  # not due yet
        (12, (0, 0, 1), (0, 0, 0)),
        (3000, (0, 0, 1), (0, 0, 0)),  # it will be late, if it ends
        (4000, (0, 0, 0), (1, 1, 0)),
    ],
)
def test_a_session_that_is_overdue_at_the_end_of_the_history_is_never_ok(
    history, verdicts, seconds, s3, g1
) -> None:
    history.boot()
    session = history.session()
    session.expiry_s = 10
    session.create()
    session.leave()
    history.row("gc_run", wait=seconds, count=0)
    counts = verdicts(history)
    assert (counts.get("S3", (0, 0, 0)), counts.get("G1", (0, 0, 0))) == (s3, g1)


def test_a_broker_that_is_down_cannot_expire_anything(history, accused) -> None:
    session = _life(history)
    session.expiry_s = 10
    session.leave()
    history.row("shutdown")
    history.now += 5000
    history.boot()
    session.sized("session_restored")
    history.row("recovered", count=1)
    session.expire(wait=50)
    history.row("gc_run", wait=500, count=1)
    assert accused(history) == []


def test_the_time_of_death_counts_and_not_the_boot_after_it(history, accused) -> None:
    session = _life(history)
    session.expiry_s = 10
    died = history.time(history.now)
    history.now += 100
    history.boot()
    session.leave(1002, at=died)
    session.sized("session_restored")
    session.resume()
    assert ("S3", "resumed past its time") in accused(history)


def test_a_hole_makes_an_expiry_unknown(history, accused, verdicts) -> None:
    session = _life(history)
    session.leave()
    history.lose()
    session.expire()
    assert accused(history) == []
    assert verdicts(history)["S3"] == (0, 0, 1)


def test_what_is_past_its_time_for_long_is_a_backlog(history, accused) -> None:
    session = _life(history)
    session.expiry_s = 10
    session.leave()
    history.row("gc_run", wait=4000)
    assert accused(history) == [("G1", "past its time for long, and not collected")]


# S4


def test_two_connections_at_once(history, accused) -> None:
    session = _life(history)
    session.resume()
    assert accused(history) == [("S4", "resumed while another connection was up")]


def test_a_takeover_without_a_word(history, accused) -> None:
    session = _life(history)
    session.row("session_taken_over", reason=0)
    session.leave(1001)
    session.resume()
    session.leave(0x8E)
    session.leave(0)
    assert [what for _, what in accused(history)] == [
        "taken over without reason 0x8E",
        "a connection that was taken over was not told 0x8E",
        "a connection was told 0x8E but not taken over",
        "a connection ended that had ended before",
    ]


# S5


def test_what_existed_before_a_crash_exists_after_it(history, accused, verdicts) -> None:
    session = _life(history)
    other = history.session("d", 2)
    other.create()
    clean = history.session("e", 3)
    clean.expiry_s = 0
    clean.create()
    died = history.time(history.now)
    history.boot()
    session.leave(1002, at=died)
    session.sized("session_restored")
    other.leave(1002, at=died)
    other.resume()
    history.row("recovered", count=2)
    history.session("e", 4).create()
    assert accused(history) == []
    assert verdicts(history)["S5"][0] >= 4


def test_a_session_that_is_missing_after_a_crash(history, accused) -> None:
    session = _life(history)
    session.leave()
    history.boot()
    history.row("recovered", count=0)
    history.boot()
    history.row("recovered", count=0)
    history.session(number=9).create()
    assert accused(history) == [("S5", "it was there before the boot, and not after it")]


def test_a_session_that_did_nothing_yet_is_missed_after_a_crash(history, accused) -> None:
    history.session("c", 1).create()
    history.boot()
    history.row("recovered", count=0)
    assert accused(history) == [("S5", "it was there before the boot, and not after it")]


def test_a_session_whose_row_may_be_damaged_is_not_called_lost(history, accused, verdicts) -> None:
    session = _life(history)
    session.leave()
    history.boot()
    history.row("recovered", count=1, detail="0 restored, 1 damaged")
    assert accused(history) == []
    assert verdicts(history)["S5"][2]
    history.boot()
    history.row("recovered", count=0, detail="0 restored, 0 damaged")
    assert accused(history) == [("S5", "it was there before the boot, and not after it")]


def test_a_session_that_is_another_after_a_crash(history, accused) -> None:
    session = _life(history)
    session.leave()
    history.boot()
    session.filters["a/+"] = 0
    session.expiry_s = 1
    session.sized("session_restored")
    history.row("recovered", count=1)
    assert accused(history) == [
        ("S5", "its subscriptions differ from those it made"),
        ("S5", "its expiry interval is another after the boot"),
    ]


def test_a_session_that_comes_back_from_the_dead(history, accused) -> None:
    session = _life(history)
    session.row("session_terminated", reason=1011)
    history.boot()
    session.sized("session_restored")
    assert accused(history) == [("S5", "session_restored of a session that is not there")]


def test_without_the_end_of_the_census_or_with_a_hole_nobody_is_missing(
    history, accused, verdicts
) -> None:
    _life(history).leave()
    history.boot()
    assert accused(history) == []
    history.lose()
    history.row("recovered", count=1)
    assert accused(history) == []
    assert verdicts(history)["S5"] == (0, 0, 1)


@pytest.mark.parametrize("reason", [1010, 1012])
@pytest.mark.parametrize(("expiry_s", "is_wrong"), [(0, False), (60, True), (0xFFFFFFFF, True)])
def test_only_a_session_without_an_expiry_interval_ends_with_its_connection(
    history, accused, reason: int, expiry_s: int, is_wrong: bool
) -> None:
    """Or a broker could throw every session away, and give it a name."""
    session = _life(history)
    session.expiry_s = expiry_s
    session.row("session_expiry_changed", expiry_s=expiry_s)
    session.leave()
    session.row("session_terminated", reason=reason)
    what = "it ended with its connection, but it had an expiry interval"
    assert accused(history) == ([("S3", what)] if is_wrong else [])


@pytest.mark.parametrize("expiry_s", [0, 3600])
def test_in_a_hole_the_expiry_interval_may_have_changed(
    history, accused, verdicts, expiry_s: int
) -> None:
    session = _life(history)
    session.row("session_expiry_changed", expiry_s=expiry_s)
    history.lose(2)  # another expiry interval, and the disconnect
    session.row("session_terminated", reason=1012)
    assert accused(history) == []
    assert verdicts(history)["S3"] == (0, 0, 1)


def test_an_expiry_interval_that_is_told_after_a_hole_is_known(history, accused) -> None:
    session = _life(history)
    history.lose(2)
    session.row("session_expiry_changed", expiry_s=60)
    session.row("session_terminated", reason=1012)
    what = "it ended with its connection, but it had an expiry interval"
    assert accused(history) == [("S3", what)]


def test_a_clean_start_that_nobody_asked_for(history, accused) -> None:
    """The session is gone, its client asked for it, and is told that there was none."""
    session = _life(history)
    session.leave()
    session.row("session_terminated", reason=1011, actor="client")
    history.session(number=2).create(clean_start=False)
    what = "the session before it was ended by a clean start that was not requested"
    assert accused(history) == [("S1", what)]


def test_a_clean_start_ends_the_session_before_it(history, accused) -> None:
    session = _life(history)
    session.leave()
    session.row("session_terminated", reason=1011, actor="client")
    second = history.session(number=2)
    second.create(clean_start=True)
    second.leave()
    second.row("session_terminated", reason=1013, actor="client")
    history.session(number=3).create(clean_start=False)
    assert accused(history) == []


@pytest.mark.parametrize(("wait", "position", "is_wrong"), [(5, 6, True), (5, 7, False),
                                                            (0.5, 6, False)])  # fmt: skip
def test_a_position_survives_a_crash_unless_it_was_too_fresh(
    history, accused, wait: float, position: int, is_wrong: bool
) -> None:
    """Without rows of messages nothing else tells that what was done will be done again."""
    session = _life(history)
    session.leave(position=7)
    history.row("gc_run", wait=wait, count=0)
    history.boot("books")
    session.sized("session_restored", position=position)
    history.row("recovered", count=1)
    what = "its position went back while it was offline"
    assert accused(history) == ([("S5", what)] if is_wrong else [])


@pytest.mark.parametrize("has_will", [False, True])
@pytest.mark.parametrize(("resumed_at", "then"), [(6, []), (7, []), (5, ["S2"])])
def test_a_position_that_went_back_in_a_crash_is_one_violation(
    history, accused, has_will: bool, resumed_at: int, then: list[str]
) -> None:
    """What was restored is what has to last from then on."""
    session = _life(history)
    session.leave(position=7)
    for _ in range(2):
        history.row("gc_run", wait=5, count=0)
        history.boot()
        session.sized("session_restored", position=6)
        history.row("recovered", count=1)
    if has_will:
        session.row("will_delayed", at=history.time(history.now))
    session.resume(position=resumed_at)
    what = "its position went back while it was offline"
    assert accused(history) == [(invariant, what) for invariant in [*then, "S5"]]

"""Is a client traced as long as one of its traces is on, with all streams that are its own?"""

from session.history.traced import Traced


def test_a_client_is_traced_until_its_last_trace_has_ended() -> None:
    traced = Traced()
    assert traced.add("c", [1])
    assert not traced.add("c", [2])
    assert not traced.remove("c")
    assert traced.wants_stored([1]) and traced.wants_stored([2])
    assert traced.remove("c")
    assert not traced.clients and not traced.wants_stored([1, 2])


def test_what_is_stored_for_a_traced_client_is_wanted_and_nothing_else() -> None:
    traced = Traced()
    traced.add("c", [1])
    traced.hold("c", 7)
    traced.hold("c", 0)
    traced.hold("d", 9)
    assert traced.wants_stored([5, 7])
    assert not traced.wants_stored([9]) and not traced.wants_stored([0])
    assert not traced.wants_stored([])


def test_the_streams_of_one_client_are_not_lost_with_the_trace_of_another() -> None:
    traced = Traced()
    traced.add("c", [1, 2])
    traced.add("d", [2, 3])
    traced.remove("c")
    assert traced.wants_stored([2]) and traced.wants_stored([3]) and not traced.wants_stored([1])

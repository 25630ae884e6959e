"""Is what was found bounded for a person, and complete for a program?"""

import json

from broker.operations.damage.report import NAMED_MAX, SHOWN_MAX, Findings, as_json


def test_a_person_gets_few_lines_of_each_kind() -> None:
    found = Findings()
    assert found.is_whole
    for number in range(30):
        found.problem(f"problem {number}")
        found.session(f"client {number}", "lost", number)
        found.lost_messages.append((1, number * 10, number * 10 + 1))
    lines = list(found.lines())
    assert len(lines) == 3 * (SHOWN_MAX + 1) + 2
    assert lines[SHOWN_MAX] == "  and 10 more (--json has them)"
    assert "messages that cannot be read: 60" in lines and "sessions concerned: 30" in lines
    assert not found.is_whole


def test_json_has_everything() -> None:
    found = Findings()
    found.problem("torn")
    found.session("mètre", "lost", 2)
    found.session("mètre", "lost", 1)
    found.lost_messages.append((3, 5, 9))
    read = json.loads(as_json(found.as_object()))
    assert read["sessions"] == [
        {"client_id": "mètre", "problems": ["lost"], "unreadable_messages": 3}
    ]
    assert read["lost_messages"] == [{"generation": 3, "first": 5, "last": 9}]
    assert (read["whole"], read["problems"], read["sessions_affected"]) == (False, ["torn"], 1)


def test_what_is_named_is_bounded_and_what_is_counted_is_not() -> None:
    found = Findings()
    for number in range(NAMED_MAX + 5):
        found.problem("torn")
        found.session(str(number), "lost", 1)
    assert len(found.problems) == len(found.sessions) == NAMED_MAX
    assert found.problem_count == found.session_count == NAMED_MAX + 5

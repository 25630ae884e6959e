"""The front page: what is owed, in sentences and in rows."""

from datetime import UTC, datetime
from typing import Any

from broker.admin.pages.views import owed
from broker.admin.records import OwedTo, Page
from tests.broker.admin.pages.records import AT, EARLIER, backlog, row

NOW = datetime(2026, 11, 27, 12, 3, 10, tzinfo=UTC)


def shown(*rows: Any, following: str | None = None, **fields: Any) -> dict[str, Any]:
    given = {
        "why": "",
        "grown": "",
        "sort": "bytes",
        "match": "",
        "cursor": "",
        "now": NOW,
        **fields,
    }
    return owed.context(Page(list(rows), following, AT, []), None, None, **given)


def test_a_summary_says_who_waits_and_for_how_much() -> None:
    assert owed.summary(backlog()) == (
        "Nothing: 3 sessions stored, and nobody waits for a message."
    )
    groups = OwedTo(2, 4, 4)
    found = backlog(messages=1_204_331, sessions=180, sessions_stored=1204, groups=groups)
    assert owed.summary(found) == (
        "1,204,331 messages for 180 sessions and 2 shared groups; 1,204 sessions stored. "
        "Counted 12 s ago."
    )


def test_what_waits_and_what_is_in_flight_are_owed_and_drawn_against_the_most() -> None:
    first, second = shown(row(), row(in_flight=0, waiting=5))["sessions"]
    assert (first["messages"], first["share"]) == (10, 100)
    assert (second["messages"], second["share"]) == (5, 50)
    assert shown(row(in_flight=0, waiting=0))["sessions"][0]["share"] is None


def test_since_is_the_side_on_which_the_client_is() -> None:
    away, there = shown(row(), row(state="online"))["sessions"]
    assert (away["since"], away["is_online"]) == (AT, False)
    assert (there["since"], there["is_online"]) == (EARLIER, True)


def test_the_end_of_a_session_is_a_time_or_a_word() -> None:
    assert owed.ends(row()) == ""
    assert owed.ends(row(session_expiry_interval=owed.NEVER, expires_at=None)) == "never"
    assert owed.ends(row(state="online", expires_at=None)) == "24 h after it leaves"


def test_links_keep_what_was_looked_for() -> None:
    links = shown(row(), following="ab", sort="oldest", match="boat", cursor="cd")["links"]
    assert links["next"] == "/?sort=oldest&match=boat&cursor=ab"
    assert links["first"] == "/?sort=oldest&match=boat"
    assert links["name"] == "/?sort=name&match=boat"
    assert shown(row())["links"]["next"] == ""


def test_while_sessions_are_counted_the_page_says_so() -> None:
    context = owed.context(
        None, None, None, why="", grown="", sort="bytes", match="", cursor="", now=NOW
    )
    assert "are being counted" in context["empty"] and context["sessions"] == []
    assert shown(match="x")["empty"] == "No stored session matches 'x'."


def test_the_oldest_is_told_as_its_age_and_why_there_is_none() -> None:
    page = Page([row()], None, AT, [])
    context = owed.context(
        page, backlog(messages=1, oldest_ms=7_200_000), None, why="", grown="", sort="bytes",
        match="", cursor="", now=NOW,
    )  # fmt: skip
    assert context["oldest"] == "2 h"
    context = owed.context(
        page, None, None, why="not counted", grown="", sort="bytes", match="", cursor="", now=NOW
    )
    assert context["summary"] == "How much in all is not known: not counted"
    assert owed.shown(1, AT) == "1 line, read at 12:03:10"

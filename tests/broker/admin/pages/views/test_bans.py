"""The list of bans."""

from broker.admin.pages.views import bans
from broker.admin.records import Ban
from tests.broker.admin.pages.records import AT


def ban(value: str, left: int) -> Ban:
    return Ban("user", value, AT, AT, left, "anna (http)", "")


def test_those_that_end_first_come_first_and_only_so_many() -> None:
    found = [ban(f"u{number}", 1000 - number) for number in range(bans.SHOWN_MAX + 5)]
    context = bans.context(found)
    assert context["bans"][0]["value"] == f"u{bans.SHOWN_MAX + 4}"
    assert (len(context["bans"]), context["more"]) == (bans.SHOWN_MAX, 5)


def test_a_ban_of_a_name_that_is_too_long_for_an_address_has_no_button() -> None:
    short, long = bans.context([ban("a/b", 1), ban("x" * 5000, 2)])["bans"]
    assert (short["remove"], long["remove"]) == ("/bans/remove?kind=user&value=a%2Fb", "")

"""The front page, and what its chart draws."""

import html
import re
from collections.abc import Callable

import httpx

from tests.broker.admin.pages.scene import BIDI, DOTS, LONG, MARKUP, owe
from tests.broker.admin.running import Running

Browse = Callable[[str], httpx.Client]
LINK = re.compile(r'<a id="s-[0-9a-f]+" href="([^"]+)">')


def clients(page: str) -> list[str]:
    """Return the addresses of the clients of a list, in its order."""
    return [html.unescape(each) for each in LINK.findall(page)]


def test_the_most_owed_come_first_in_each_order(port_town: Running, browse: Browse) -> None:
    client = browse("vera")
    assert clients(client.get("/").text)[0] == "/session?id=boat-18"
    assert clients(client.get("/?sort=messages").text)[0] == "/session?id=boat-17"
    assert clients(client.get("/?sort=name&match=boat-1?").text) == [
        "/session?id=boat-17",
        "/session?id=boat-18",
    ]


def test_hostile_names_are_text_and_lead_to_their_pages(browse: Browse) -> None:
    client = browse("vera")
    page = client.get("/?sort=name").text
    assert MARKUP not in page and BIDI not in page and LONG[:1000] not in page
    for address in clients(page):
        answer = client.get(address)
        assert answer.status_code == 200, address
    assert client.get("/session", params={"id": DOTS}).status_code == 200


def test_a_list_is_told_in_pages(port_town: Running, browse: Browse) -> None:
    for number in range(60):
        owe(port_town, f"many-{number:02}", 0, topic=f"many/{number}")
    client = browse("vera")
    first = client.get("/?sort=name&match=many").text
    assert len(clients(first)) == 50
    following = re.search(r'href="([^"]+)">Further ones', first)
    assert following is not None
    second = client.get(html.unescape(following[1])).text
    assert clients(second) == [f"/session?id=many-{number}" for number in range(50, 60)]
    assert "To the beginning" in second


def test_the_chart_gets_columns(browse: Browse) -> None:
    times, messages, sizes = browse("vera").get("/growth").json()
    assert len(times) == len(messages) == len(sizes)

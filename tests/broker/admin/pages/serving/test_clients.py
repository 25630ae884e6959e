"""The page of one client: what it has, what it is owed, and its past."""

from collections.abc import Callable

import httpx

from broker.admin.pages.words import links
from tests.broker.admin.pages.scene import LONG, PAYLOAD

Browse = Callable[[str], httpx.Client]


def test_a_queue_is_told_in_pages_and_by_topic(browse: Browse) -> None:
    client = browse("vera")
    page = client.get("/session?id=boat-17").text
    assert page.count("plant/7/alarm</bdi>") == 25 + 1  # and its subscription
    assert "Further ones" in page
    none = client.get("/session?id=boat-17&topic=other/%23").text
    assert "No message that it is owed matches." in none
    wrong = client.get("/session?id=boat-17&topic=a/%23/b").text
    assert "must be last" in wrong
    shared = client.get("/session?id=boat-17&topic=$share/g/a").text
    assert "without $share/NAME/" in shared


def test_payloads_need_their_permission(browse: Browse) -> None:
    assert "&lt;b&gt;high" in browse("anna").get("/session?id=boat-17&payloads=1").text
    denied = browse("olga").get("/session?id=boat-17&payloads=1")
    assert denied.status_code == 403 and PAYLOAD.decode() not in denied.text


def test_a_long_name_is_found_by_its_beginning_and_digest(browse: Browse) -> None:
    client = browse("vera")
    assert client.get(links.of_client("/session", LONG)).status_code == 200
    assert client.get(links.of_client("/session", LONG + "y")).status_code == 404


def test_a_clean_session_has_a_page_and_no_queue(browse: Browse) -> None:
    page = browse("vera").get("/session?id=clean%01one").text
    assert "It has no stored session" in page and "a/#" in page
    assert "What it is owed" not in page


def test_who_is_connected_is_listed_and_found(browse: Browse) -> None:
    page = browse("vera").get("/connections").text
    assert "there-1" in page and "maria" in page and "/client/kick" not in page
    assert "/client/kick?id=there-1" in browse("olga").get("/connections?match=there").text
    assert "No connected client matches" in browse("vera").get("/connections?match=zz").text


def test_the_past_says_why_and_what_happened(browse: Browse) -> None:
    page = browse("vera").get("/session/past?id=boat-17").text
    assert "Does it miss messages?" in page
    assert "connected, new session" in page and "subscribed to" in page

"""What the tests of pages find: users of each role, boats that are away, hostile names."""

import re
from typing import Final

import httpx

from tests.broker.admin.running import PASSWORD, Running
from tests.durability.rawclient import RawClient

COUNTS: Final = {"HOLDFAST__METRICS__BACKLOG_INTERVAL": "1s"}  # what is owed, quickly
USERS: Final = {"vera": "viewer", "olga": "operator", "anna": "admin"}
READERS: Final = frozenset({"anna"})  # who may read payloads
MARKUP: Final = "<script>alert(1)</script>"
BIDI: Final = "abc\u202etxt.exe"
LONG: Final = "y" * 60_000
DOTS: Final = "../..?a=b&c#d"
ODD: Final = (MARKUP, BIDI, LONG, DOTS, "two\nlines")
PAYLOAD: Final = b'{"alarm": "<b>high</b>"}'

_CSRF: Final = re.compile(r'name="csrf" value="([^"]+)"')


def populate(running: Running) -> Running:
    """Make users, sessions with backlogs, connections and a retained message."""
    add_users(running)
    owe(running, "boat-17", 30, topic="plant/7/alarm", payload=PAYLOAD)
    owe(running, "boat-18", 3, topic="plant/8/alarm", payload=b"x" * 20_000)
    for number, name in enumerate(ODD):
        owe(running, name, 1, topic=f"odd/{number}")
    there = RawClient(running.broker.port, "there-1")
    there.durable(username="maria")
    there.subscribe("plant/+/alarm", "$share/crew/orders/#")
    clean = RawClient(running.broker.port, "clean\x01one")
    clean.connect()
    clean.subscribe("a/#")
    clean.publish("plant/7/state", PAYLOAD, qos=1, retain=True)
    KEPT.extend((there, clean))
    return running


KEPT: Final[list[RawClient]] = []  # connections that stay open


def owe(running: Running, client_id: str, count: int, *, topic: str, payload: bytes = b"x") -> None:
    """Make a session of a client that is away, to which messages are owed."""
    client = RawClient(running.broker.port, client_id)
    client.durable()
    client.subscribe(topic)
    client.disconnect()
    publisher = RawClient(running.broker.port, "publisher")
    publisher.connect()
    for _ in range(count):
        publisher.publish(topic, payload, qos=1)
    publisher.disconnect()


def add_users(running: Running) -> None:
    """Make the users."""
    secret = running.broker.directory / "password"
    secret.write_text(f"{PASSWORD}\n")
    for name, role in USERS.items():
        extra = ["--payloads"] if name in READERS else []
        place = ["--password-file", str(secret)]
        running.command("user", "add", name, "--role", role, *place, *extra)


def csrf_in(page: str) -> str:
    """Return the token of the first form of a page."""
    found = _CSRF.search(page)
    assert found is not None, page
    return found[1]


def logged_in(running: Running, name: str) -> httpx.Client:
    """Return a client with the cookie of somebody who has logged in."""
    client = running.as_browser()
    form = client.get("/login")
    fields = {"name": name, "password": PASSWORD, "csrf": csrf_in(form.text)}
    answer = client.post("/login", data=fields)
    assert answer.status_code == 303, answer.text
    return client

"""What an administrator has the broker itself do: the level of its log, and a reload."""

from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from tests.broker.admin.pages import scene
from tests.broker.admin.pages.scene import csrf_in
from tests.broker.admin.running import Running

Browse = Callable[[str], httpx.Client]


def send(client: httpx.Client, path: str, **fields: str) -> httpx.Response:
    """Send a form of the page; follow to the page after it."""
    csrf = csrf_in(client.get("/broker").text)
    answer = client.post(path, data={"csrf": csrf, **fields})
    return client.get(answer.headers["location"]) if answer.status_code == 303 else answer


def test_the_level_is_set_for_a_time_and_in_the_name_of_who_asks(
    port_town: Running, browse: Browse
) -> None:
    client = browse("anna")
    page = send(client, "/broker/log-level", level="debug", time="1h").text
    assert "The broker logs from debug on for 1h, then from info." in page
    assert "until a reload" in send(client, "/broker/log-level", level="info", time="").text
    port_town.wait(lambda: '"by": "anna (http)"' in port_town.broker.log())
    lines = [each for each in port_town.log_lines() if each["what"] == "set log level"]
    assert [(each.get("level"), each["outcome"]) for each in lines] == [
        ("debug", "asked"),
        (None, "done"),
        ("info", "asked"),
        (None, "done"),
    ]


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"level": "loud", "time": "1h"}, "expected debug, info, warning, error"),
        ({"level": "info", "time": "soon"}, "&#39;soon&#39;: expected a time"),
        ({"level": "info", "time": "90d"}, "24 h at most"),
    ],
)
def test_what_was_typed_wrong_is_told(browse: Browse, fields: dict[str, str], text: str) -> None:
    answer = send(browse("anna"), "/broker/log-level", **fields)
    assert answer.status_code == 400 and text in answer.text


def test_a_reload_says_what_holds_now_and_what_needs_a_restart(tmp_path: Path) -> None:
    running = Running(tmp_path)
    settings = tmp_path / "holdfast.toml"
    settings.write_text("")
    running.broker.arguments = ("-c", str(settings))
    try:
        running.start()
        scene.add_users(running)
        client = scene.logged_in(running, "anna")
        assert "What the last reload did" not in client.get("/broker").text
        assert "Nothing that holds has changed." in send(client, "/broker/reload").text
        settings.write_text("[limits]\ntopic_levels = 2\n[listener]\nbacklog = 7\n")
        page = send(client, "/broker/reload").text
        assert "Needs a restart:" in page and "listener.backlog" in page
        assert "<li>limits.topic_levels = 2</li>" in page and "asked for by" in page
        settings.write_text("[limits]\ntopic_levels = 'two'\n")
        page = send(client, "/broker/reload").text
        assert "Could not be used:" in page and "all settings stay as they were" in page
    finally:
        running.close()

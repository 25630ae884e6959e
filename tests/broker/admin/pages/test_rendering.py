"""What every page carries: its policy, and files that are another address when they change."""

import base64
import re

import pytest

from broker.admin.access.roles import Role, Who
from broker.admin.pages import rendering

INLINE = re.compile(r"<script(?![^>]* src=)|<style|\son\w+=|\sstyle=|javascript:|hx-on|hx-vals")


TEMPLATES = {path.stem: path for path in (rendering.FOLDER / "templates").glob("*.html")}


@pytest.mark.parametrize("name", sorted(TEMPLATES))
def test_a_template_has_nothing_inline_and_marks_nothing_safe(name: str) -> None:
    text = TEMPLATES[name].read_text()
    assert not INLINE.findall(text)
    assert "|safe" not in text and "autoescape false" not in text
    assert not re.findall(r"https?://", text)


def test_the_policy_allows_our_own_files_alone() -> None:
    assert "'unsafe" not in rendering.CSP and "http" not in rendering.CSP
    assert rendering.CSP.startswith("default-src 'none'")


@pytest.mark.parametrize("name", sorted(rendering.FILES))
def test_a_file_is_served_for_good_and_as_what_it_is(name: str) -> None:
    answer = rendering.static_file(name)
    assert answer is not None
    assert "immutable" in answer.headers["cache-control"]
    assert answer.headers["content-type"].startswith(("text/", "image/svg+xml"))
    assert re.fullmatch(r"/static/[\w./-]+\?v=[0-9a-f]{12}", rendering.static_url(name))


@pytest.mark.parametrize("name", ["../rendering.py", "vendor/htmx.LICENSE.txt", "", "/etc/passwd"])
def test_no_other_file_is_served(name: str) -> None:
    assert rendering.static_file(name) is None


def test_only_an_admin_is_led_to_what_is_for_admins() -> None:
    places = {role: dict(rendering.places(Who("x", role, False, "login", ""))) for role in Role}
    for path in ("/access", "/broker"):
        assert path in places[Role.ADMIN]
        assert path not in places[Role.OPERATOR] | places[Role.VIEWER]


def test_a_payload_is_text_or_hexadecimal() -> None:
    assert rendering.payload(b"<b>", 10) == ("text", "&lt;b&gt;")
    kind, shown = rendering.payload(b"\xff\x00\x01", 4)
    assert (kind, str(shown)) == ("hexadecimal", "ff 00 \N{HORIZONTAL ELLIPSIS}")
    shown = rendering._payload(base64.b64encode("\u00e9".encode()).decode(), 10)
    assert str(shown) == "\u00e9"

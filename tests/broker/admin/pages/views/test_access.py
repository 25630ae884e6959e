"""Users, tokens and the admin log, as their page shows them."""

import pytest

from broker.admin.access.tokens import Token
from broker.admin.access.users import User
from broker.admin.pages.views import access

USER = User(
    {"name": "anna", "role": "admin", "payloads": True, "argon2id": "secret", "changed_ms": 1}
)
TOKEN = Token(
    {"name": "ci", "role": "viewer", "payloads": False, "sha256": "digest", "created_ms": 1,
     "expires_ms": 2000}
)  # fmt: skip
LINE = {
    "at": "2026-11-27T12:03:10.000Z",
    "change": "x-1",
    "name": "olga",
    "role": "operator",
    "how": "login",
    "from": "127.0.0.1",
    "what": "purge session",
    "client_id": "boat-17",
    "older_ms": 0,
    "outcome": "asked",
}


def test_no_secret_gets_onto_the_page() -> None:
    context = access.context([USER], [TOKEN], [], cursor="", limit=50, now_ms=1000)
    assert "secret" not in str(context) and "digest" not in str(context)
    assert context["tokens"][0]["is_expired"] is False
    late = access.context([USER], [TOKEN], [], cursor="", limit=50, now_ms=2000)
    assert late["tokens"][0]["is_expired"] is True


def test_a_line_says_what_was_done_with_whom() -> None:
    context = access.context([], [], [((1, 7), LINE)], cursor="", limit=50, now_ms=0)
    (line,) = context["log"]
    assert line["what"] == "purge session, client_id boat-17"
    assert (line["kind"], line["source"]) == ("idle", "127.0.0.1")


def test_further_lines_are_on_the_next_page() -> None:
    lines = [((3, place), LINE) for place in (900, 800, 700)]
    context = access.context([], [], lines, cursor="3-1000", limit=2, now_ms=0)
    assert len(context["log"]) == 2
    assert context["links"] == {"first": "/access#log", "next": "/access?cursor=3-800#log"}
    assert access.context([], [], lines, cursor="", limit=3, now_ms=0)["links"]["next"] == ""


def test_a_form_of_a_user_or_a_token_is_read() -> None:
    sent = {"name": "bert", "role": "operator", "payloads": "1", "password": "x" * 12}
    user = access.user_wanted(sent)
    assert (user.name, user.role, user.payloads, user.password) == (
        "bert",
        "operator",
        True,
        "x" * 12,
    )
    change = access.user_change({"role": "viewer", "password": ""})
    assert (change.role, change.payloads, change.password) == ("viewer", False, None)
    token = access.token_wanted({**sent, "expires": "30d"})
    assert (token.name, token.role, token.expires) == ("bert", "operator", "30d")


@pytest.mark.parametrize(
    ("sent", "words"),
    [
        ({"name": "an n"}, "expected letters"),
        ({"role": "king"}, "expected viewer, operator, admin"),
        ({"password": "short"}, "expected 12 to 1024 characters"),
        ({"expires": "soon"}, "'soon': expected a time"),
    ],
)
def test_what_was_typed_wrong_is_said(sent: dict[str, str], words: str) -> None:
    right = {"name": "bert", "role": "viewer", "password": "x" * 12, "expires": "1d"}
    with pytest.raises(ValueError, match=words):
        access.user_wanted({**right, **sent})
        access.token_wanted({**right, **sent})


def test_a_form_is_shown_again_without_the_password() -> None:
    shown = access.fields({"name": "bert", "role": "admin", "password": "hidden"})
    assert "hidden" not in str(shown)
    assert shown == {"name": "bert", "role": "admin", "payloads": False, "expires": "90d"}

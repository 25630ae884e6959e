"""Addresses that lead to the client that they name."""

from urllib.parse import parse_qsl, urlsplit

from hypothesis import example, given
from hypothesis import strategies as st

from broker.admin.pages.words import links


@given(st.text(st.characters(codec="utf-8"), min_size=1, max_size=400))
@example("..")
@example("a/../b?c=d&e#f%2F")
@example("\n\r\x01")
def test_an_address_brings_the_name_back(client_id: str) -> None:
    address = links.of_client("/session", client_id, sort="", cursor=None, page=2)
    parts = urlsplit(address)
    assert (parts.path, parts.fragment) == ("/session", "")
    assert dict(parse_qsl(parts.query, strict_parsing=True)) == {"id": client_id, "page": "2"}
    assert address.isascii() and address.isprintable() and " " not in address


def test_a_long_name_is_named_by_its_beginning_and_its_digest() -> None:
    names = ["y" * 60_000, "y" * 60_001, "\u20ac" * 700]
    assert all(not links.is_short(name) for name in names)
    addresses = [links.of_client("/session", name) for name in names]
    assert len(set(addresses)) == 3 and max(map(len, addresses)) < 1000
    assert links.fields_of_client(names[0]) == {
        "start": "y" * links.START,
        "digest": links.digest(names[0]),
    }
    assert links.fields_of_client("boat") == {"id": "boat"}


def test_an_anchor_is_the_same_each_time_and_another_for_another_name() -> None:
    assert links.anchor("s", "a") == links.anchor("s", "a")
    assert len({links.anchor("s", "a"), links.anchor("s", "b"), links.anchor("c", "a")}) == 3


def test_without_fields_an_address_is_its_path() -> None:
    assert links.url("/storage") == "/storage"
    assert links.url("/", sort="", match=None) == "/"

"""Origins are taken apart and compared, not looked at from the beginning."""

import pytest

from broker.admin.problems import Refused
from broker.admin.web.origins import Origins, names_of, origin_of

PUBLIC = ("https://mqtt.example", "https://[2001:db8::1]:8443")


@pytest.mark.parametrize(
    ("text", "origin"),
    [
        ("https://mqtt.example", ("https", "mqtt.example", 443)),
        ("HTTPS://MQTT.example:443", ("https", "mqtt.example", 443)),
        ("http://127.0.0.1:8080", ("http", "127.0.0.1", 8080)),
        ("http://[::1]", ("http", "::1", 80)),
        ("null", None),
        ("", None),
        ("mqtt.example", None),
        ("file:///x", None),
        ("ftp://mqtt.example", None),
        ("https://mqtt.example/", None),
        ("https://mqtt.example?", None),
        ("https://mqtt.example#", None),
        ("https://mqtt.example:", None),
        ("https://mqtt.example:0", None),
        ("https://mqtt.example:x", None),
        ("https://mqtt.example:99999", None),
        ("https://user@mqtt.example", None),
        ("https://[::1", None),
        ("https://mqtt.example https://evil.example", None),
        ("https://m\u00fcller.example", None),
    ],
)
def test_a_text_is_an_origin_or_none(text: str, origin: tuple[str, str, int] | None) -> None:
    assert origin_of(text) == origin


@pytest.mark.parametrize(
    ("host", "origin", "scheme"),
    [
        ("127.0.0.1:8080", "http://127.0.0.1:8080", "http"),
        ("Admin.Example", "https://admin.example", "https"),
        ("admin.example:443", "https://admin.example", "https"),
        ("127.0.0.1:8080", "https://mqtt.example", "http"),
        ("127.0.0.1:8080", "https://mqtt.example:443", "http"),
        ("127.0.0.1:8080", "https://[2001:DB8::1]:8443", "http"),
        ("127.0.0.1:8080", None, "http"),
    ],
)
def test_our_own_pages_may_change_something(host: str, origin: str | None, scheme: str) -> None:
    headers = {"host": host, **({} if origin is None else {"origin": origin})}
    Origins(PUBLIC).check(headers, scheme)
    Origins(PUBLIC).check({**headers, "sec-fetch-site": "same-origin"}, scheme)


@pytest.mark.parametrize(
    "origin",
    [
        "http://127.0.0.1",
        "https://127.0.0.1:8080",
        "http://mqtt.example",
        "https://mqtt.example.evil.example",
        "https://mqtt.example:8443",
        "https://mqtt.example@evil.example",
        "https://evil.example/https://mqtt.example",
        "https://mqtt.exampl",
        "null",
        "",
    ],
)
def test_pages_of_others_may_not(origin: str) -> None:
    with pytest.raises(Refused, match="another site"):
        Origins(PUBLIC).check({"host": "127.0.0.1:8080", "origin": origin}, "http")


@pytest.mark.parametrize("site", ["cross-site", "same-site", "x"])
def test_a_browser_that_says_it_comes_from_elsewhere_is_believed(site: str) -> None:
    headers = {"host": "mqtt.example", "origin": "https://mqtt.example", "sec-fetch-site": site}
    with pytest.raises(Refused, match="another site"):
        Origins(PUBLIC).check(headers, "https")


def test_the_names_of_public_addresses_have_no_port() -> None:
    assert names_of(PUBLIC) == {"mqtt.example", "[2001:db8::1]"}

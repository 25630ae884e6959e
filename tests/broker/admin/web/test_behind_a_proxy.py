"""The dashboard behind a reverse proxy that ends TLS: names, origins, cookies, addresses."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from broker.admin.access.lockout import ADDRESS_FAILURES_MAX
from tests.broker.admin.pages.scene import add_users, csrf_in
from tests.broker.admin.running import PASSWORD, PATIENCE_S, Running
from tests.broker.admin.web.proxy import Proxy

PUBLIC = "https://mqtt.example"


@pytest.fixture(scope="module")
def behind(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A broker whose HTTP API trusts the proxies of this machine."""
    running = Running(
        tmp_path_factory.mktemp("proxy"),
        HOLDFAST__ADMIN__PUBLIC_URLS=PUBLIC,
        HOLDFAST__ADMIN__TRUSTED_PROXIES="127.0.0.1",
    )
    try:
        running.start()
        add_users(running)
        yield running
    finally:
        running.close()


@pytest.fixture
def proxy(behind: Running) -> Iterator[Proxy]:
    """A proxy that passes on the name that the browser has asked for."""
    made = Proxy(behind.admin_port, passes_host=True)
    yield made
    made.close()


class Browser:
    """A browser that keeps cookies as if it had asked by TLS."""

    def __init__(self, proxy: Proxy, address: str, **headers: str) -> None:
        self.cookies: dict[str, str] = {}
        self._client = httpx.Client(
            base_url=f"http://127.0.0.1:{proxy.port}",
            headers={
                "host": "mqtt.example",
                "accept": "text/html",
                "origin": PUBLIC,
                "sec-fetch-site": "same-origin",
                "x-forwarded-for": address,
                **headers,
            },
            timeout=PATIENCE_S,
            trust_env=False,
        )

    def __enter__(self) -> "Browser":
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def ask(self, method: str, path: str, **fields: str) -> httpx.Response:
        """Send a request with the cookies, and keep those of the answer."""
        self._client.cookies.clear()
        cookie = "; ".join(f"{name}={value}" for name, value in self.cookies.items())
        data = fields if method == "POST" else None
        answer = self._client.request(method, path, headers={"cookie": cookie}, data=data)
        for line in answer.headers.get_list("set-cookie"):
            name, _, rest = line.partition("=")
            assert "secure" in rest.lower() or "max-age=0" in rest.lower(), line
            self.cookies[name] = rest.partition(";")[0]
        return answer

    def log_in(self) -> httpx.Response:
        """Send the form."""
        form = csrf_in(self.ask("GET", "/login").text)
        return self.ask("POST", "/login", name="olga", password=PASSWORD, csrf=form)


@pytest.mark.parametrize("passes_host", [True, False])
def test_one_logs_in_and_acts_through_a_proxy(behind: Running, passes_host: bool) -> None:
    proxy = Proxy(behind.admin_port, passes_host=passes_host)
    try:
        with Browser(proxy, "203.0.113.7") as browser:
            assert browser.log_in().status_code == 303
            assert "__Host-holdfast" in browser.cookies
            page = browser.ask("GET", "/storage")
            assert page.status_code == 200
            assert page.headers["strict-transport-security"]
            done = browser.ask("POST", "/storage/reclaim", csrf=csrf_in(page.text))
            assert done.status_code == 303, done.text
    finally:
        proxy.close()
    line = next(each for each in behind.log_lines()[::-1] if each["what"] == "reclaim storage")
    assert (line["name"], line["from"]) == ("olga", "203.0.113.7")


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "https://mqtt.example.evil.example"},
        {"origin": "http://mqtt.example"},
        {"origin": "null"},
        {"sec-fetch-site": "cross-site"},
    ],
)
def test_pages_of_others_change_nothing(proxy: Proxy, headers: dict[str, str]) -> None:
    with (
        Browser(proxy, "203.0.113.7") as right,
        Browser(proxy, "203.0.113.7", **headers) as wrong,
    ):
        right.log_in()
        csrf = csrf_in(right.ask("GET", "/storage").text)
        wrong.cookies = dict(right.cookies)
        answer = wrong.ask("POST", "/storage/reclaim", csrf=csrf)
        assert answer.status_code == 403 and "another site" in answer.text


def test_a_name_that_is_not_ours_is_not_answered(proxy: Proxy) -> None:
    with Browser(proxy, "203.0.113.7", host="evil.example") as browser:
        assert browser.ask("GET", "/login").status_code == 421


def test_an_address_that_fails_too_often_waits_and_the_others_do_not(
    behind: Running, proxy: Proxy
) -> None:
    with Browser(proxy, "203.0.113.66") as bad, Browser(proxy, "198.51.100.1") as good:
        answer = bad.ask("GET", "/login")
        for number in range(ADDRESS_FAILURES_MAX):
            fields = {"name": f"guess-{number}", "password": "x", "csrf": csrf_in(answer.text)}
            answer = bad.ask("POST", "/login", **fields)
            assert answer.status_code == 401
        assert bad.log_in().status_code == 429
        assert good.log_in().status_code == 303
    lines = [each for each in behind.log_lines() if each["outcome"] == "locked out"]
    assert {each["from"] for each in lines} == {"203.0.113.66"}


def test_without_trust_a_proxy_is_just_another_client(tmp_path: Path) -> None:
    running = Running(tmp_path, HOLDFAST__ADMIN__PUBLIC_URLS=PUBLIC)
    try:
        running.start().make_tokens()
        proxy = Proxy(running.admin_port, passes_host=True)
        try:
            headers = {
                "host": "mqtt.example",
                "x-forwarded-for": "203.0.113.7",
                "authorization": f"Bearer {running.tokens['operator']}",
            }
            url = f"http://127.0.0.1:{proxy.port}/api/v1/storage/reclaim"
            answer = httpx.post(url, headers=headers, timeout=PATIENCE_S, trust_env=False)
            assert answer.status_code == 200, answer.text
        finally:
            proxy.close()
        assert {each["from"] for each in running.log_lines()} == {"127.0.0.1"}
    finally:
        running.close()

"""The process: health, TLS, a new certificate, a broker that goes and comes back, bad starts."""

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path

import httpx

from broker.admin.api.table import BASE
from tests.broker.admin.application import Application
from tests.broker.admin.running import Running
from tests.broker.network.certificates import Authority
from tests.durability.rawclient import RawClient


def test_a_broker_that_is_killed_is_told_and_comes_back(run_one: Callable[..., Running]) -> None:
    running = run_one()
    del running.broker.env["HOLDFAST__ADMIN__LISTEN"]
    running.broker.restart()
    running.start_alone()
    viewer = running.http("viewer")
    assert viewer.get(BASE + "/storage").status_code == 200
    running.broker.kill()
    silent = viewer.get(BASE + "/storage")
    assert silent.status_code == 503
    assert silent.headers["retry-after"] == "2"
    assert silent.json()["detail"].startswith("the broker does not answer")
    assert viewer.get(BASE + "/sessions").status_code == 200
    running.wait(lambda: running.health() == (200, False))
    running.broker.start()
    assert viewer.get(BASE + "/storage").status_code == 200
    running.wait(lambda: running.health() == (200, True))


def test_a_frozen_broker_holds_up_no_list(run_one: Callable[..., Running]) -> None:
    running = run_one()
    running.owe("boat", 1)
    running.broker.freeze()
    assert running.http("viewer").get(BASE + "/sessions").status_code == 200
    status, _ = running.health()
    assert status == 200
    running.broker.thaw()
    assert running.http("viewer").get(BASE + "/storage").status_code == 200


def test_clients_lose_nothing_when_the_process_is_killed(run_one: Callable[..., Running]) -> None:
    running = run_one()
    client = RawClient(running.broker.port, "steady")
    client.durable()
    client.subscribe("a")
    before = running.admin_pid()
    os.kill(before, signal.SIGKILL)
    client.publish("a", b"1", qos=1)
    assert [each.payload for each in client.take(1)] == [b"1"]
    running.broker.wait_for_event("admin_ended")
    running.wait(lambda: running.health() == (200, True))
    assert running.admin_pid() != before
    client.publish("a", b"2", qos=1)
    assert [each.payload for each in client.take(1)] == [b"2"]
    client.drop()


def test_the_process_ends_with_its_broker_however_that_ends(
    run_one: Callable[..., Running],
) -> None:
    running = run_one()
    running.broker.kill()
    running.wait(lambda: running.health()[0] == 0)
    running.broker.start()
    running.wait(lambda: running.health() == (200, True))
    assert running.broker.stop() == 0
    assert running.health()[0] == 0


def test_with_tls_everything_is_served_as_without(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "authority")
    certificate, key = authority.server()
    running = Running(
        tmp_path / "tls",
        HOLDFAST__ADMIN__TLS_CERTIFICATE=str(certificate),
        HOLDFAST__ADMIN__TLS_KEY=str(key),
    )
    try:
        running.broker.start()
        running.make_tokens()
        headers = {"Authorization": f"Bearer {running.tokens['viewer']}"}
        url = f"https://localhost:{running.admin_port}"
        context = authority.client_context()
        with httpx.Client(base_url=url, verify=context, headers=headers, trust_env=False) as client:

            def answers() -> bool:
                try:
                    return client.get(BASE + "/me").status_code == 200
                except httpx.TransportError:
                    return False

            running.wait(answers)
            assert "strict-transport-security" in client.get(BASE + "/me").headers
    finally:
        running.close()


def test_a_bug_is_an_answer_and_a_line_in_the_log_without_a_traceback(tmp_path: Path) -> None:
    application = Application(tmp_path)
    token = application.token()

    def broken(text: str, now_ms: int) -> None:
        raise ZeroDivisionError("a bug")

    application.services.tokens.find = broken  # type: ignore[method-assign]

    async def story(client: httpx.AsyncClient) -> None:
        answer = await client.get(BASE + "/me", headers={"Authorization": f"Bearer {token}"})
        assert answer.status_code == 500
        assert answer.json()["detail"] == "an internal error, which is in the log"
        assert "default-src 'none'" in answer.headers["content-security-policy"]

    application.play(story)
    line = json.loads(application.lines.getvalue())
    assert (line["event"], line["message"]) == ("admin_bug", "ZeroDivisionError: a bug")
    assert line["where"].startswith("test_server.py:")

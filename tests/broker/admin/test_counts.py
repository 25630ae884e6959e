"""Requests are counted by role, kind and outcome, and told as Prometheus reads them."""

from pathlib import Path

import httpx

from broker.admin.access.roles import Role
from broker.admin.api.table import BASE
from tests.broker.admin.application import Application


def test_every_request_is_counted_once_by_who_asks_and_how_it_ended(tmp_path: Path) -> None:
    application = Application(tmp_path)
    viewer, operator = application.token(Role.VIEWER), application.token(Role.OPERATOR)

    async def story(client: httpx.AsyncClient) -> None:
        def by(token: str) -> dict[str, str]:
            return {"Authorization": f"Bearer {token}"}

        for _ in range(2):
            await client.get(BASE + "/me", headers=by(viewer))
        await client.get(BASE + "/me")
        await client.get(BASE + "/me", headers=by("wrong"))
        await client.post(BASE + "/storage/reclaim", headers=by(viewer))
        await client.post(BASE + "/storage/reclaim", headers=by(operator))  # no broker
        await client.get(BASE + "/me", headers={**by(viewer), "Host": "evil.example"})
        told = await client.get(BASE + "/metrics", headers=by(operator))
        assert told.headers["content-type"].startswith("text/plain; version=0.0.4")
        lines = {line for line in told.text.splitlines() if line.startswith("holdfast_admin_req")}
        counts = {
            'role="viewer",kind="read",status="2xx"': 2,
            'role="none",kind="read",status="4xx"': 2,
            'role="viewer",kind="change",status="4xx"': 1,
            'role="operator",kind="change",status="5xx"': 1,
        }
        for labels, count in counts.items():
            parts = labels.split(",")
            labels = ",".join(sorted(parts))
            assert f"holdfast_admin_requests_total{{{labels}}} {count}.0" in lines, lines
        assert "holdfast_admin_broker_answers 0.0" in told.text
        assert "holdfast_admin_event_streams 0.0" in told.text

    application.play(story)

"""`holdfast session` reads the database of a broker, running or not."""

import json
from collections.abc import Callable

import pytest

from tests.broker.cli.commands import Run, complaint
from tests.durability.process import BrokerProcess
from tests.durability.rawclient import RawClient

pytestmark = pytest.mark.full  # starts processes


def test_sessions_are_listed_while_the_broker_runs_and_after_it_was_killed(
    run: Run, start: Callable[..., BrokerProcess]
) -> None:
    broker = start()
    client = RawClient(broker.port, "boat")
    client.durable()
    client.subscribe("a/#", "b")
    client.disconnect()
    for _ in range(2):
        listing = run("session", "list", "--data-dir", str(broker.data_dir))
        assert listing.stderr == ""
        assert listing.stdout.splitlines()[1].split()[:2] == ["boat", "offline"]
        page = run("session", "show", "boat", "--data-dir", str(broker.data_dir))
        assert "  a/#  qos=1\n  b  qos=1\n" in page.stdout
        found = run("session", "list", "-o", "json", "--data-dir", str(broker.data_dir))
        assert [session["client_id"] for session in json.loads(found.stdout)] == ["boat"]
        if broker.is_running():
            broker.kill()
    line = complaint(run("session", "show", "nobody", "--data-dir", str(broker.data_dir)), 1)
    assert line == "holdfast: no session 'nobody'"


def test_sessions_of_no_database_are_refused(run: Run) -> None:
    assert "absent: no database in it" in complaint(
        run("session", "list", "--data-dir", "absent"), 1
    )

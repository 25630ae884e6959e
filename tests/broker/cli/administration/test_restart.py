"""`holdfast restart-check`: a running broker is asked what a restart costs."""

import json
from collections.abc import Callable

from tests.broker.cli.commands import Run
from tests.durability.process import BrokerProcess
from tests.durability.rawclient import RawClient


def test_a_running_broker_is_asked(run: Run, start: Callable[..., BrokerProcess]) -> None:
    broker = start()
    where = ("--data-dir", str(broker.data_dir))
    client = RawClient(broker.port, "clean")
    client.connect(clean_start=True)
    good = run("restart-check", *where)
    assert good.returncode == 0
    assert "1 have clean sessions" in good.stdout
    assert good.stdout.endswith("nothing is against a restart\n")
    missing = {"HOLDFAST__AUTH__PASSWORD_FILE": "/nowhere/passwords"}
    bad = run("restart-check", *where, **missing)
    assert bad.returncode == 1
    assert "against it: it would not start: " in bad.stdout and "/nowhere/passwords" in bad.stdout
    facts = json.loads(run("restart-check", "-o", "json", *where).stdout)
    assert facts["against_it"] == [] and facts["durability"] == "fsync"

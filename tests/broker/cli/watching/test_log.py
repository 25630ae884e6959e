"""`holdfast log level`: more or less of the log of a running broker."""

from collections.abc import Callable

from tests.broker.cli.commands import Run
from tests.durability.process import BrokerProcess
from tests.durability.rawclient import RawClient


def test_the_level_of_a_running_broker_is_set(
    run: Run, start: Callable[..., BrokerProcess]
) -> None:
    broker = start()
    where = ("--data-dir", str(broker.data_dir))
    quiet = run("log", "level", "error", *where)
    assert (quiet.returncode, quiet.stderr) == (0, "")
    assert quiet.stdout == (
        "the log has error until a restart, SIGHUP or `holdfast config reload`; configured: info\n"
    )
    RawClient(broker.port, "unheard").connect(clean_start=True)
    loud = run("log", "level", "info", "--for", "10m", *where)
    assert loud.stdout == "the log has info for 600 s; configured: info\n"
    RawClient(broker.port, "heard").connect(clean_start=True)
    broker.wait_for_event("client_connected")
    assert '"heard"' in broker.log() and '"unheard"' not in broker.log()
    too_long = run("log", "level", "info", "--for", "2d", *where)
    assert (too_long.returncode, "'2d': expected 24h at most" in too_long.stderr) == (2, True)
    assert run("log", "level", "loud", *where).returncode == 2

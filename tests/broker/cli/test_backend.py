"""`holdfast backend`: what an operator is told, and the exit status for scripts."""

from pathlib import Path

import pytest

from broker.cli.backend import _table
from broker.observe.backend_figures import CONNECTED, DISCONNECTED, BackendFigures
from broker.process.feeding import as_object
from tests.broker.cli.commands import Run, complaint

pytestmark = pytest.mark.full  # starts processes

# Nobody listens on this port, and every user may be refused by it.
CACHE = '[backends.cache]\nservers = "127.0.0.1:1"\ntimeout = "1s"\n'
RULE = '[[rules]]\non = "client.connected"\nbackend = "cache"\naction = "%s"\n'


def test_a_table_says_what_is_not_as_it_should_be() -> None:
    up, down = BackendFigures("up", is_required=False), BackendFigures("down", is_required=False)
    up.state, up.is_up, up.cursor, up.why = CONNECTED, True, (12, 3), "refused once"
    down.state, down.why, down.is_paused, down.gaps = DISCONNECTED, "refused", True, 2
    assert _table([as_object(up), as_object(down)]) == [
        "BACKEND  STATE         POSITION  EVENT  BEHIND  BYTES  LAG S  ROWS  DEAD",
        "up       connected     12        3      0       0      0.0    0     0",
        "down     disconnected  0         0      0       0      0.0    0     0",
        "down: refused",
        "down: paused; `holdfast backend resume down` sends its rows",
        "down: rows were lost 2 times; the log says which",
    ]


def test_what_cannot_be_asked_is_one_line(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "holdfast.toml"
    path.write_text(CACHE)
    for word in ("check", "create"):
        assert "no backend in the configuration" in complaint(run("backend", word), 2)
    named = run("backend", "check", "other", "-c", str(path))
    assert "no backend 'other' in the configuration" in complaint(named, 2)
    for words, code in ((("status",), 2), (("pause", "cache"), 1), (("resume", "cache"), 1)):
        result = run("backend", *words, "-c", str(path), "--data-dir", "absent")
        assert "no broker runs on data directory absent" in complaint(result, code)


@pytest.mark.parametrize("command", [("backend", "check"), ("config", "show"), ("serve",)])
def test_a_rule_that_cannot_be_carried_out_is_refused_everywhere(
    run: Run, tmp_path: Path, command: tuple[str, ...]
) -> None:
    path = tmp_path / "holdfast.toml"
    path.write_text(CACHE + RULE % "on_client_conected")
    line = complaint(run(*command, "-c", str(path)), 2)
    assert line.endswith(
        "rules[1].action = 'on_client_conected': expected one of "
        "on_client_connected, on_subscribe_lookup; did you mean on_client_connected?"
    )


def test_a_store_of_keys_needs_no_tables(run: Run, tmp_path: Path) -> None:
    pytest.importorskip("redis")
    path = tmp_path / "holdfast.toml"
    path.write_text(CACHE)
    result = run("backend", "create", "-c", str(path))
    assert (result.returncode, result.stdout) == (0, "cache: nothing was missing\n")

"""The scenarios and the works they measure belong together."""

import struct
from pathlib import Path

import pytest

from bench import brokers, fill, run, scenarios
from bench.brokers import EMQX, FLASHMQ, MOSQUITTO, NANOMQ, OURS, SQLITE
from bench.goals import WORKS
from broker.security.authenticators import AllowAll, AllowAllPolicy
from session.counters import Counters
from session.engine import Engine
from session.settings import Settings
from storage.local.data_directory import DataDirectory
from storage.local.rocks import RocksStore
from storage.tables.tables import FAMILIES


def test_every_work_is_measured_by_one_scenario() -> None:
    measured = [work for scenario in scenarios.ALL for work in scenario.works]
    assert sorted(measured) == sorted(work.key for work in WORKS)


def test_every_scenario_is_asked_of_holdfast_both_ways() -> None:
    assert all(set(OURS) <= set(scenario.kinds) for scenario in scenarios.ALL)


def test_shares_are_of_one_core() -> None:
    line = {
        "broker": {"cpu_s": 3.0, "busiest_s": 2.0, "others_s": 0.5},
        "gen_cpu_s": 1.0,
    }
    assert scenarios.shares(line, 2.0) == {
        "broker": 1.0,
        "broker_total": 1.5,
        "generator": 0.5,
        "others": 0.25,
    }


def test_an_outcome_is_ok_when_every_line_is() -> None:
    good = {"ok": True, "errors": {}}
    bad = {"ok": False, "errors": {}, "lost": 2}
    assert scenarios.Outcome({}, [good, good]).ok
    outcome = scenarios.Outcome({}, [good, bad])
    assert not outcome.ok
    assert outcome.trouble == "lost 2"


def test_what_cannot_run_is_a_cell_that_says_so() -> None:
    def measure(context: scenarios.Context, kind: str) -> scenarios.Outcome:
        raise brokers.BenchError("no such broker\nand more")

    class Quiet:
        lines: list[object] = []  # noqa: RUF012

    scenario = scenarios.Scenario("away", measure, works=("publish", "drain"))
    context = scenarios.Context(Quiet(), seconds=1, is_quick=True, sessions=1)  # type: ignore[arg-type]
    cells = run.one(context, scenario, FLASHMQ, 1)
    assert [(cell["work"], cell["ok"]) for cell in cells] == [("publish", False), ("drain", False)]
    assert cells[0]["trouble"] == "flashmq, publish: no such broker"


@pytest.mark.parametrize(
    ("sessions", "is_quick", "scaled"),
    [(1_000_000, False, {}), (10_000, False, {"sessions": 0.01})],
)
def test_works_below_their_size_are_known(
    sessions: int, is_quick: bool, scaled: dict[str, float]
) -> None:
    context = scenarios.Context(
        None,  # type: ignore[arg-type]
        seconds=1,
        is_quick=is_quick,
        sessions=sessions,
    )
    assert run.scaled(context) == scaled


@pytest.mark.parametrize(
    ("template", "known"), [(brokers._FLASHMQ, "port 1"), (brokers._NANOMQ, "127.0.0.1:1")]
)
def test_configuration_templates_are_complete(template: str, known: str) -> None:
    text = template.format(port=1, directory="d")
    assert known in text
    assert text.count("{") == text.count("}") > 0


def test_only_what_is_installed_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    places = {
        MOSQUITTO: "/usr/sbin/mosquitto",
        SQLITE: "/usr/sbin/mosquitto",
        NANOMQ: "/bin/nanomq",
    }
    monkeypatch.setattr(brokers, "program", places.get)
    monkeypatch.setattr(brokers, "sqlite_plugin", lambda: None)
    assert brokers.installed() == [MOSQUITTO, NANOMQ]
    assert EMQX not in brokers.installed()


def test_the_readiness_probe_is_a_proper_connect() -> None:
    packet = brokers._CONNECT
    assert packet[1] == len(packet) - 2
    (length,) = struct.unpack(">H", packet[12:14])
    assert packet[14:] == b"ready"
    assert length == 5


def test_filled_sessions_are_there_after_a_restart(tmp_path: Path) -> None:
    fill.fill(tmp_path / "data", sessions=1_100, prefix="fill", run=1)
    directory = DataDirectory(tmp_path / "data")
    store = RocksStore(directory.database, families=FAMILIES)
    engine = Engine(
        store,
        Settings(),
        authenticator=AllowAll(),
        policy=AllowAllPolicy(),
        new_client_id=lambda: "auto",
        counters=Counters(),
    )
    recovery = engine.start(1 << 45)
    assert (recovery.sessions, recovery.were_connected) == (1_100, 0)
    store.close()
    directory.close()


@pytest.mark.parametrize(
    ("kind", "said", "fits"),
    [
        (brokers.COMPILED, "holdfast 0.1.0, compiled (by mypyc)", True),
        (brokers.COMPILED, "holdfast 0.1.0, pure Python (run from its sources)", False),
        (brokers.HOLDFAST, "holdfast 0.1.0, pure Python (run from its sources)", True),
        (brokers.HOLDFAST, "holdfast 0.1.0, compiled (by mypyc)", False),
        (brokers.HOLDFAST, "", False),
    ],
)
def test_the_build_that_is_measured_is_the_one_that_is_named(
    kind: str, said: str, fits: bool
) -> None:
    if fits:
        brokers.check_build(kind, said)
    else:
        with pytest.raises(brokers.BenchError):
            brokers.check_build(kind, said)

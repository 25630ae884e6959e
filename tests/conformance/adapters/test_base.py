"""A broker as a process: started, stopped, killed, started again on the same data."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from conformance.adapters import base
from conformance.adapters.base import AdapterError, Broker, Launch, Ports
from conformance.connection import open_tcp
from conformance.failure import Failure, NotRun
from tests.conformance.conftest import ToyAdapter


@pytest.fixture
def ports() -> Iterator[Ports]:
    made = Ports()
    yield made
    made.close()


def test_a_broker_listens_when_one_gets_it(
    toy: type[ToyAdapter], tmp_path: Path, ports: Ports
) -> None:
    broker = base.launch(toy(), tmp_path / "b", ports, {})
    assert broker.is_running
    open_tcp(broker.host, broker.port, 1.0).close()
    broker.close()
    assert not broker.is_running


@pytest.mark.parametrize(("end", "code"), [("stop", 0), ("kill", -9)])
def test_it_starts_again_on_the_same_data_and_port(
    toy: type[ToyAdapter], tmp_path: Path, ports: Ports, end: str, code: int
) -> None:
    broker = base.launch(toy(), tmp_path / "b", ports, {})
    port = broker.port
    getattr(broker, end)()
    assert (broker.is_running, broker.exit_code) == (False, code)
    getattr(broker, end)()  # it is over already
    broker.start()
    assert (broker.is_running, broker.port, broker.starts) == (True, port, 2)
    assert (tmp_path / "b" / "starts").read_text() == "2"
    broker.close()


def test_a_broker_we_only_know_the_address_of_is_left_alone() -> None:
    broker = Broker("somebody", "127.0.0.1", 1883)
    assert broker.is_running
    for act in (broker.start, broker.stop, broker.kill):
        with pytest.raises(NotRun, match="adapter"):
            act()
    broker.close()
    assert broker.log() == ""


def test_a_broker_that_has_died_is_told_from_one_that_only_closed_a_connection(
    toy: type[ToyAdapter], tmp_path: Path, ports: Ports
) -> None:
    broker = base.launch(toy(), tmp_path / "b", ports, {})
    assert not broker.has_died()
    broker.kill()
    assert broker.has_died()
    assert not Broker("somebody", "127.0.0.1", 1).has_died()


def stubborn(tmp_path: Path, ports: Ports, program: str) -> Broker:
    port = ports.take()
    command = [sys.executable, "-S", "-c", program.replace("PORT", str(port))]
    return Broker("stubborn", base.HOST, port, launch=Launch(command), directory=tmp_path)


def test_a_broker_that_was_ended_with_its_run_is_not_started_again(
    toy: type[ToyAdapter], ports: Ports, tmp_path: Path
) -> None:
    broker = base.launch(toy(), tmp_path / "b", ports, {})
    broker.close()
    with pytest.raises(AdapterError, match="the run is over"):
        broker.start()
    assert not broker.is_running
    with pytest.raises(AdapterError, match="the run is over"):
        base.launch(toy(), tmp_path / "c", ports, {}, Broker.close)


def test_a_broker_that_ignores_sigterm_is_killed_and_blamed(
    tmp_path: Path, ports: Ports, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(base, "STOP_S", 0.1)
    broker = stubborn(
        tmp_path,
        ports,
        "import signal, socket\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "s = socket.create_server(('127.0.0.1', PORT))\n"
        "while True: s.accept()",
    )
    broker.start()
    with pytest.raises(Failure, match="did not end"):
        broker.stop()
    assert not broker.is_running


def test_a_broker_that_never_listens_is_an_error(
    tmp_path: Path, ports: Ports, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(base, "START_S", 0.1)
    broker = stubborn(tmp_path, ports, "import time; time.sleep(60)")
    with pytest.raises(AdapterError, match="does not listen"):
        broker.start()
    assert not broker.is_running


def test_a_program_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    launch = Launch([str(tmp_path / "no such program")])
    broker = Broker("gone", base.HOST, 1, launch=launch, directory=tmp_path)
    with pytest.raises(AdapterError, match="cannot start it"):
        broker.start()


def test_ports_are_given_out_once(ports: Ports) -> None:
    taken = [ports.take() for _ in range(50)]
    assert len(set(taken)) == 50
    assert all(port in base.PORTS for port in taken)


def test_two_runs_do_not_share_ports(ports: Ports) -> None:
    other = Ports()
    assert not {ports.take() for _ in range(60)} & {other.take() for _ in range(60)}
    other.close()

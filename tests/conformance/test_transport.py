"""A broker that wants a name, TLS or WebSocket: the suite gets in, or says in a line why not."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.security import password_file, password_hashes
from tests.broker.network.certificates import Authority
from tests.durability.process import ROOT, BrokerProcess, free_port, holdfast

LISTENERS = ("tls", "mutual", "wss")


class Site:
    """A broker with every kind of listener."""

    def __init__(self, directory: Path) -> None:
        authority = Authority(directory / "ca")
        certificate, key = map(str, authority.server())
        self.ca = str(authority.file)
        self.shown = tuple(map(str, authority.issue("anna")))
        users = directory / "users"
        password_file.save(str(users), {"anna": password_hashes.hasher().hash("sesame")})
        self.ports = {name: free_port() for name in LISTENERS}
        environment = {"HOLDFAST__AUTH__PASSWORD_FILE": str(users)}
        for name, port in self.ports.items():
            prefix = f"HOLDFAST__LISTENER__{name.upper()}__"
            environment[prefix + "PORT"] = str(port)
            environment[prefix + "TLS_CERTIFICATE"] = certificate
            environment[prefix + "TLS_KEY"] = key
        environment["HOLDFAST__LISTENER__WSS__TYPE"] = "websocket"
        environment["HOLDFAST__LISTENER__MUTUAL__TLS_CLIENT_CA"] = self.ca
        self.broker: BrokerProcess = holdfast(directory / "broker", env=environment).start()

    def run(self, port: int, *options: str, password: str = "") -> tuple[int, str]:
        """Run two checks and return the status and everything that was said."""
        result = subprocess.run(
            [
                *(sys.executable, "-m", "conformance", "-q", "--port", str(port), *options),
                *("--version", "5.0", "-k", "3.12.4-1 or 3.1.4-3"),
            ],
            env={**os.environ, "PYTHONPATH": str(ROOT), "CONFORMANCE_PASSWORD": password},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=60,
            check=False,
        )
        return result.returncode, result.stdout


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    site = Site(tmp_path_factory.mktemp("site"))
    yield site
    site.broker.close()


ANNA = ("--username", "anna", "--password", "sesame")


def test_whoever_is_not_let_in_is_told_so_in_one_line(site: Site) -> None:
    port = site.broker.port
    place = f"python -m conformance: 127.0.0.1:{port}: refused: "
    hint = "; see --username and --password\n"
    assert site.run(port) == (1, place + "not authorized (CONNACK 0x87)" + hint)
    wrong = (1, place + "bad user name or password (CONNACK 0x86)" + hint)
    assert site.run(port, "--username", "anna", "--password", "wrong") == wrong
    mutual = site.ports["mutual"]
    status, said = site.run(mutual, "--ca", site.ca, *ANNA)
    assert status == 1
    assert said.startswith(f"python -m conformance: 127.0.0.1:{mutual}: refused: TLS: ")
    assert "certificate required" in said and said.endswith("; see --cert\n")


def test_a_broker_whose_certificate_is_not_trusted_is_not_talked_to(site: Site) -> None:
    status, said = site.run(site.ports["tls"], "--tls", *ANNA)
    assert status == 1
    assert "no connection: " in said and "certificate verify failed" in said.lower()


def test_a_user_name_and_the_password_of_the_environment_are_in_every_connect(site: Site) -> None:
    status, said = site.run(site.broker.port, "--username", "anna", password="sesame")
    assert (status, "2 passed" in said) == (0, True), said


@pytest.mark.parametrize("name", LISTENERS)
def test_checks_run_over_tls_with_a_certificate_and_over_websocket(site: Site, name: str) -> None:
    more = ["--cert", site.shown[0], "--key", site.shown[1]] if name == "mutual" else []
    more += ["--websocket"] if name == "wss" else []
    status, said = site.run(site.ports[name], "--ca", site.ca, *more, *ANNA)
    assert (status, "2 passed" in said) == (0, True), said


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (["--adapter", "holdfast", "--tls"], "no --tls with it"),
        (["--key", "k.pem"], "--key needs --cert as well"),
        (["--ca", "/nowhere.pem"], "/nowhere.pem: not usable as certificates and key: No such"),
    ],
)
def test_options_that_do_not_go_together_are_status_2(options: list[str], complaint: str) -> None:
    result = subprocess.run(
        [sys.executable, "-m", "conformance", *options],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (result.returncode, result.stdout) == (2, "")
    assert complaint in result.stderr and result.stderr.count("\n") == 1

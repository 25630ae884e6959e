"""Every door of a broker asks the same questions: C8, C14, C16 and C19 of docs/security.md."""

import contextlib
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

from mqtt import reasons
from mqtt.decoder import Decoder
from mqtt.encoder import encode
from mqtt.packets import Connack, Connect, Disconnect, Puback, Publish
from tests.broker.network.certificates import Authority
from tests.broker.network.webclient import frame, request
from tests.durability.process import ROOT, free_port, holdfast
from tests.durability.rawclient import RawClient
from tests.durability.scene import Scene
from tests.security.files import PASSWORD, Files

Start = Callable[..., Scene]
RULES: Final = "user ann\ntopic readwrite ann/#\n"
DOORS: Final = ("tcp", "second", "unix", "web", "tls")
SILENT_S: Final = 1.5
CPU_S_MAX: Final = 0.2


class Doors:
    """A broker with a listener of every kind, and a client that knocks at any of them."""

    def __init__(self, tmp_path: Path, start: Start, **env: str) -> None:
        self._authority = Authority(tmp_path / "authority")
        certificate, key = self._authority.server()
        self._path = str(tmp_path / "socket")
        self._ports = {name: free_port() for name in ("second", "web", "tls")}
        for name, port in self._ports.items():
            env[f"HOLDFAST__LISTENER__{name.upper()}__PORT"] = str(port)
        env["HOLDFAST__LISTENER__WEB__TYPE"] = "websocket"
        env["HOLDFAST__LISTENER__TLS__TLS_CERTIFICATE"] = str(certificate)
        env["HOLDFAST__LISTENER__TLS__TLS_KEY"] = str(key)
        env["HOLDFAST__LISTENER__UNIX__TYPE"] = "unix"
        env["HOLDFAST__LISTENER__UNIX__PATH"] = self._path
        self.scene = start(**env)
        self._ports["tcp"] = self.scene.broker.port

    def open(self, door: str) -> socket.socket:
        """Connect, and say nothing."""
        if door == "unix":
            channel = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            channel.settimeout(20)
            channel.connect(self._path)
            return channel
        channel = socket.create_connection(("127.0.0.1", self._ports[door]), timeout=60)
        if door == "tls":
            context = self._authority.client_context()
            return context.wrap_socket(channel, server_hostname="localhost")
        return channel

    def answers(self, door: str, *packets: Any) -> list[Any]:
        """Send these packets and a DISCONNECT; return all that came until the broker closed."""
        data = b"".join(encode(packet, 5) for packet in [*packets, Disconnect(0)])
        with self.open(door) as channel:
            if door == "web":
                channel.sendall(request() + frame(data))
                received = unframed(read_all(channel).partition(b"\r\n\r\n")[2])
            else:
                channel.sendall(data)
                received = read_all(channel)
        return Decoder("client", 0, 5).receive(received)


def read_all(channel: socket.socket) -> bytes:
    """Return everything until the other side ends."""
    received = b""
    with contextlib.suppress(ConnectionResetError):
        while data := channel.recv(4096):
            received += data
    return received


def unframed(data: bytes) -> bytes:
    """Return what is in the binary frames of a server, all of them short."""
    found = b""
    while data:
        size = data[1]
        assert size < 126
        found += data[2 : 2 + size] if data[0] == 0x82 else b""
        data = data[2 + size :]
    return found


# C8: no door without a lock


def test_c08_every_listener_asks_for_passwords_and_rules(
    tmp_path: Path, start_broker: Start
) -> None:
    """CVE-2018-20145: there the rules did not hold for some listeners."""
    doors = Doors(tmp_path, start_broker, **Files(tmp_path, "ann", rules=RULES).environment())
    for door in DOORS:
        for fields, code in (
            ({}, reasons.NOT_AUTHORIZED),
            ({"username": "ann"}, reasons.BAD_USER_NAME_OR_PASSWORD),
            ({"username": "ann", "password": b"wrong"}, reasons.BAD_USER_NAME_OR_PASSWORD),
            ({"username": "eve", "password": PASSWORD}, reasons.BAD_USER_NAME_OR_PASSWORD),
        ):
            (answer,) = doors.answers(door, Connect("c", **fields))
            assert isinstance(answer, Connack) and answer.reason_code == code, (door, fields)
        hello = Connect("c", username="ann", password=PASSWORD)
        messages = [
            Publish(topic, b"x", 1, packet_id=number)
            for number, topic in enumerate(("ann/t", "bob/t", "$SYS/t"), 1)
        ]
        connack, *answers = doors.answers(door, hello, *messages)
        assert connack.reason_code == 0, door
        assert all(isinstance(answer, Puback) for answer in answers)
        codes = [answer.reason_code for answer in answers]
        assert codes[0] < 0x80 and codes[1:] == [reasons.NOT_AUTHORIZED] * 2, door


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_c08_a_broker_open_to_other_machines_has_to_be_asked_for(tmp_path: Path, host: str) -> None:
    """mosquitto 2.0.12: nobody meant to serve everybody. Here it does not start."""
    for name in ("LISTENER", "LISTENER__OTHER"):
        broker = holdfast(tmp_path / name, env={f"HOLDFAST__{name}__HOST": host})
        if name != "LISTENER":
            broker.env[f"HOLDFAST__{name}__PORT"] = str(broker.port + 1)
        broker.launch()
        assert broker.wait_exit(20) == 2
        assert "auth.allow_anonymous = true" in broker.log()
        broker.close()


# C14: doors that nobody comes through


def test_c14_silent_connections_cost_no_processor(tmp_path: Path, start_broker: Start) -> None:
    """mosquitto CVE-2023-5632: one connection without a byte kept a processor busy."""
    doors = Doors(tmp_path, start_broker, HOLDFAST__LIMITS__CONNECT_TIMEOUT="60s")
    with contextlib.ExitStack() as opened:
        for door in DOORS:
            for _ in range(5):
                opened.enter_context(doors.open(door))
            half = opened.enter_context(doors.open(door))
            half.shutdown(socket.SHUT_RD)
        for name in ("web", "tls"):  # and such that stopped in the midst of something
            channel = socket.create_connection(("127.0.0.1", doors._ports[name]), timeout=60)
            opened.enter_context(channel)
            channel.sendall(b"GET /" if name == "web" else b"\x16\x03\x01")
        doors.scene.online("other").ping()
        before = processor_seconds(doors.scene.broker.pid)
        time.sleep(SILENT_S)
        used = processor_seconds(doors.scene.broker.pid) - before
    assert used < CPU_S_MAX, f"{used} s of {SILENT_S} s"


def processor_seconds(pid: int) -> float:
    """Return the processor time of all threads of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


# C16: what others on the machine can read


def run_passwd(*arguments: str, text: str = "") -> subprocess.CompletedProcess[str]:
    """Run `holdfast passwd`."""
    command = [sys.executable, "-m", "broker", "passwd", *arguments]
    return subprocess.run(command, input=text, capture_output=True, text=True, cwd=ROOT)


def test_c16_everything_with_a_secret_in_it_is_its_owners(tmp_path: Path) -> None:
    """CVE-2017-9868: the password file as `passwd` makes it, the data directory, the key in it."""
    path, data = tmp_path / "passwords", tmp_path / "fresh"
    assert run_passwd("-c", str(path), "ann", text="hunter2\n").returncode == 0
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    env = {"HOLDFAST__AUTH__PASSWORD_FILE": str(path), "HOLDFAST__LOG__LEVEL": "debug"}
    broker = holdfast(tmp_path / "broker", env=env)
    broker.arguments = ("--data-dir", str(data))
    broker.start()
    client = RawClient(broker.port, "c")
    client.connect(username="ann", password=b"hunter2")
    wrong = reasons.BAD_USER_NAME_OR_PASSWORD
    client.connect(username="ann", password=b"hunter3", reason=wrong)
    assert stat.S_IMODE(data.stat().st_mode) == 0o700
    assert (data / "auth-key").exists()
    for entry in data.rglob("*"):
        assert stat.S_IMODE(entry.stat().st_mode) & 0o077 == 0, entry
    hashed = path.read_text().strip().rpartition("$")[2]
    for secret in ("hunter2", "hunter3", hashed, (data / "auth-key").read_bytes().hex()):
        assert secret not in broker.log()
    broker.close()
    path.chmod(0o644)
    broker = holdfast(tmp_path / "warned", env={"HOLDFAST__AUTH__PASSWORD_FILE": str(path)})
    broker.start()
    assert "lets others read it" in broker.log()
    broker.close()


def test_c16_a_line_that_is_not_understood_is_not_shown(tmp_path: Path) -> None:
    """It may well be a password."""
    path = tmp_path / "passwords"
    path.write_text("ann:hunter2\n")
    broker = holdfast(tmp_path / "broker", env={"HOLDFAST__AUTH__PASSWORD_FILE": str(path)})
    broker.launch()
    assert broker.wait_exit(20) == 1
    assert "line 1" in broker.log() and "hunter2" not in broker.log()
    broker.close()


def test_c16_the_command_writes_no_line_that_means_something_else(tmp_path: Path) -> None:
    """mosquitto_passwd took names that made another line of the file."""
    path = tmp_path / "passwords"
    assert run_passwd("-c", "-b", str(path), "ann", "x").returncode == 0
    before = path.read_text()
    for name in ("eve:$6$", "eve\nroot", "#eve", "", " eve", "eve\r"):
        assert run_passwd("-b", str(path), name, "x").returncode != 0, name
        assert path.read_text() == before
    assert list(tmp_path.iterdir()) == [path]  # no copy is left behind


# C19: the door for whoever looks after it


def listening(pid: int) -> set[str]:
    """Return the addresses, in hex as the kernel shows them, on which a process listens."""
    inodes = set()
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            inodes.add(str(link.readlink()))
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in inodes:
                found.add(fields[1].partition(":")[0])
    return found


def test_c19_nothing_listens_but_on_loopback(start_broker: Start) -> None:
    """EMQX #17187: the door for metrics tells the version, so it is not for everybody."""
    scene = start_broker()
    assert listening(scene.broker.pid) == {"0100007F"}

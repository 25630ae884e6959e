"""Hosts that can be cut off: each is a network namespace, on a bridge for clients and one for logs.

A town needs a network namespace of its own (`ALONE` starts a command in one), in which nobody else
has addresses. Everything in it ends with that command, however it ends: the namespaces of processes
and networks are gone with their last process, and nothing has a name that would stay. Read next:
`tests.replication.rounds.machines`.
"""

import contextlib
import os
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

CLIENTS: Final = "clients"
LOG: Final = "log"
NETS: Final = (CLIENTS, LOG)
# Whoever is not root is it inside, where that is allowed.
AS_ROOT: Final = () if os.geteuid() == 0 else ("--user", "--map-root-user")
ALONE: Final = (
    "unshare", *AS_ROOT, "--net", "--pid", "--fork", "--kill-child", "--mount-proc",
)  # fmt: skip
PATIENCE_S: Final = 60.0
POLL_S: Final = 0.01
# `ip` and `nsenter`: what a town needs of this machine, tried in one line.
TRIAL: Final = (
    "ip link add name b type bridge && ip link set lo up && "
    "ip link add name v type veth peer name w && nsenter -t $$ -n true"
)


def why_not() -> str:
    """Return in a line why no town can be built here, "" = it can."""
    try:
        tried = subprocess.run(
            [*ALONE, "sh", "-c", TRIAL], capture_output=True, text=True, timeout=PATIENCE_S
        )
    except (OSError, subprocess.TimeoutExpired) as problem:
        return str(problem)
    return tried.stderr.strip().replace("\n", "; ") if tried.returncode else ""


class Host:
    """A network namespace with an address in one net or in both."""

    def __init__(self, name: str, number: int, nets: Sequence[str]) -> None:
        self.name: Final = name
        self._nets: Final = nets
        # A process holds the namespace while no other one is in it.
        self._holder: Final = subprocess.Popen(["unshare", "--net", "sleep", "infinity"])
        self.prefix: Final = ("nsenter", "-t", str(self._holder.pid), "-n")
        self._until_apart()
        _run(*self.prefix, "ip", "link", "set", "lo", "up")
        for net in nets:
            inside, outside = f"{net}0", self._port(net)
            peer = ("peer", "name", inside, "netns", str(self._holder.pid))
            _run("ip", "link", "add", "name", outside, "type", "veth", *peer)
            _run("ip", "link", "set", outside, "master", net, "up")
            address = f"{_address(net, number)}/24"
            _run(*self.prefix, "ip", "address", "add", address, "dev", inside)
            _run(*self.prefix, "ip", "link", "set", inside, "up")
        self._addresses: Final = {net: _address(net, number) for net in nets}

    def address(self, net: str) -> str:
        """Return its address in a net."""
        return self._addresses[net]

    def cut(self, nets: Sequence[str] = NETS) -> None:
        """Cut it off; the others, and what runs in it, get no answers and no errors."""
        self._set("down", nets)

    def join(self) -> None:
        """Connect it again. Idempotent."""
        self._set("up", NETS)

    def close(self) -> None:
        """End the process that holds the namespace."""
        self._holder.kill()
        self._holder.wait()

    def _set(self, state: str, nets: Sequence[str]) -> None:
        for net in self._nets:
            if net in nets:
                _run("ip", "link", "set", self._port(net), state)

    def _port(self, net: str) -> str:
        return f"{self.name}-{net}"

    def _until_apart(self) -> None:
        ours = os.stat("/proc/self/ns/net").st_ino
        place = Path(f"/proc/{self._holder.pid}/ns/net")
        deadline = time.monotonic() + PATIENCE_S
        while place.stat().st_ino == ours:
            assert time.monotonic() < deadline, "no network namespace"
            time.sleep(POLL_S)


class Town:
    """Two nets and their hosts; this process is in both nets."""

    def __init__(self) -> None:
        self._stack: Final = contextlib.ExitStack()
        self._hosts: int = 1
        _run("ip", "link", "set", "lo", "up")
        for net in NETS:
            _run("ip", "link", "add", "name", net, "type", "bridge")
            _run("ip", "address", "add", f"{_address(net, 1)}/24", "dev", net)
            _run("ip", "link", "set", net, "up")

    def host(self, name: str, nets: Sequence[str] = NETS) -> Host:
        """Return a new host."""
        self._hosts += 1
        host = Host(name, self._hosts, nets)
        self._stack.callback(host.close)
        return host

    def close(self) -> None:
        """End what holds the hosts."""
        self._stack.close()


def _address(net: str, number: int) -> str:
    return f"10.77.{NETS.index(net)}.{number}"


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr.strip()}"

"""mosquitto, from its own configuration file. Known: 2.0.11 as Debian has it."""

import os
import re
import shutil
import subprocess
from collections.abc import Callable, Mapping
from typing import Final

from conformance.adapters.base import AdapterError, Launch, Option, Options, Place
from conformance.adapters.files import acl_lines, password_lines
from conformance.failure import NotRun

# Where Debian puts it, which is not on everybody's PATH.
_SEARCH_PATH: Final = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin"])

# Options it has, as lines of mosquitto.conf.
_LINES: Final[Mapping[str, Callable[[Option], str]]] = {
    "maximum_qos": lambda value: f"max_qos {value}",
    "retain_available": lambda value: f"retain_available {str(bool(value)).lower()}",
    "receive_maximum": lambda value: f"max_inflight_messages {value}",
    "maximum_packet_size": lambda value: f"max_packet_size {value}",
    "topic_alias_maximum": lambda value: f"max_topic_alias {value}",
    "keep_alive_max": lambda value: f"max_keepalive {value}",
}
_OTHERS: Final = frozenset({"users", "allow_anonymous", "deny_publish", "websocket"})


class Mosquitto:
    """The adapter. Persistence is on and written after every change: its most durable form."""

    name: str = "mosquitto"

    def describe(self) -> str:
        """Return the version `mosquitto -h` begins with."""
        answer = subprocess.run([_program(), "-h"], capture_output=True, text=True, timeout=30)
        found = re.search(r"mosquitto version (\S+)", answer.stdout + answer.stderr)
        if found is None:
            raise AdapterError("mosquitto: no version in the output of `mosquitto -h`")
        return f"mosquitto {found[1]}"

    def prepare(self, place: Place, options: Options) -> Launch:
        """Write mosquitto.conf and the files it names."""
        given = {name: value for name, value in options.items() if value is not None}
        missing = sorted(set(given) - set(_LINES) - _OTHERS)
        if missing:
            raise NotRun(f"mosquitto cannot be configured for {', '.join(missing)}")
        data = place.directory / "data"
        data.mkdir(exist_ok=True)
        users = given.get("users")
        anonymous = given.get("allow_anonymous", users is None)
        lines = [
            "persistence true",
            f"persistence_location {data}/",
            "autosave_on_changes true",
            "autosave_interval 1",
            "sys_interval 1",
            "log_dest stderr",
            f"allow_anonymous {str(bool(anonymous)).lower()}",
        ]
        if os.geteuid() == 0:
            lines.append("user root")  # else it becomes a user that may not write its data here
        if isinstance(users, Mapping):
            path = place.directory / "passwords"
            path.write_text(password_lines(users))
            path.chmod(0o600)
            lines.append(f"password_file {path}")
        denied = given.get("deny_publish")
        if denied is not None and not isinstance(denied, (bool, int, float)):
            path = place.directory / "acl"
            path.write_text(acl_lines(list(denied)))
            lines.append(f"acl_file {path}")
        lines.append(f"listener {place.port} {place.host}")
        lines += [_LINES[name](value) for name, value in given.items() if name in _LINES]
        if given.get("websocket"):
            lines += [f"listener {place.websocket_port} {place.host}", "protocol websockets"]
        config = place.directory / "mosquitto.conf"
        config.write_text("\n".join(lines) + "\n")
        return Launch([_program(), "-c", str(config)])


def _program() -> str:
    program = shutil.which("mosquitto", path=_SEARCH_PATH)
    if program is None:
        raise AdapterError("mosquitto: not installed (no program of that name found)")
    return program

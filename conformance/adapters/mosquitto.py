"""The adapter of mosquitto, tested with Debian's 2.0.11."""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from conformance.adapters.base import AdapterError, Launch, Option, Options, Place
from conformance.adapters.files import derived, listed, password_lines
from conformance.failure import NotRun

# Debian installs it in a directory that may not be on the PATH.
_SEARCH_PATH: Final = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin"])

# The supported options as lines of mosquitto.conf.
_LINES: Final[Mapping[str, Callable[[Option], str]]] = {
    "maximum_qos": lambda value: f"max_qos {value}",
    "retain_available": lambda value: f"retain_available {str(bool(value)).lower()}",
    "receive_maximum": lambda value: f"max_inflight_messages {value}",
    "maximum_packet_size": lambda value: f"max_packet_size {value}",
    "topic_alias_maximum": lambda value: f"max_topic_alias {value}",
    "keep_alive_max": lambda value: f"max_keepalive {value}",
}
_DENIALS: Final = {"deny_publish": "publishClientSend", "deny_subscribe": "subscribeLiteral"}
_KEEP_ALIVE_MAX_LEAST: Final = 10  # seconds; mosquitto refuses less
_OTHERS: Final = frozenset({"users", "allow_anonymous", "websocket", *_DENIALS})
_PLUGINS: Final = (
    "/usr/lib/x86_64-linux-gnu/mosquitto_dynamic_security.so",
    "/usr/lib/aarch64-linux-gnu/mosquitto_dynamic_security.so",
    "/usr/lib64/mosquitto_dynamic_security.so",
    "/usr/lib/mosquitto_dynamic_security.so",
    "/usr/local/lib/mosquitto_dynamic_security.so",
)


class Mosquitto:
    """The adapter. Persistence is on and saved after every change, the most durable setting."""

    name: str = "mosquitto"

    def describe(self) -> str:
        """Return the version in the first line of `mosquitto -h`."""
        answer = subprocess.run([_program(), "-h"], capture_output=True, text=True, timeout=30)
        found = re.search(r"mosquitto version (\S+)", answer.stdout + answer.stderr)
        if found is None:
            raise AdapterError("mosquitto: no version in the output of `mosquitto -h`")
        return f"mosquitto {found[1]}"

    def prepare(self, place: Place, options: Options) -> Launch:
        """Write mosquitto.conf and the files it names."""
        given = {name: value for name, value in options.items() if value is not None}
        ceiling = given.get("keep_alive_max")
        if isinstance(ceiling, int) and ceiling < _KEEP_ALIVE_MAX_LEAST:
            raise NotRun(f"mosquitto cannot have a max_keepalive below {_KEEP_ALIVE_MAX_LEAST}")
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
            lines.append("user root")  # else it switches to a user that cannot write here
        if "deny_publish" in given or "deny_subscribe" in given:
            lines += _plugin_lines(place, given)
        elif isinstance(users, Mapping):
            path = place.directory / "passwords"
            path.write_text(password_lines(users))
            path.chmod(0o600)
            lines.append(f"password_file {path}")
        lines.append(f"listener {place.port} {place.host}")
        lines += [_LINES[name](value) for name, value in given.items() if name in _LINES]
        if given.get("websocket"):
            lines += [f"listener {place.websocket_port} {place.host}", "protocol websockets"]
        config = place.directory / "mosquitto.conf"
        config.write_text("\n".join(lines) + "\n")
        return Launch([_program(), "-c", str(config)])


def _plugin_lines(place: Place, options: Options) -> list[str]:
    """Configure the dynamic security plugin, as `acl_file` cannot refuse a subscription."""
    plugin = next((path for path in map(Path, _PLUGINS) if path.exists()), None)
    if plugin is None:
        raise NotRun("mosquitto cannot deny topics without its dynamic security plugin")
    users = options.get("users")
    rules = [
        {"acltype": kind, "topic": topic, "priority": 0, "allow": False}
        for option, kind in _DENIALS.items()
        for topic in listed(options.get(option))
    ]
    document = {
        "defaultACLAccess": dict.fromkeys(
            ("publishClientSend", "publishClientReceive", "subscribe", "unsubscribe"), True
        ),
        "clients": [
            {"username": name, "password": key, "salt": salt, "iterations": rounds, "roles": []}
            for name, (rounds, salt, key) in derived(users).items()
        ],
        "groups": [{"groupname": "nameless", "roles": [{"rolename": "denied"}], "clients": []}],
        "roles": [{"rolename": "denied", "acls": rules}],
        "anonymousGroup": "nameless",
    }
    path = place.directory / "security.json"
    path.write_text(json.dumps(document))
    path.chmod(0o600)
    return [f"plugin {plugin}", f"plugin_opt_config_file {path}"]


def _program() -> str:
    program = shutil.which("mosquitto", path=_SEARCH_PATH)
    if program is None:
        raise AdapterError("mosquitto: not installed (no program of that name found)")
    return program

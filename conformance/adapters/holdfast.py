"""The adapter of the Holdfast next to this suite: `python -m broker serve`."""

import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from conformance.adapters.base import AdapterError, Launch, Option, Options, Place
from conformance.adapters.files import acl_lines, derived, listed, password_lines

ROOT: Final = Path(__file__).resolve().parents[2]  # the checkout, or the directory of the packages

# -P leaves out the working directory, where another package may be called `broker`.
COMMAND: Final = (sys.executable, "-P", "-m", "broker")


def python_path() -> str:
    """Return our PYTHONPATH with ROOT first; the broker has another working directory."""
    here = [
        str(Path(part).absolute())
        for part in os.environ.get("PYTHONPATH", "").split(os.pathsep)
        if part
    ]
    return os.pathsep.join([str(ROOT), *here])


def _flag(value: Option) -> str:
    return "true" if value else "false"


def _seconds(value: Option) -> str:
    return f"{value}s"


# Option of the suite -> (configuration variable, function that writes its value).
_VARIABLES: Final[Mapping[str, tuple[str, Callable[[Option], str]]]] = {
    "allow_anonymous": ("AUTH__ALLOW_ANONYMOUS", _flag),
    "maximum_qos": ("LIMITS__MAXIMUM_QOS", str),
    "retain_available": ("LIMITS__RETAIN_AVAILABLE", _flag),
    "wildcard_subscriptions": ("LIMITS__WILDCARD_SUBSCRIPTIONS", _flag),
    "shared_subscriptions": ("LIMITS__SHARED_SUBSCRIPTIONS", _flag),
    "subscription_identifiers": ("LIMITS__SUBSCRIPTION_IDENTIFIERS", _flag),
    "receive_maximum": ("LIMITS__RECEIVE_MAXIMUM", str),
    "maximum_packet_size": ("LIMITS__MAXIMUM_PACKET_SIZE", str),
    "topic_alias_maximum": ("LIMITS__TOPIC_ALIAS_MAXIMUM", str),
    "keep_alive_max": ("LIMITS__KEEP_ALIVE_MAX", _seconds),
    "session_expiry_max": ("SESSION__EXPIRY_MAX", _seconds),
    "client_id_bytes_max": ("LIMITS__CLIENT_ID_BYTES", str),
    "connect_timeout": ("LIMITS__CONNECT_TIMEOUT", _seconds),
}


class Holdfast:
    """The adapter; it runs the Holdfast that belongs to this copy of the suite."""

    name: str = "holdfast"

    def describe(self) -> str:
        """Return the version the command reports."""
        command = [*COMMAND, "--version"]
        environment = {**os.environ, "PYTHONPATH": python_path()}
        try:
            answer = subprocess.run(
                command, capture_output=True, text=True, timeout=30, env=environment, cwd="/"
            )
        except (OSError, subprocess.TimeoutExpired) as problem:
            raise AdapterError(f"holdfast: cannot start it: {problem}") from None
        if answer.returncode:
            raise AdapterError(f"holdfast: not installed: {answer.stderr.strip()[-200:]}")
        return answer.stdout.strip()

    def prepare(self, place: Place, options: Options) -> Launch:
        """Set options in the environment; write the password and ACL files."""
        environment = {
            "PYTHONPATH": python_path(),
            "HOLDFAST__METRICS__ENABLED": "false",
            "HOLDFAST__HISTORY__DRAIN_TIMEOUT": "0",
            "HOLDFAST__STORAGE__BALLAST": "0",
            "HOLDFAST__STORAGE__LOW_WATER": "0",
            "HOLDFAST__SYS__INTERVAL": "1s",
        }
        for option, (variable, write) in _VARIABLES.items():
            if options.get(option) is not None:
                environment[f"HOLDFAST__{variable}"] = write(options[option])
        self._write_access(place, options, environment)
        if options.get("websocket"):
            environment["HOLDFAST__LISTENER__WEBSOCKET__TYPE"] = "websocket"
            environment["HOLDFAST__LISTENER__WEBSOCKET__HOST"] = place.host
            environment["HOLDFAST__LISTENER__WEBSOCKET__PORT"] = str(place.websocket_port)
        command = [*COMMAND, "serve", "--host", place.host]
        command += ["-p", str(place.port), "--data-dir", str(place.directory / "data")]
        return Launch(command, environment)

    def _write_access(self, place: Place, options: Options, environment: dict[str, str]) -> None:
        lines = ""
        for option in ("users", "scram_users"):
            users = options.get(option)
            if isinstance(users, Mapping):
                lines += (password_lines if option == "users" else _scram_lines)(users)
        if lines:
            path = place.directory / "passwords"
            path.write_text(lines)
            path.chmod(0o600)
            environment["HOLDFAST__AUTH__PASSWORD_FILE"] = str(path)
        denied = [*listed(options.get("deny_publish")), *listed(options.get("deny_subscribe"))]
        if denied:
            path = place.directory / "acl"
            path.write_text(acl_lines(denied, derived(options.get("users"))))
            environment["HOLDFAST__AUTH__ACL_FILE"] = str(path)


def _scram_lines(users: Mapping[str, str]) -> str:
    """Return password file lines for SCRAM, with salted keys instead of passwords (RFC 5802)."""
    import base64
    import hashlib
    import hmac

    lines = []
    for name, password in users.items():
        salt, rounds = b"conformance-salt", 4096
        salted = hashlib.pbkdf2_hmac("sha256", password.encode(), salt, rounds)
        client_key = hmac.digest(salted, b"Client Key", "sha256")
        stored = hashlib.sha256(client_key).digest()
        server = hmac.digest(salted, b"Server Key", "sha256")
        shown = [base64.b64encode(part).decode() for part in (salt, stored, server)]
        lines.append(f"{name}:SCRAM-SHA-256${rounds}:{shown[0]}${shown[1]}:{shown[2]}\n")
    return "".join(lines)

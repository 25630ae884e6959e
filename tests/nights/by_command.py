"""Solves a night by the command line alone: `holdfast`, and what it prints."""

import base64
import json
import os
import subprocess
import sys
from collections import Counter
from typing import Any, Final

from tests.durability.process import ROOT, BrokerProcess

DATA_DIR: Final = "HOLDFAST__STORAGE__DATA_DIR"
COMMAND_S: Final = 60.0


class ByCommand:
    """An operator at a terminal on the broker's machine."""

    def __init__(self, broker: BrokerProcess) -> None:
        self._broker: Final = broker

    def who_is_owed_most(self) -> str:
        """Ask who is owed most bytes."""
        return str(self._rows("session", "top", "--by", "bytes", "--limit", "1")[0]["client_id"])

    def what_waits_for(self, client_id: str) -> list[tuple[str, bytes]]:
        """List the queue with its payloads."""
        rows = self._rows("session", "queue", client_id, "--payload")
        return [(row["topic"], base64.b64decode(row["payload"])) for row in rows]

    def what_a_restart_loses(self) -> tuple[list[str], int]:
        """Ask for a check."""
        facts = json.loads(self._run("restart-check", "-o", "json"))
        return facts["against_it"], facts["clean_sessions_connected"]

    def make_room(self) -> None:
        """Find who keeps most of the disk, drop what waits for him, and give the room back."""
        needed: Counter[str] = Counter()
        for row in self._rows("storage", "show", "--pins"):
            for each in row["largest_sessions"]:
                needed[each["name"]] = each["messages"]
        (hoarder, _) = needed.most_common(1)[0]
        self._run("session", "purge", hoarder, "--yes", "--reason", "the disk is full")
        self._run("storage", "reclaim")

    def why_refused(self, client_id: str) -> str:
        """Watch the client for a moment."""
        lines = self._run("trace", "client", client_id, "--for", "2s").splitlines()
        return next(line for line in lines if "refused" in line)

    def who_floods(self) -> str:
        """Watch all topics for a moment, and count."""
        lines = self._run("trace", "topic", "#", "--for", "2s").splitlines()
        found = Counter(line.split()[1] for line in lines if " -> PUBLISH " in line)
        return found.most_common(1)[0][0]

    def keep_away(self, client_id: str) -> None:
        """Ban the client, and end its connection if the ban has not."""
        self._run("client", "ban", "add", "--client-id", client_id, "--for", "1h", "--yes")
        attempt(self._broker, "client", "kick", client_id, "--yes")

    def who_is_away_longest(self) -> str:
        """Ask who is away since when."""
        rows = self._rows("session", "list", "--offline", "--sort", "since", "--limit", "1")
        return str(rows[0]["client_id"])

    def end_session(self, client_id: str) -> None:
        """Delete the session."""
        self._run("session", "delete", client_id, "--yes", "--reason", "sold")

    def why_lost(self, client_id: str, topic: str) -> str:
        """Ask why, and take the sentence about what was not sent."""
        lines = self._run("why", client_id, "--topic", topic).splitlines()
        return next(line for line in lines if "not sent" in line or "dropped" in line).strip()

    def _rows(self, *arguments: str) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = json.loads(self._run(*arguments, "-o", "json"))
        return rows

    def _run(self, *arguments: str) -> str:
        return run(self._broker, *arguments)


def run(broker: BrokerProcess, *arguments: str) -> str:
    """Run `holdfast` on the broker's data directory; return what it prints."""
    done = attempt(broker, *arguments)
    assert done.returncode == 0, (arguments, done.stderr)
    return done.stdout


def attempt(broker: BrokerProcess, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """Run `holdfast` on the broker's data directory, whatever comes of it."""
    return subprocess.run(
        [sys.executable, "-m", "broker", *arguments],
        cwd=ROOT,
        env={**os.environ, **broker.env, DATA_DIR: str(broker.data_dir)},
        capture_output=True,
        text=True,
        timeout=COMMAND_S,
    )

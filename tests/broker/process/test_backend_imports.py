"""Which process of a real broker imports the library of an external store?"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from tests.broker.process.starts import watch_imports
from tests.broker.process.test_server_backends import command, until
from tests.durability.process import BrokerProcess, free_port

pytestmark = pytest.mark.full  # starts processes

LIBRARIES: Final = ("redis", "boto3", "botocore", "cassandra", "confluent_kafka")
# Nobody listens there: what is imported does not depend on it.
BACKENDS: Final = """\
[backends.{name}]
type = "{name}"
timeout = "1s"
{options}

[[rules]]
on = "client.connected"
backend = "{name}"
{action}
"""


def configuration() -> str:
    """Return a backend of each type, with a rule."""
    stored = 'action = "on_client_connected"'
    address = f"127.0.0.1:{free_port()}"
    servers = f'servers = "{address}"'
    endpoint = f'endpoint = "http://{address}"\naccess_key_id = "a"\nsecret_access_key = "b"'
    return "".join(
        BACKENDS.format(name=name, options=options, action=action)
        for name, options, action in (
            ("redis", servers, stored),
            ("cassandra", servers, stored),
            ("dynamodb", endpoint, stored),
            ("kafka", f'{servers}\ntopic = "t"', ""),
            ("webhook", f'url = "http://{address}"', ""),
        )
    )


def test_only_the_process_of_a_store_imports_its_library_and_no_other(
    prepare: Callable[..., BrokerProcess], tmp_path: Path
) -> None:
    for each in LIBRARIES:
        pytest.importorskip(each)
    broker = prepare()
    imported = watch_imports(broker, tmp_path, LIBRARIES)
    path = broker.directory / "holdfast.toml"
    path.write_text(configuration())
    broker.arguments = ("--config", str(path))
    broker.start()

    def have_tried() -> bool:
        _, out, err = command(broker, "status", "--json")
        assert not err, err
        return {each["state"] for each in json.loads(out)} == {"disconnected"}

    until(have_tried, broker)
    found = imported()
    assert broker.pid not in found
    assert sorted(map(sorted, found.values())) == [
        ["boto3", "botocore"],
        ["cassandra"],
        ["confluent_kafka"],
        ["redis"],
    ]

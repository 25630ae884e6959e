"""`holdfast admin serve`: what cannot be served is told in one line."""

import socket
from pathlib import Path

import pytest

from tests.broker.cli.commands import Run, complaint
from tests.durability.process import free_port


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ({"HOLDFAST__ADMIN__LISTEN": "0.0.0.0:8080"}, "set admin.tls_certificate"),
        ({"HOLDFAST__ADMIN__LISTEN": "8080"}, "expected host:port"),
        ({"HOLDFAST__ADMIN__LISTEN": "127.0.0.1:99999"}, "expected host:port"),
        ({"HOLDFAST__ADMIN__TLS_KEY": "k.pem"}, "admin.tls_key needs admin.tls_certificate"),
        ({}, "admin.listen is missing"),
    ],
)
def test_what_cannot_be_served_is_told_in_one_line(
    run: Run, environment: dict[str, str], words: str
) -> None:
    result = run("admin", "serve", **environment)
    assert words in complaint(result, 2)


def test_a_port_in_use_and_a_bad_certificate_are_told_in_one_line(run: Run, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        result = run("admin", "serve", HOLDFAST__ADMIN__LISTEN=address)
        assert "Address already in use" in complaint(result, 1)
    bad = tmp_path / "bad.pem"
    bad.write_text("no certificate")
    for path, words in ((bad, "admin.tls_certificate"), (tmp_path / "absent", "No such file")):
        result = run(
            "admin",
            "serve",
            HOLDFAST__ADMIN__LISTEN=f"127.0.0.1:{free_port()}",
            HOLDFAST__ADMIN__TLS_CERTIFICATE=str(path),
        )
        assert words in complaint(result, 1)

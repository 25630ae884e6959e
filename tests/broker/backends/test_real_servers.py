"""Are the servers there with which external stores are tested?"""

from pathlib import Path

import pytest

from tests import real_servers


@pytest.mark.skipif(not real_servers.must_be_there(), reason=f"{real_servers.VARIABLE} is not set")
def test_every_real_server_is_there() -> None:
    """Otherwise many tests are skipped, and a run without them looks like one with them."""
    missing = real_servers.missing()
    assert not missing, f"real servers are missing, so their tests did not run: {missing}"


def test_a_server_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(real_servers, "ROOT", tmp_path)
    monkeypatch.setattr(real_servers, "AWS_CLI", tmp_path / "c")
    monkeypatch.setattr(real_servers, "REDIS", None)
    monkeypatch.setattr(real_servers, "VALKEY", None)
    monkeypatch.setattr(
        real_servers, "JARS", {"Cassandra": tmp_path / "a", "Kafka": tmp_path / "b"}
    )
    monkeypatch.setitem(real_servers.CLIENTS, "DynamoDB Local", ("no_such_module",))
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / ".complete").touch()
    monkeypatch.setattr(real_servers, "JAVA", None)
    assert real_servers.missing() == [
        "Redis: there is no redis-server",
        "Valkey: it is not in .cache/servers",
        "Cassandra: a is missing or incomplete",
        "DynamoDB Local: it is not in .cache/servers",
        "Kafka: there is no java",
        "AWS CLI: c is missing or incomplete",
    ]


def test_a_run_may_go_without_them_unless_it_says_otherwise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for value, expected in (("", False), ("0", False), ("1", True)):
        monkeypatch.setenv(real_servers.VARIABLE, value)
        assert real_servers.must_be_there() == expected

"""What a person reads of a cluster, and what is asked of its leader."""

import contextlib
import json
from pathlib import Path
from typing import Any, Final

import pytest

from broker.cli.administration import cluster_nodes
from broker.cli.main import main
from broker.cluster import describing
from broker.operations import cluster_renewal
from broker.operations.control_socket import ControlError, ControlServer, Request
from storage.local.data_directory import DataDirectory

BOB: Final = {"node": "bob", "address": "b:1883", "read": 41, "durable": 30}
HEARD: Final = {**BOB, "heard": True, "silent_ms": 900}
UNHEARD: Final = {"node": "cyd", "address": "", "read": 0, "durable": 0, "heard": False}
STATUS: Final[dict[str, str]] = {
    "node": "ann",
    "role": "leader",
    "leader": "ann",
    "epoch": "3",
    "read": "41",
    "written": "42",
    "applied": "40",
    "place": "77",
    "pending": "1",
    "trouble": "",
    "unheard": "",
    "members": json.dumps([HEARD, {**UNHEARD, "silent_ms": 0}]),
}


class Node:
    """A control socket that answers as a node does."""

    def __init__(self, data_dir: Path) -> None:
        self.status = dict(STATUS)
        self.refusal = ""
        self.asked: list[Request] = []
        self.server = ControlServer(data_dir, self.answer, lambda call: call())

    def answer(self, request: Request) -> Any:
        self.asked.append(request)
        if self.refusal:
            raise ControlError(self.refusal)
        return self.status if request["do"] == describing.STATUS else {"leader": request["node"]}


@pytest.fixture
def node(tmp_path: Path) -> Any:
    node = Node(tmp_path)
    yield node
    node.server.close()


def test_the_words_are_those_of_the_desk() -> None:
    assert {cluster_nodes.STATUS, cluster_nodes.PROMOTE} == describing.REQUESTS


def test_status_says_who_leads_and_how_far_everybody_is(
    node: Node, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["cluster", "status", "--data-dir", str(tmp_path)]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "node     ann, leader",
        "leader   ann, term 3",
        "records  read 41, applied 40 (2 behind)",
        "         1 batches are not committed yet",
        "member   bob  read 41 (1 behind), on disk to 30, b:1883",
        "member   cyd  not heard since this node began",
    ]


@pytest.mark.parametrize(
    ("key", "value"),
    [("leader", ""), ("trouble", "waiting for bob"), ("unheard", "for 9 s: connection refused")],
)
def test_without_a_leader_or_with_a_trouble_the_status_is_1(
    node: Node, tmp_path: Path, capsys: pytest.CaptureFixture[str], key: str, value: str
) -> None:
    node.status[key] = value
    assert main(["cluster", "status", "--data-dir", str(tmp_path)]) == 1
    assert (value or "nobody") in capsys.readouterr().out


def test_a_member_that_has_fallen_silent_is_told(
    node: Node, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gone = {**HEARD, "silent_ms": 312_000}
    node.status |= {"pending": "0", "members": json.dumps([gone, {**HEARD, "address": ""}])}
    assert main(["cluster", "status", "--data-dir", str(tmp_path)]) == 0
    assert capsys.readouterr().out.splitlines()[3:] == [
        "member   bob  NOT HEARD for 312 s; it had read 41",
        "member   bob  read 41 (1 behind), on disk to 30, no address for clients",
    ]


@pytest.mark.parametrize("words", [("status",), ("promote", "bob")])
def test_without_a_broker_it_says_where_it_looked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...]
) -> None:
    assert main(["cluster", *words, "--data-dir", str(tmp_path)]) == 1
    told = f"holdfast: no broker runs on data directory {tmp_path}: expected that of a broker on "
    assert capsys.readouterr().err.startswith(told)


def test_a_broker_that_is_starting_is_told_from_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with contextlib.closing(DataDirectory(tmp_path)):
        assert main(["cluster", "status", "--data-dir", str(tmp_path)]) == 1
    assert "it may be starting or ending" in capsys.readouterr().err


def test_promote_names_the_node(
    node: Node, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["cluster", "promote", "bob", "--data-dir", str(tmp_path)]) == 0
    assert node.asked[0]["do"] == describing.PROMOTE and node.asked[0]["node"] == "bob"
    assert "bob is to lead as soon as" in capsys.readouterr().out
    node.refusal = "no member 'eve'; the members are ann, bob"
    assert main(["cluster", "promote", "eve", "--data-dir", str(tmp_path)]) == 1
    assert capsys.readouterr().err == f"holdfast: {node.refusal}\n"


def test_renew_says_what_the_new_log_begins_with_and_what_the_others_need(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    renewed = cluster_renewal.Renewed(41, 3)
    monkeypatch.setattr(cluster_renewal, "renew", lambda path: renewed)
    assert main(["cluster", "renew", "--yes", "--data-dir", str(tmp_path)]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert "up to record 41 of the old one, 3 batches of it from its tail" in first
    assert "every other node needs a copy" in second


def test_renew_of_no_database_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["cluster", "renew", "--yes", "--data-dir", str(tmp_path / "none")]) == 1
    assert capsys.readouterr().err == f"holdfast: {tmp_path / 'none'}: no database\n"

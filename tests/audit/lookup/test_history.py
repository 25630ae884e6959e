"""Rows of a history without Spark."""

from pathlib import Path

import pyarrow.compute as pc
import pytest

from audit.lookup.history import History, LookupFailed


def test_segments_are_filtered_and_their_rows_have_a_time(tmp_path: Path, history) -> None:
    history.boot()
    for number in range(6):
        history.row("msg_accepted", msg=number, topic="t")
    history.write(tmp_path, segments=3)
    rows = list(History(str(tmp_path)).rows(pc.field("msg") == 4))
    assert [(row["msg"], row["topic"], row["seq"]) for row in rows] == [(4, "t", 6)]
    assert rows[0]["at_us"] == int(rows[0]["ts"].timestamp() * 1e6)


def test_earlier_boots_and_other_nodes_are_not_read(tmp_path: Path, history) -> None:
    history.boot()
    first = history.write(tmp_path)
    history.boot()
    history.node = "n2"
    history.boot()
    history.write(tmp_path)
    first[0].write_bytes(b"damaged")  # would be named if it were read
    found = History(str(tmp_path))
    assert found.nodes() == ["n1", "n2"]
    boots = [(row["node"], row["boot"]) for row in found.rows(None, from_boot=2)]
    assert boots == [("n1", 2), ("n2", 3)]
    assert [row["node"] for row in found.rows(None, node="n2")] == ["n2"]
    assert found.damaged == []


def test_what_cannot_be_read_is_named_and_left_out(tmp_path: Path, history) -> None:
    history.boot()
    history.row("gc_run", count=0)
    torn, _ = history.write(tmp_path, segments=2)
    torn.write_bytes(torn.read_bytes()[:40])
    found = History(str(tmp_path))
    assert [row["ev"] for row in found.rows(None)] == ["gc_run"]
    (line,) = found.damaged
    assert torn.name in line and "\n" not in line


def test_rows_are_counted_by_event(tmp_path: Path, history) -> None:
    history.boot()
    client = history.session("c")
    client.create()
    client.leave()
    client.resume()
    history.write(tmp_path, segments=2)
    found = History(str(tmp_path))
    assert found.counts("n1") == {
        "boot": 1, "session_created": 1, "session_disconnected": 1, "session_resumed": 1,
    }  # fmt: skip
    assert found.clients("n1") == {"c"}


def test_a_place_without_a_history_is_one_line(tmp_path: Path) -> None:
    for place, said in ((tmp_path, "no segment of a history"), (tmp_path / "x", "no such folder")):
        with pytest.raises(LookupFailed, match=said):
            History(str(place))
    with pytest.raises(LookupFailed, match="abc://x"):
        History("abc://x")


def test_a_node_that_is_not_there_is_named_with_those_that_are(tmp_path: Path, history) -> None:
    history.boot()
    history.write(tmp_path)
    with pytest.raises(LookupFailed, match="n7: no such node; there are n1"):
        History(str(tmp_path)).need("n7")

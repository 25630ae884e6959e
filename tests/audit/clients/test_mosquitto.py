"""What mosquitto_sub printed becomes the log of a client, or one line says what is wrong."""

import io
import json
from pathlib import Path

import pytest

from audit.clients.mosquitto import LineError, converted
from audit.clients.records import parsed
from audit.command import main

PRINTED = "1795872780.962515123 2 0 7 3 6f6e65 a topic/with spaces\n1795872781.5 0 1 0 0  t\n"


def test_each_line_is_a_record_that_the_audit_reads() -> None:
    found = list(converted(io.StringIO(PRINTED), "reader", "log"))
    assert [parsed(line)[1] for line in found] == [None, None]
    one, two = map(json.loads, found)
    assert one == {
        "v": 1, "log": "log", "n": 1, "client_id": "reader", "at_us": 1795872780962515,
        "event": "received", "pid": 7, "qos": 2, "topic": "a topic/with spaces",
        "hash": "7692c3ad3540bb80", "bytes": 3, "retain": False,
    }  # fmt: skip
    assert (two["n"], two["pid"], two["bytes"], two["topic"], two["retain"]) == (2, 0, 0, "t", True)


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("1 0 0", "line 1: expected 7 fields, '%U %q %r %m %l %x %t', found 3"),
        ("x 0 0 0 1 61 t", "line 1: %U: expected seconds since 1970, found 'x'"),
        ("1 3 0 0 1 61 t", "line 1: %q: expected 0, 1 or 2, found '3'"),
        ("1 0 2 0 1 61 t", "line 1: %r: expected 0 or 1, found '2'"),
        ("1 0 0 x 1 61 t", "line 1: %m: expected a number, found 'x'"),
        ("1 0 0 0 2 61 t", "line 1: %l: expected 1, the length of %x, found '2'"),
        ("1 0 0 0 2 6g t", "line 1: %x: expected hexadecimal digits, found '6g'"),
    ],
)
def test_a_line_in_another_format_is_named(line: str, problem: str) -> None:
    with pytest.raises(LineError) as found:
        list(converted([line], "reader"))
    assert str(found.value) == problem


def test_the_command_reads_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "printed"
    path.write_text(PRINTED)
    assert main(["convert", "--client-id", "reader", str(path)]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 2
    path.write_text("1 0 0\n")
    assert main(["convert", "--client-id", "reader", str(path)]) == 1
    assert f"holdfast audit: {path}: line 1: expected 7 fields" in capsys.readouterr().err
    assert main(["convert", "--client-id", "reader", f"{path}.none"]) == 1
    assert "No such file" in capsys.readouterr().err

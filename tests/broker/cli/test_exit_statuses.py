"""The table of exit statuses in docs/operations.md has every command, and no other one."""

import argparse
import re
from collections.abc import Iterator

import pytest

from broker.cli.main import build_parser
from tests.broker.cli.commands import ROOT

# Have parsers of their own, which their tests try.
SUITES = ("conformance", "audit")


def leaves(parser: argparse.ArgumentParser, *words: str) -> Iterator[tuple[str, ...]]:
    """Yield every command that has no further ones."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, each in action.choices.items():
                yield from leaves(each, *words, name)
            return
    yield words


COMMANDS = sorted(leaves(build_parser()))


def rows() -> list[tuple[str, ...]]:
    """Return the commands, or families of them, that the table names."""
    text = (ROOT / "docs" / "operations.md").read_text()
    section = text.split("\n## Exit statuses\n")[1].split("\n## ")[0]
    cells = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    return [tuple(name.split()) for cell in cells for name in re.findall("`([^`]+)`", cell)]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_command_is_in_the_table_or_its_family_is(command: tuple[str, ...]) -> None:
    assert any(command[: len(row)] == row for row in rows())


def test_every_row_is_of_a_command() -> None:
    named = [tuple(word for word in row if not word.startswith("-")) for row in rows()]
    assert len(named) > 10
    for row in named:
        assert any(command[: len(row)] == row for command in COMMANDS), row
    assert len(set(rows())) == len(rows())


@pytest.mark.parametrize(
    "command", [each for each in COMMANDS if each[0] not in SUITES], ids=" ".join
)
def test_a_wrong_command_line_is_status_2(
    command: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        build_parser().parse_args([*command, "--no-such-option"])
    assert ended.value.code == 2
    assert "Traceback" not in capsys.readouterr().err

"""Every list of the command line has the same options, and no other columns than its table."""

import argparse
from collections.abc import Iterator

import pytest

from broker.cli import command
from broker.cli.administration import bans, clients
from broker.cli.looking import group, retained, topic
from broker.cli.main import build_parser
from broker.operations.looking import groups_report, retained_report, topic_report
from broker.operations.looking.listing import Asked, Listing

# Dead letters are read page by page, each of three lines: docs/backends.md.
OTHERS = frozenset(("backend dead list",))


def parsers(
    parser: argparse.ArgumentParser, name: tuple[str, ...] = ()
) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """Yield each command with its words."""
    choices = [a.choices for a in parser._actions if isinstance(a, argparse._SubParsersAction)]
    if not choices:
        yield " ".join(name), parser
    for each in choices:
        for word, inner in each.items():
            yield from parsers(inner, (*name, word))


LISTS = [
    (name, parser)
    for name, parser in parsers(build_parser())
    if name.split()[-1] in ("list", "who") and name not in OTHERS
]


def test_there_are_lists() -> None:
    names = {name for name, _ in LISTS}
    assert {"session list", "client list", "client ban list", "trace list", "topic who"} <= names
    assert {"group list", "retained list", "token list", "user list"} <= names


@pytest.mark.parametrize(("name", "parser"), LISTS, ids=[name for name, _ in LISTS])
def test_every_list_can_be_matched_sorted_limited_and_read_by_programs(
    name: str, parser: argparse.ArgumentParser
) -> None:
    place = ["t"] if name == "topic who" else []
    options = parser.parse_args(["--match", "a*", "--limit", "3", "-o", "csv", *place])
    assert command.asked(options)._replace(sort=None) == Asked("a*", None, 3, "csv")
    (sort,) = [action for action in parser._actions if action.dest == "sort"]
    assert sort.choices is not None and len(list(sort.choices)) >= 4
    for order in sort.choices:
        assert parser.parse_args(["--sort", order, *place]).sort == order
    for wrong in (["--sort", "colour"], ["--limit", "0"], ["-o", "xml"]):
        with pytest.raises(SystemExit) as ended:
            parser.parse_args([*wrong, *place])
        assert ended.value.code == 2


@pytest.mark.parametrize(
    ("orders", "listing"),
    [
        (group.ORDERS, groups_report.GROUPS),
        (retained.ORDERS, retained_report.RETAINED),
        (topic.ORDERS, topic_report.READERS),
    ],
)
def test_an_order_that_a_parser_knows_is_a_column(
    orders: tuple[str, ...], listing: Listing
) -> None:
    assert orders == listing.orders


def test_a_list_is_printed_as_the_options_say(capsys: pytest.CaptureFixture[str]) -> None:
    options = argparse.Namespace(match=None, sort="value", limit=1, output="table")
    row = {"kind": "user", "since": "", "until": "", "by": "", "reason": ""}
    command.print_list(bans.BANS, options, [{**row, "value": value} for value in ("b", "a")])
    header, first, more = capsys.readouterr().out.splitlines()
    assert header.split()[0] == "KIND" and first.split()[:2] == ["user", "a"]
    assert more.startswith("there are more")
    assert "client_id" in clients.CLIENTS.orders

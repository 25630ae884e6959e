"""What names each attack: `python -m tests.audit.deceptions.matrix --write` writes the table.

Every attack is done to a copy of one true history, each copy is a node of its own, and one run of
the audit judges them all, beside the true one. The table is in docs/audit-proof.md; a test
compares both.
"""

import argparse
import sys
import tempfile
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, Final

from pyspark.sql import SparkSession

from audit.checks.verdict import INVARIANTS
from audit.input.batch_view import Settings
from audit.run import run
from tests.audit.conftest import History, judge_sessions
from tests.audit.deceptions import on_messages, on_sessions, on_the_log
from tests.audit.deceptions.attack import Attack
from tests.audit.deceptions.tale import tell
from tests.audit.small_spark import JUDGING, small_spark

ATTACKS: Final = (*on_messages.attack.all, *on_sessions.attack.all, *on_the_log.attack.all)
HONEST: Final = "honest"  # the node whose history nobody touched
DOCUMENT: Final = Path(__file__).parents[3] / "docs" / "audit-proof.md"
BEGIN: Final = "<!-- deceptions: python -m tests.audit.deceptions.matrix --write -->"
END: Final = "<!-- end of deceptions -->"
HEAD: Final = (
    "| attack | named by | what else would name it |",
    "| --- | --- | --- |",
)
MISSED: Final = "**missed**"
WITNESSES_MAX: Final = 10_000  # all of them: of every attack


def write_all(directory: Path, attacks: Sequence[Attack] = ATTACKS) -> None:
    """Write the true history and each false one."""
    tell().write(directory, HONEST)
    for attack in attacks:
        tale = tell()
        attack.do(tale)
        tale.write(directory, attack.node)


def judge(spark: SparkSession, directory: Path, out: Path) -> dict[str, Any]:
    """Return the verdict on all histories."""
    settings = Settings(witnesses_max=WITNESSES_MAX)
    verdict = run(
        spark,
        str(directory),
        str(out),
        progress=lambda line: None,
        settings=settings,
        parts=JUDGING,
    )
    return verdict.document


def accusations(document: dict[str, Any], node: str) -> dict[str, list[dict[str, Any]]]:
    """Return the witnesses about a node, by invariant."""
    found = {
        name: [each for each in document["invariants"][name]["witnesses"] if each["node"] == node]
        for name in INVARIANTS
        if name in document["invariants"]
    }
    return {name: witnesses for name, witnesses in found.items() if witnesses}


def untested(document: dict[str, Any], node: str) -> set[str]:
    """Return why something could not be tested of a node."""
    return {
        span["reason"]
        for each in document["invariants"].values()
        for span in each["untested"]
        if span["node"] == node
    }


def undecided(attack: Attack) -> list[str]:
    """Return the invariants about sessions that a later row would decide: the open end."""
    history, tale = History(), tell()
    attack.do(tale)
    history.rows = [{**row, "node": history.node} for row in tale.rows]
    return [name for name, (_, _, unknown), _ in judge_sessions(history) if unknown]


def named_by(document: dict[str, Any], attack: Attack) -> str:
    """Return what the audit alone says of an attack."""
    accused = accusations(document, attack.node)
    if accused:
        return ", ".join(accused)
    reasons = sorted(untested(document, attack.node)) or undecided(attack)
    return f"unknown: {', '.join(reasons)}" if reasons else MISSED


def rows(document: dict[str, Any], attacks: Sequence[Attack] = ATTACKS) -> Iterator[str]:
    """Yield the lines of the table."""
    yield from HEAD
    for group, mine in groupby(attacks, key=lambda attack: attack.group):
        yield f"| *{group}* | | |"
        for attack in mine:
            else_named = f"{attack.needs}: {attack.why}" if attack.needs else ""
            yield f"| {attack.what} | {named_by(document, attack)} | {else_named} |"


def written(text: str) -> list[str]:
    """Return the lines of the table in the document."""
    return text.partition(BEGIN)[2].partition(END)[0].strip().splitlines()


def replaced(text: str, table: Sequence[str]) -> str:
    """Return the document with this table."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return "\n".join((before + BEGIN, "", *table, "", END + after))


def main(arguments: Sequence[str] | None = None) -> int:
    """Print or write the table; 1 = the document has another one."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.audit.deceptions.matrix", description=__doc__
    )
    parser.add_argument("--write", action="store_true", help="write it into the document")
    options = parser.parse_args(arguments)
    spark = small_spark("deceptions")
    with tempfile.TemporaryDirectory() as scratch:
        write_all(Path(scratch, "history"))
        document = judge(spark, Path(scratch, "history"), Path(scratch, "out"))
    spark.stop()
    table = list(rows(document))
    text = DOCUMENT.read_text()
    if options.write:
        DOCUMENT.write_text(replaced(text, table))
    sys.stdout.write("\n".join(table) + "\n")
    is_same = options.write or written(text) == table
    innocent = not accusations(document, HONEST)
    return 0 if is_same and innocent else 1


if __name__ == "__main__":
    sys.exit(main())

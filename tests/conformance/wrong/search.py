"""Find out which checks fail under which wrong broker: `python -m tests.conformance.wrong.search`.

Writes one JSON file per mutant into a directory; `--table` makes killers.toml of them: for each
check the mutant that kills the fewest other ones. A check that fails only because another check saw
a fault, or because nothing at all works, is not counted. What is written is a proposal: read it.
"""

import argparse
import json
import re
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, TypeAlias

from conformance.check import REGISTRY
from conformance.results import Result
from conformance.runner import Plan, discover, run
from conformance.selection import compile_expression
from conformance.statements import VERSIONS
from tests.conformance.wrong.adapter import Wrong
from tests.conformance.wrong.mutant import TOYS
from tests.conformance.wrong.mutants import MUTANTS

TABLE: Final = Path(__file__).with_name("killers.toml")
SECTIONS: Final = {4: "v311", 5: "v50"}
PATIENCE_S: Final = 1.5
Key: TypeAlias = tuple[int, str]


class Quiet:
    """A `Progress` that says nothing."""

    def begin(self, total: int) -> None:
        """Nothing."""

    def done(self, result: Result) -> None:
        """Nothing."""

    def say(self, text: str) -> None:
        """Nothing."""


def attempt(
    name: str, keys: Iterable[Key], *, strict: bool = False, patience: float = PATIENCE_S
) -> dict[Key, Result]:
    """Run these checks against one wrong broker and return what came out."""
    wanted = [REGISTRY[key] for key in keys]
    words = {f"{check.statement} {check.module}" for check in wanted}
    plan = Plan(
        versions=VERSIONS,
        select=lambda text: " ".join(text.split(" ")[:2]) in words,
        strict=strict,
        adapter=Wrong(name),
        patience=patience,
    )
    results = {result.statement.key: result for result in run(plan, Quiet())} if wanted else {}
    return {check.key: results[check.key] for check in wanted}


def passed_itself(result: Result) -> bool:
    """Has the check found nothing, whatever another one saw of its statement?"""
    seen = re.search(r"\(seen while .* was checked\)$", result.reason)
    return result.outcome == "pass" or (result.outcome == "fail" and seen is not None)


def is_kill(result: Result) -> bool:
    """Has the check itself found the fault?"""
    served = "a plain CONNECT gets no CONNACK" not in result.reason
    return result.outcome == "fail" and served and not passed_itself(result)


def load() -> dict[Key, tuple[str, bool]]:
    """Return the table: check -> (mutant, whether only the strict profile finds it out)."""
    if not TABLE.exists():
        return {}
    table = tomllib.loads(TABLE.read_text("utf-8"))
    return {
        (version, identifier): (entry.partition(" ")[0], entry.endswith(" strict"))
        for version, section in SECTIONS.items()
        for identifier, entry in table[section].items()
    }


def search(arguments: argparse.Namespace) -> None:
    """Run the mutants that were named, or all, each in a process of its own."""
    arguments.directory.mkdir(parents=True, exist_ok=True)
    names = arguments.mutants or [*MUTANTS, *TOYS]

    def one(name: str) -> None:
        command = [sys.executable, "-m", "tests.conformance.wrong.search", "--one", name]
        command += ["-d", str(arguments.directory), "-k", arguments.selection]
        command += ["--strict"] * arguments.strict
        command += ["--seconds", str(arguments.seconds), "--needy", str(arguments.needy)]
        command += ["--above", str(arguments.above)]
        subprocess.run(command, check=True, timeout=600)

    with ThreadPoolExecutor(arguments.jobs) as pool:
        list(pool.map(one, names))


def write_one(arguments: argparse.Namespace) -> None:
    """Run one mutant and add what it kills to its file."""
    name = arguments.one
    select = compile_expression(arguments.selection)
    best = {key: found[0][0] for key, found in propose(arguments.directory).items() if found}
    keys = [
        check.key
        for check in REGISTRY.values()
        if select(f"{check.statement} {check.module} {' '.join(sorted(check.needs | check.wants))}")
        and check.seconds <= arguments.seconds
        and best.get(check.key, arguments.above + 1) > arguments.above
        and (arguments.needy or not check.needs | check.wants)
    ]
    results = attempt(name, keys, strict=arguments.strict)
    path = arguments.directory / f"{name}.json"
    old: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    for (version, identifier), result in results.items():
        old[f"{version} {identifier}"] = [
            result.outcome,
            is_kill(result),
            round(result.seconds, 1),
            result.reason,
        ]
    path.write_text(json.dumps(old, indent=0))
    kills = sum(is_kill(result) for result in results.values())
    print(f"{name}: {kills} of {len(results)}", flush=True)


def propose(directory: Path) -> dict[Key, list[tuple[int, str, str]]]:
    """Return for each check its killers, the most specific first: (kills, mutant, reason)."""
    found: dict[Key, list[tuple[int, str, str]]] = {key: [] for key in REGISTRY}
    for path in sorted(directory.glob("*.json")):
        results: Mapping[str, Any] = json.loads(path.read_text())
        killed = {key: value for key, value in results.items() if value[1]}
        versions = Counter(key[0] for key in killed)
        for key, value in killed.items():
            version, identifier = key.split(" ", 1)
            if (int(version), identifier) in found:
                kills = versions[version]
                found[int(version), identifier].append((kills, path.stem, value[3]))
    for killers in found.values():
        killers.sort()
    return found


def write_table(directory: Path) -> None:
    """Write the table: what is in it stays, what is missing is filled in."""
    old = load()
    proposed = propose(directory)
    lines = [
        "# Which wrong broker each check is proved with: check -> mutant.",
        "# `strict`: only the strict profile finds it out, the text leaves it open.",
        "# `python -m tests.conformance.wrong.search` proposes, a person reads and corrects.",
    ]
    for version in VERSIONS:
        lines += ["", f"[{SECTIONS[version]}]"]
        for key in sorted(key for key in REGISTRY if key[0] == version):
            killers = [name for _, name, _ in proposed[key] if name not in TOYS]
            name, strict = old.get(key) or (next(iter(killers), ""), False)
            if name:
                lines.append(f'"{key[1]}" = "{name}{" strict" * strict}"')
    TABLE.write_text("\n".join(lines) + "\n")


def main() -> int:
    """Parse the command line and do it."""
    parser = argparse.ArgumentParser(prog="python -m tests.conformance.wrong.search")
    parser.add_argument("mutants", nargs="*")
    parser.add_argument("-d", "--directory", type=Path, required=True)
    parser.add_argument("-k", dest="selection", default="")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--strict", action="store_true")
    parser.add_argument("--seconds", type=float, default=100, help="leave longer checks out")
    parser.add_argument(
        "--above", type=int, default=0, help="only checks whose best killer kills more than these"
    )
    parser.add_argument("--needy", type=int, default=1, help="0: without brokers of their own")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--table", action="store_true", help="write killers.toml")
    arguments = parser.parse_args()
    for problem in discover(VERSIONS):
        print(problem, file=sys.stderr)
    if arguments.table:
        write_table(arguments.directory)
    elif arguments.one:
        write_one(arguments)
    else:
        search(arguments)
    return 0


if __name__ == "__main__":
    sys.exit(main())

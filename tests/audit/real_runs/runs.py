"""A run: one real broker, a script drawn from a seed, its history and the books of its clients.

The seed alone decides the level of detail, the steps and their order, and whether a loss is
planted. Each run is a node of its own, so that one audit judges many. Read next: `steps`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, Final

import duckdb

from audit.checks.verdict import INVARIANTS
from tests.audit.real_broker import recording, whole_history
from tests.audit.real_runs.books import Books
from tests.audit.real_runs.steps import (
    READERS,
    STEPS,
    STOP_SECONDS,
    Stage,
    Step,
    loss_planted,
    rules,
)

STEPS_OF_A_RUN: Final = 6
PLANTED_EVERY: Final = 5  # in one run of so many a loss is planted
# At `books` nothing that is about messages can be tested; of a sample some is.
LEVELS: Final = ("full", "full", "full", "full", "sampled:1/2", "books")
TOO_LARGE: Final = 1021
DONE: Final = ("acked", "completed")


@dataclass(frozen=True)
class Script:
    """What a seed has drawn."""

    seed: int
    level: str
    steps: tuple[Step, ...]
    is_planted: bool

    @property
    def node(self) -> str:
        """Return the name of its broker in the history."""
        return f"run.{self.seed}"

    def __str__(self) -> str:
        names = [step.__name__ for step in self.steps] + ["loss_planted"] * self.is_planted
        return f"{self.node} at {self.level}: {', '.join(names)}"


@dataclass(frozen=True)
class Lived:
    """A run that is over."""

    script: Script
    books: Books


def draw(seed: int) -> Script:
    """Return the script of a seed; successive seeds have every kind of step, and a planted loss."""
    random = Random(seed)
    planted = seed % PLANTED_EVERY == 0
    level = "full" if planted else random.choice(LEVELS)
    first = STEPS[seed % len(STEPS)], STEPS[(seed * 3 + 1) % len(STEPS)]
    steps = [*first, *random.sample(STEPS, STEPS_OF_A_RUN - len(first))]
    random.shuffle(steps)
    return Script(seed, level, tuple(steps), planted)


def live(script: Script, directory: Path, whole: Path) -> Lived:
    """Run a script in `directory` and add the history of its broker to `whole`."""
    place = directory / script.node
    place.mkdir(parents=True)
    broker = recording(
        place, detail=script.level, node=script.node, SEAL_SECONDS="1", DRAIN_TIMEOUT="120s"
    )
    broker.env["HOLDFAST__AUTH__ACL_FILE"] = str(rules(place))
    try:
        broker.start()
        stage = Stage(broker, Random(script.seed))
        for step in script.steps:
            step(stage)
        if script.is_planted:
            loss_planted(stage)
            for qos in (1, 2):
                stage.publish(stage.topic("after"), qos)
        stage.settle()
        assert stage.books.missing() == {}, script
        stage.leave()
        assert broker.stop(STOP_SECONDS) == 0
        whole_history(broker, whole)
    finally:
        broker.close()
    return Lived(script, stage.books)


def problems(lived: Sequence[Lived], document: dict[str, Any], whole: Path, out: Path) -> list[str]:
    """Return where the audit says something else than the clients of these runs.

    The audit may have judged other nodes, too.
    """
    found = [problem for run in lived for problem in _verdict(run, document, whole)]
    found += [problem for run in lived for problem in _messages(run, whole, out)]
    return found + [problem for run in lived for problem in _numbers(run, whole, out)]


def sums(lived: Sequence[Lived], facts: dict[str, Any]) -> list[str]:
    """Return which facts of an audit of these runs alone are not what their clients know."""
    if any(run.script.level.startswith("sampled") for run in lived):
        return []  # of some messages nothing is recorded
    at_full = [run for run in lived if run.script.level == "full"]
    expired = sum(run.books.expired for run in at_full)
    too_large = sum(run.books.too_large for run in at_full)
    wrong = []
    if facts["expired"] < expired:  # those who are there may get one too late, too
        wrong.append(f"{facts['expired']} expired, {expired} by the clients")
    if facts["dropped"].get("too_large", 0) != too_large:
        wrong.append(f"{facts['dropped']} dropped, {too_large} too large by the clients")
    return wrong


def _numbers(run: Lived, whole: Path, out: Path) -> list[str]:
    """Compare what clients know by number only.

    The readers, who are there all the time, may get a message that is about to expire or not.
    """
    node = run.script.node
    if run.script.level != "full":
        return []
    ((expired,),) = duckdb.sql(
        f"SELECT count(*) FROM read_parquet('{out}/tables/deliveries/*/*.parquet') "
        f"WHERE node = '{node}' AND outcome = 'expired' AND session NOT IN (SELECT session "
        f"FROM read_parquet('{whole}/*/*/{node}-*.parquet') "
        f"WHERE ev = 'session_created' AND client_id IN {READERS})"
    ).fetchall()
    ((too_large,),) = duckdb.sql(
        f"SELECT count(*) FROM read_parquet('{whole}/*/*/{node}-*.parquet') "
        f"WHERE ev = 'msg_dropped' AND reason = {TOO_LARGE}"
    ).fetchall()
    told, known = (expired, too_large), (run.books.expired, run.books.too_large)
    return [] if told == known else [f"{run.script}: (expired, too large) are {told}, not {known}"]


def _verdict(run: Lived, document: dict[str, Any], whole: Path) -> list[str]:
    """Compare what the node is accused of with what was done to it."""
    node = run.script.node
    found = {
        name: [each for each in document["invariants"][name]["witnesses"] if each["node"] == node]
        for name in INVARIANTS
        if name in document["invariants"]  # those of clients' logs are not
    }
    accused = {name: witnesses for name, witnesses in found.items() if witnesses}
    untested = [
        span["node"] for span in document["invariants"]["L2"]["untested"] if span["node"] == node
    ]
    wrong = []
    if bool(untested) != (run.script.level == "books"):
        wrong.append(f"{run.script}: L2 was {'not ' * bool(untested)}tested")
    if not run.script.is_planted:
        return wrong + [f"{run.script}: accused falsely: {name} {w}" for name, w in accused.items()]
    if not accused.keys() >= {"H1", "L2"}:
        wrong.append(f"{run.script}: the planted loss is not found: {sorted(accused)}")
    topics = accepted(whole, node)
    named = {topics[each["from"]["boot"], each["msg"]] for each in accused.get("L2", [])}
    if named != run.books.lost:
        wrong.append(f"{run.script}: lost are {sorted(run.books.lost)}, named {sorted(named)}")
    return wrong


def accepted(whole: Path, node: str) -> dict[tuple[int, int], str]:
    """Return the topic of each message that the history of a node has, by start and number.

    A database that was set back gives the same numbers again.
    """
    rows = duckdb.sql(
        f"SELECT boot, msg, topic FROM read_parquet('{whole}/*/*/{node}-*.parquet') "
        "WHERE ev = 'msg_accepted'"
    ).fetchall()
    return {(boot, msg): topic for boot, msg, topic in rows}


def _messages(run: Lived, whole: Path, out: Path) -> list[str]:
    """Compare message by message, where every message is recorded."""
    script, books = run.script, run.books
    if script.level != "full":
        return []
    found = accepted(whole, script.node)
    wrong = []
    known = set(found.values())
    if missing := books.promised - known:
        wrong.append(f"{script}: promised to publishers, not in the history: {sorted(missing)}")
    if more := known - books.promised - books.perhaps:
        wrong.append(f"{script}: in the history, not in the clients' books: {sorted(more)}")
    if script.is_planted:
        return wrong  # message numbers are there twice: before and behind the loss
    topics = {msg: topic for (_, msg), topic in found.items()}
    outcomes = duckdb.sql(
        "SELECT client_id, msg, outcome FROM "
        f"(SELECT session, msg, outcome FROM read_parquet('{out}/tables/deliveries/*/*.parquet') "
        f"WHERE node = '{script.node}' AND session IS NOT NULL) JOIN "
        "(SELECT DISTINCT session, client_id FROM "
        f"read_parquet('{whole}/*/*/{script.node}-*.parquet') WHERE ev = 'session_created') "
        "USING (session)"
    ).fetchall()
    for name in {*READERS, *books.owed} - {each for each in books.owed if "$share" in each}:
        delivered = {topics[msg] for who, msg, what in outcomes if who == name and what in DONE}
        got = set(books.got[name]) & books.promised
        if delivered & books.promised != got:
            wrong.append(
                f"{script}: {name} got {sorted(got - delivered)} more and "
                f"{sorted(delivered & books.promised - got)} less than the audit says"
            )
    return wrong

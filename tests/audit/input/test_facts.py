"""Facts as columns: they say what a condition per fact would say, in plans that do not grow."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from audit.checks import (
    gap_filter,
    log_checks,
    retained_checks,
    session_rowset,
    stream_holders,
)
from audit.input import facts
from audit.input.batch_view import View
from audit.input.events import gseq
from audit.input.gaps import HOLE, Gap
from tests.audit.conftest import History


def node() -> Column:
    return F.col("node")


def at() -> Column:
    return F.col("at")


def frame(spark: SparkSession) -> DataFrame:
    rows = [("n1", 5), ("n1", 20), ('"n"', 5), ("n3", 5), ("n1", None)]
    return spark.createDataFrame(rows, "node string, at long").coalesce(1)


def values(spark: SparkSession, column: Column) -> list[Any]:
    return [row.value for row in frame(spark).select(column.alias("value")).collect()]


def nodes_of(plan: DataFrame) -> int:
    """Return how many operators and expressions the optimized plan has."""
    return str(plan._jdf.queryExecution().optimizedPlan().toJSON()).count('"class"')


def test_a_node_has_its_value_and_others_none(spark: SparkSession) -> None:
    assert values(spark, facts.of_node(node(), {"n1": 1 << 60, '"n"': 2})) == [
        1 << 60, 1 << 60, 2, None, 1 << 60,
    ]  # fmt: skip
    assert values(spark, facts.of_node(node(), {})) == [None] * 5


def test_a_boot_has_the_value_of_its_node_and_number(spark: SparkSession) -> None:
    given = {("n1", 5): 1, ("n1", 20): 2, ("n3", 6): 3}
    assert values(spark, facts.of_boot(node(), at(), given)) == [1, 2, None, None, None]


def test_a_name_is_found_by_its_index(spark: SparkSession) -> None:
    assert values(spark, facts.name_at(["a", "b"], F.lit(1))) == ["b"] * 5


def test_intervals_touch_at_both_ends_and_only_on_their_node(spark: SparkSession) -> None:
    for start, end, touched in ((0, 4, False), (0, 5, True), (5, 9, True), (6, 9, False)):
        found = values(spark, facts.touches(node(), at(), at(), [("n1", start, end), ("n3", 9, 9)]))
        assert found == [touched, False, False, False, None]
    assert values(spark, facts.touches(node(), at(), at(), [])) == [False] * 5


def test_spans_include_both_ends(spark: SparkSession) -> None:
    assert values(spark, facts.is_within(at(), [(20, 30), (1, 5)])) == [True] * 4 + [None]
    assert values(spark, facts.is_within(at(), [])) == [False] * 5


def test_the_first_interval_that_is_not_over_counts(spark: SparkSession) -> None:
    given = [("n1", 30, 40), ("n1", 2, 6), ("n1", 7, 25), ("n3", 1, 2)]
    assert values(spark, facts.first_after(node(), at(), given))[:4] == [2, 7, None, None]


def test_a_plan_has_the_same_size_for_two_and_for_ten_thousand_facts(spark: SparkSession) -> None:
    def size(count: int) -> int:
        names = [f"n{number % 1000}" for number in range(count)]
        places = [(name, number, number) for number, name in enumerate(names)]
        given = {(name, number): number for number, name in enumerate(names)}
        columns = [
            facts.of_node(node(), dict.fromkeys(names, 1)),
            facts.of_boot(node(), at(), given),
            facts.name_at(names, at()),
            facts.touches(node(), at(), at(), places),
            facts.first_after(node(), at(), places),
            facts.is_within(at(), [place[1:] for place in places]),
        ]
        return nodes_of(frame(spark).select(*(c.alias(f"c{n}") for n, c in enumerate(columns))))

    assert size(2) == size(10_000)


def test_no_plan_of_a_check_grows_with_nodes_boots_or_gaps(
    history: History, view: Callable[[History], View]
) -> None:
    history.boot()
    history.session().create()
    made = view(history)

    def sizes(nodes: int, boots: int) -> list[int]:
        names = [f"n{number}" for number in range(1, nodes + 1)]
        many = [
            replace(made.boots[0], node=name, boot=number)
            for name in names
            for number in range(1, boots // nodes + 1)
        ]
        holes = [
            Gap(boot.node, gseq(boot.boot, 5), gseq(boot.boot, 9), "lost", HOLE) for boot in many
        ]
        fleet = replace(made, boots=many, gaps=holes)
        places = made.sessions.select(
            "node", "session", F.col("gseq").alias("from_gseq"), F.col("gseq").alias("to_gseq")
        )
        owner = session_rowset.node_number(fleet, F.col("node"))
        frames = [
            gap_filter.against_gaps(fleet, places),
            stream_holders.ends(fleet),
            made.sessions.select(session_rowset.node_name(fleet, owner * 2)),
            *log_checks.carry(fleet).places,
            *retained_checks.carry(fleet).places,
        ]
        return [nodes_of(each) for each in frames]

    assert sizes(1, 2) == sizes(1000, 10_000)

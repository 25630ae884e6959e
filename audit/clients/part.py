"""The parts of a run that has logs of clients: one more than otherwise."""

from collections.abc import Sequence
from datetime import datetime

from pyspark.sql import SparkSession

from audit.checks.verdict import Outcome
from audit.clients import reconcile
from audit.input.batch_view import View
from audit.run import PARTS, Part

__all__ = ["clients_part", "parts"]


def parts(
    spark: SparkSession,
    files: Sequence[str],
    history: str,
    start: datetime | None = None,
    end: datetime | None = None,
) -> tuple[Part, ...]:
    """Return all parts of a run; without files the usual ones. Raises LogError."""
    return (*PARTS, clients_part(spark, files, history, start, end)) if files else PARTS


def clients_part(
    spark: SparkSession,
    files: Sequence[str],
    history: str,
    start: datetime | None = None,
    end: datetime | None = None,
) -> Part:
    """Return the part that judges logs, which are read at once. Raises LogError."""
    clients = reconcile.opened(spark, files, history, start, end)

    def check(view: View) -> list[Outcome]:
        return reconcile.check(view, clients)

    return Part("logs of clients", check)

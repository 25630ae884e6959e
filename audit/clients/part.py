"""The parts of a run that has logs of clients: one more than otherwise."""

import argparse

from pyspark.sql import SparkSession

from audit.checks.verdict import Outcome
from audit.clients import reconcile
from audit.clients.reading import LogError
from audit.input.batch_view import View
from audit.run import PARTS, Part

__all__ = ["LogError", "parts"]


def parts(spark: SparkSession, options: argparse.Namespace) -> tuple[Part, ...]:
    """Return the parts of a run with these options; logs are read at once. Raises LogError."""
    if not options.clients:
        return PARTS
    clients = reconcile.opened(spark, options.clients, options.history, options.start, options.end)

    def check(view: View) -> list[Outcome]:
        return reconcile.check(view, clients)

    return (*PARTS, Part("logs of clients", check))

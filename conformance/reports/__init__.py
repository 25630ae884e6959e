"""The formats of a report: table, JSON, JUnit XML, HTML."""

from collections.abc import Callable, Mapping
from typing import Final

from conformance.reports.html import render as html
from conformance.reports.json import render as json
from conformance.reports.junit import render as junit
from conformance.reports.table import render as table
from conformance.results import Report

RENDERERS: Final[Mapping[str, Callable[[Report], str]]] = {
    "table": table,
    "json": json,
    "junit": junit,
    "html": html,
}

"""The run as one page for a browser."""

from conformance.reports.table import render as table
from conformance.results import Report


def render(report: Report) -> str:
    """Return the page."""
    from html import escape

    return f"<!doctype html><meta charset=utf-8><pre>{escape(table(report))}</pre>"

"""Which tests may be skipped where everything is to be there, as in `.ci/run`.

A test that is skipped because a program is missing looks like one that passed. With
HOLDFAST_TEST_REQUIRE_SERVERS=1 it fails, unless its reason is the build or the user.
"""

from collections.abc import Generator
from typing import Final

import pytest

from tests import real_servers

# What no installation changes.
ALLOWED: Final = (
    "becoming another user needs root",
    "compiled ",
    "looks inside",
    "niceness by thread is Linux's",
    "root may ",
    "the pure build has none",
)


def may_be_skipped(reason: str) -> bool:
    """Return whether a skip is for something that cannot be installed."""
    return reason.removeprefix("Skipped: ").startswith(ALLOWED)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Let a test fail that is skipped for what is missing, where nothing may be."""
    report = yield
    if report.skipped and real_servers.must_be_there() and isinstance(report.longrepr, tuple):
        reason = report.longrepr[2]
        if not may_be_skipped(reason):
            report.outcome = "failed"
            report.longrepr = f"{reason}; {real_servers.VARIABLE} says that nothing is missing"
    return report

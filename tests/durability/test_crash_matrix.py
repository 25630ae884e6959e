"""Holdfast passes every row of the crash matrix, and the rows bite: mosquitto fails its own.

The table of all brokers is printed by `scripts/crash-matrix`; this module prints the part it ran.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.durability.matrix import QUICK, ROWS, Verdict, run, table
from tests.durability.process import have_mosquitto

# What mosquitto 2.0 with its built-in persistence loses at kill -9, by design of that persistence
# (a snapshot each half hour). A check that mosquitto passes here would not check anything.
MOSQUITTO_FAILS = (
    "kill -9 at last PUBACK, 2000 QoS 1",
    "kill -9 at last PUBCOMP, 500 QoS 2",
    "QoS 2 inbound half-open, kill -9, DUP resend",
    "unacked in flight, kill -9 -> redelivered?",
    "will of a client connected at kill -9",
    "v5 Clean Start=1 + SEI>0, SIGTERM",
    "SEI over downtime, SIGTERM",
    "retained (200), kill -9 at ack",
)


@pytest.fixture(scope="module")
def results() -> Iterator[dict[tuple[str, str], Verdict]]:
    results: dict[tuple[str, str], Verdict] = {}
    yield results
    names = [name for name in ("holdfast", "mosquitto") if any(key[1] == name for key in results)]
    print("\n" + table(results, names))


@pytest.mark.parametrize("row", ROWS)
def test_holdfast_keeps(row: str, tmp_path: Path, results: dict[tuple[str, str], Verdict]) -> None:
    verdict = results[row, "holdfast"] = run(row, "holdfast", tmp_path, QUICK)
    assert verdict.passed, verdict.text


@pytest.mark.skipif(not have_mosquitto(), reason="Debian's mosquitto is not installed")
@pytest.mark.parametrize("row", MOSQUITTO_FAILS)
def test_the_row_bites_on_mosquitto(
    row: str, tmp_path: Path, results: dict[tuple[str, str], Verdict]
) -> None:
    verdict = results[row, "mosquitto"] = run(row, "mosquitto", tmp_path, QUICK)
    assert not verdict.passed, verdict.text
    assert not verdict.text.startswith("error"), verdict.text


@pytest.mark.skipif(not have_mosquitto(), reason="Debian's mosquitto is not installed")
@pytest.mark.parametrize(
    "row",
    ["SIGTERM at last PUBACK, 2000 QoS 1", "message expiry over downtime, SIGTERM"],
)
def test_the_row_can_be_passed_by_another_broker(row: str, tmp_path: Path) -> None:
    """What mosquitto is known to keep, it keeps here: the harness itself loses nothing."""
    verdict = run(row, "mosquitto", tmp_path, QUICK)
    assert verdict.passed, verdict.text

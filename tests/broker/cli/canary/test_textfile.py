"""Metrics of a canary in Prometheus' text format, replaced at once."""

from pathlib import Path

from broker.cli.canary.books import Sums
from broker.cli.canary.textfile import text_of, write


def test_every_metric_has_a_type_and_a_value(tmp_path: Path) -> None:
    sums = Sums(published=3, lost=1, round_trip_s=0.25)
    path = tmp_path / "canary.prom"
    write(str(path), text_of(sums, waiting=2, is_connected=True))
    write(str(path), text_of(sums, waiting=2, is_connected=True))
    lines = path.read_text().splitlines()
    values = dict(line.split() for line in lines if not line.startswith("#"))
    assert values["holdfast_canary_published_total"] == "3"
    assert values["holdfast_canary_lost_total"] == "1"
    assert values["holdfast_canary_round_trip_seconds"] == "0.250000"
    assert values["holdfast_canary_waiting"] == "2"
    assert values["holdfast_canary_up"] == "1"
    assert {line.split()[2] for line in lines if line.startswith("# TYPE")} == set(values)
    assert list(tmp_path.iterdir()) == [path]

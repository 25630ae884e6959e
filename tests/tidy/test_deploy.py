"""What deploy/ hands to operators fits the program it is for."""

import configparser
import json
import re
import shlex
import tomllib
from pathlib import Path
from typing import Final

import pytest

from broker.cli.main import build_parser
from broker.configuration.config import Shell
from broker.configuration.load import load
from broker.configuration.options import OPTIONS
from broker.configuration.show import template
from broker.observe.backend_figures import BackendFigures
from broker.observe.backlog_figures import KINDS, BacklogFigures
from broker.observe.cluster_figures import ClusterFigures
from broker.observe.metrics import (
    GAUGES,
    HISTORY_COUNTERS,
    PREFIX,
    BrokerCollector,
    Snapshot,
    Status,
)
from session.counters import Counters
from storage.local.disk_space import Measured

ROOT: Final = Path(__file__).resolve().parents[2]
DEPLOY: Final = ROOT / "deploy"


def metric_names() -> set[str]:
    """Return every metric the broker exports, by the name of its samples."""
    history = ("history_exporting", "history_lag_ms", "history_outbox_bytes", "history_level")
    witness = ("history_witness_lost_events", "history_witness_failures")
    of_history = (*history, *witness, *(each[0] for each in HISTORY_COUNTERS))
    keys = [*(each[0] for each in GAUGES), *of_history]
    snapshot = Snapshot(
        dict.fromkeys(keys, 0),
        connections={},
        storage_bytes={},
        write_stall=0,
        loop_lag_s=0.0,
        backends=[BackendFigures("cache", is_required=False)],
    )
    status = Status()
    status.disk, status.certificates = Measured(2, 3, 1), {"tls": 1}
    status.backlog = BacklogFigures(0.0, dict.fromkeys(KINDS, 0), dict.fromkeys(KINDS, 0), 0.0)
    status.cluster = ClusterFigures("leader", True, 1, 1, 1, 1, 0, 0, 0.0, 1, True)
    collector = BrokerCollector(Counters(), status, lambda timeout: snapshot)
    names = set()
    for metric in collector.collect():
        suffix = {"counter": "_total", "histogram": "_bucket"}.get(metric.type, "")
        names.add(metric.name + suffix)
    return names


def test_the_example_configuration_is_every_key_with_its_default() -> None:
    written = (DEPLOY / "holdfast.toml").read_text()
    assert written == template() + "\n", "holdfast config init > deploy/holdfast.toml"
    keys = re.findall(r"^#(\w+) = ", written, flags=re.M)
    assert sorted(keys) == sorted(option.key for option in OPTIONS)


def test_the_example_configuration_may_be_uncommented_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "holdfast.toml"
    text = (DEPLOY / "holdfast.toml").read_text()
    path.write_text(re.sub(r"^#(\w+ = )", r"\1", text, flags=re.M))
    default = load(environment={})
    loaded = load(str(path), environment={})
    for option in OPTIONS:
        assert loaded.value(option) == default.value(option), option.name


def test_the_unit_starts_a_command_of_ours_and_waits_for_it() -> None:
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read(DEPLOY / "holdfast.service")
    service = unit["Service"]
    words = shlex.split(service["ExecStart"])
    assert Path(words[0]).name == "holdfast"
    build_parser().parse_args(words[1:])
    assert service["Type"] == "notify"
    name, _, value = service["Environment"].partition("=")
    assert name in {option.variable for option in OPTIONS}
    assert value == f"/var/lib/{service['StateDirectory']}"
    drain_s = Shell().drain_timeout_ms / 1000
    assert int(service["TimeoutStopSec"]) > drain_s


def test_the_example_of_a_cluster_lets_its_nodes_start() -> None:
    text = (DEPLOY / "cluster" / "compose.yaml").read_text()
    image = re.findall(r"\b(HOLDFAST__\w+)=(\S+)", (ROOT / "Dockerfile").read_text())
    said = re.findall(r'^ +(HOLDFAST__\w+): "?([^"\n]+)"?$', text, flags=re.M)
    node = "HOLDFAST__STORAGE__KAFKA__NODE"
    shared = {name: value for name, value in said if name != node}
    assert len(shared) == len([name for name, _ in said if name != node]), "said twice"
    names = {value for name, value in said if name == node}
    for name in names:
        config = load(environment={**dict(image), **shared, node: name})
        assert config.cluster.is_replicated and set(config.cluster.members) == names
    servers = (DEPLOY / "cluster" / "haproxy.cfg").read_text()
    assert set(re.findall(r"^    server (\w+) \1:1883$", servers, flags=re.M)) == names
    # What is not in the volume is gone with the container.
    (place,) = set(re.findall(r"KAFKA_LOG_DIRS: (\S+)", text))
    assert len(re.findall(rf"volumes: \[(kafka\d):{place}\]", text)) == 3
    assert "command: [cluster, init]" in text
    build_parser().parse_args(["cluster", "init"])


@pytest.mark.parametrize("file", ["prometheus/alerts.yml", "grafana/holdfast.json"])
def test_alerts_and_dashboard_name_metrics_that_exist(file: str) -> None:
    text = (DEPLOY / file).read_text()
    named = set(re.findall(rf"\b{PREFIX}\w+", text))
    assert len(named) >= 8
    exported = metric_names()
    exported |= {name.replace("_bucket", "_count") for name in exported}
    assert named <= exported, sorted(named - exported)


def test_the_dashboard_shows_every_metric_of_the_stores() -> None:
    text = (DEPLOY / "grafana" / "holdfast.json").read_text()
    wanted = {name for name in metric_names() if name.startswith(f"{PREFIX}backend_")}
    shown = set(re.findall(rf"\b{PREFIX}backend_\w+", text))
    assert shown == {name for name in wanted if f"{name}_bucket" not in wanted}


def test_the_dashboard_shows_a_cluster() -> None:
    text = (DEPLOY / "grafana" / "holdfast.json").read_text()
    shown = set(re.findall(rf"\b{PREFIX}cluster_\w+", text))
    wanted = {name for name in metric_names() if name.startswith(f"{PREFIX}cluster_")}
    assert shown == wanted - {f"{PREFIX}cluster_pending_bytes"}


def test_no_panel_of_the_dashboard_covers_another_or_has_its_number() -> None:
    panels = json.loads((DEPLOY / "grafana" / "holdfast.json").read_text())["panels"]
    ids = [panel["id"] for panel in panels]
    assert len(set(ids)) == len(ids)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        at = panel["gridPos"]
        cells = {
            (at["x"] + across, at["y"] + down)
            for across in range(at["w"])
            for down in range(at["h"])
        }
        assert at["x"] + at["w"] <= 24 and not cells & taken, panel["title"]
        taken |= cells


def test_the_list_of_metrics_in_the_documents_is_complete() -> None:
    text = (ROOT / "docs" / "operations.md").read_text()
    listed = set(re.findall(rf"^\| `({PREFIX}\w+)", text, flags=re.M))
    exported = {name.removesuffix("_bucket") for name in metric_names()}
    assert listed == exported, (
        f"docs/operations.md: missing {sorted(exported - listed)}, "
        f"unknown {sorted(listed - exported)}"
    )


def test_what_is_needed_at_run_time_has_an_upper_bound() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    needed = [*extras["history"], *extras["redis"], *extras["dynamodb"]]
    needed += [*extras["cassandra"], *extras["audit"]]
    for requirement in [*project["dependencies"], *needed]:
        assert re.search(r"==|,<[0-9]+(;|$)", requirement), requirement


def test_every_dependency_has_its_line() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"]]
    for extra in project["optional-dependencies"].values():
        wanted += extra
    names = {re.match(r"[\w-]+", requirement)[0] for requirement in wanted}  # type: ignore[index]
    text = (ROOT / "docs" / "dependencies.md").read_text().partition("## Not from PyPI")[0]
    assert set(re.findall(r"^\| `([\w-]+)` \|", text, flags=re.M)) == names


def test_each_alert_leads_to_the_section_that_says_what_to_do() -> None:
    """And there is no section of an alert that is gone."""
    alerts = (DEPLOY / "prometheus" / "alerts.yml").read_text()
    text = (ROOT / "docs" / "operations.md").read_text()
    _, _, section = text.partition("\n## When an alert fires\n")
    headings = re.findall(r"^### (\w+)$", section.partition("\n## ")[0], flags=re.M)
    named = []
    for rule in alerts.split("      - alert: ")[1:]:
        (target,) = re.findall(r"^          runbook: (\S+)$", rule, flags=re.M)
        named.append((rule.split()[0], target))
    assert named == [(name, f"docs/operations.md#{name.lower()}") for name in headings]

"""How a name on the command line becomes an adapter."""

import re
from pathlib import Path

import pytest

from conformance.adapters import BUILT_IN, find
from conformance.adapters.base import OPTIONS, AdapterError, Place
from conformance.failure import NotRun

DOCUMENT = Path(__file__).resolve().parents[3] / "docs" / "conformance.md"


def test_those_that_come_with_the_suite_are_found_by_name() -> None:
    for name in BUILT_IN:
        assert find(name).name == name


def test_a_class_in_a_file_or_a_module_is_an_adapter_too(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text("class Mine:\n    name = 'mine'\n    describe = prepare = print\n")
    assert find(f"{path}:Mine").name == "mine"
    assert find("conformance.adapters.mosquitto:Mosquitto").name == "mosquitto"


def test_a_file_that_is_broken_is_one_clear_error(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text("class Mine\n")
    with pytest.raises(AdapterError, match="expected ':'"):
        find(f"{path}:Mine")


def test_the_example_in_the_documents_is_an_adapter(tmp_path: Path) -> None:
    (example,) = re.findall(r"```python\n(# acme.*?)```", DOCUMENT.read_text(), flags=re.S)
    path = tmp_path / "acme_adapter.py"
    path.write_text(example)
    acme = find(f"{path}:Acme")
    assert acme.describe() == "acme 1.2"
    launch = acme.prepare(Place(tmp_path, "127.0.0.1", 20_001, 20_002), {"maximum_qos": 1})
    assert list(launch.command) == ["acme", "--config", str(tmp_path / "acme.conf")]
    assert "max-qos 1" in (tmp_path / "acme.conf").read_text()
    with pytest.raises(NotRun, match="websocket"):
        acme.prepare(Place(tmp_path, "127.0.0.1", 20_001, 20_002), {"websocket": True})


def test_the_documents_list_the_options_there_are() -> None:
    section = DOCUMENT.read_text().split("The options, all of them optional:")[1].split("\n\n")[1]
    first_cells = [row.split("|")[1] for row in section.splitlines()[2:]]
    assert {name for cell in first_cells for name in re.findall(r"`(\w+)`", cell)} == set(OPTIONS)

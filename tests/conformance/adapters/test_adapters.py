"""How a name on the command line becomes an adapter."""

from pathlib import Path

import pytest

from conformance.adapters import BUILT_IN, find
from conformance.adapters.base import AdapterError


def test_those_that_come_with_the_suite_are_found_by_name() -> None:
    for name in BUILT_IN:
        assert find(name).name == name


def test_a_class_in_a_file_or_a_module_is_an_adapter_too(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text("class Mine:\n    name = 'mine'\n")
    assert find(f"{path}:Mine").name == "mine"
    assert find("conformance.adapters.mosquitto:Mosquitto").name == "mosquitto"


def test_a_file_that_is_broken_is_one_clear_error(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text("class Mine\n")
    with pytest.raises(AdapterError, match="expected ':'"):
        find(f"{path}:Mine")

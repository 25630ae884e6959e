"""What a command does to the umask is gone after its test."""

import os
from pathlib import Path

import pytest

from tests.umask import current, no_umask_outlives_its_test, restored


def test_to_read_it_changes_nothing() -> None:
    assert current() == current()


def test_it_comes_back_also_after_a_failure(tmp_path: Path) -> None:
    os.umask(0o022)
    with pytest.raises(ZeroDivisionError), restored():
        os.umask(0o077)
        raise ZeroDivisionError
    (tmp_path / "file").write_text("")
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o644


def test_every_test_is_under_this_rule(request: pytest.FixtureRequest) -> None:
    assert no_umask_outlives_its_test.__name__ in request.fixturenames

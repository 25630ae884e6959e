"""Does the broker tell the truth about how it was built?"""

from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest

import session.engine
from broker import build


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a directory that modules are imported from."""
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def find(place: Path, *, module: str, note: str | None) -> build.Build:
    """Return what is said of a module of this file name, beside this note."""
    (place / module).touch()
    if note is not None:
        (place / "build.txt").write_text(note + "\n")
    return build.find(module.partition(".")[0], place / "build.txt")


EXTENSION = "core_a" + EXTENSION_SUFFIXES[0]


def test_this_one_is_what_is_loaded_here() -> None:
    is_source = (session.engine.__file__ or "").endswith(".py")
    assert build.find().kind == (build.PURE if is_source else build.COMPILED)


def test_an_extension_module_is_a_compiled_build(place: Path) -> None:
    found = find(place, module=EXTENSION, note="compiled mypyc 2.4.1")
    assert (str(found), found.kind) == ("compiled (mypyc 2.4.1)", "compiled")
    assert not found.fell_back


def test_sources_without_a_note_run_from_where_they_are(place: Path) -> None:
    found = find(place, module="core_b.py", note=None)
    assert (str(found), found.kind) == ("pure Python (run from its sources)", "pure")
    assert not found.fell_back


def test_pure_python_that_was_asked_for_says_so(place: Path) -> None:
    found = find(place, module="core_c.py", note="pure HOLDFAST_BUILD=pure")
    assert str(found) == "pure Python (HOLDFAST_BUILD=pure)"
    assert not found.fell_back


def test_pure_python_that_nobody_asked_for_says_why(place: Path) -> None:
    found = find(place, module="core_d.py", note="fallback no C compiler was found: gcc")
    assert str(found) == "pure Python (no C compiler was found: gcc)"
    assert found.fell_back


def test_a_compiled_wheel_whose_extension_modules_do_not_load_is_found_out(place: Path) -> None:
    found = find(place, module="core_e.py", note="compiled mypyc 2.4.1")
    assert found.kind == "pure" and found.fell_back
    assert "another Python" in found.why


def test_what_is_asked_about_is_not_loaded(place: Path) -> None:
    (place / "core_f.py").write_text("raise AssertionError('loaded')\n")
    assert build.find("core_f", place / "build.txt").kind == "pure"

"""A mutant that hangs the tests is killed by the time limit, and is never met again."""

import sys
from pathlib import Path

from tests.mutants.mutations import mutants
from tests.mutants.stages import Stage
from tests.mutants.trial import Copy

MODULE = "ENDS = 1\nwhile not ENDS:\n    pass\n"


def test_a_hanging_test_is_ended_and_the_file_is_as_before(tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    (tmp_path / "work/m.py").write_text(MODULE)
    tree = Copy(tmp_path / "work", ["m.py"], tmp_path / "copy")
    stage = Stage(1, "own tests", (sys.executable, "-c", "import m"))
    assert tree.run(stage, 60) == 0
    (endless,) = [one for one in mutants("m.py", MODULE) if one.change == "1 -> 0"]
    with tree.planted(endless):
        assert tree.run(stage, 0.5) is None
    assert tree.run(stage, 60) == 0
    assert (tree.tree / "m.py").read_text() == MODULE


def test_a_change_of_the_same_length_in_the_same_second_is_seen(tmp_path: Path) -> None:
    """Byte code is found again by size and second alone."""
    (tmp_path / "work").mkdir()
    (tmp_path / "work/m.py").write_text("x = 1\n")
    (tmp_path / "work/t.py").write_text("import m\nassert m.x == 1\n")
    tree = Copy(tmp_path / "work", ["m.py", "t.py"], tmp_path / "copy")
    stage = Stage(1, "own tests", (sys.executable, "-c", "import t"))
    assert tree.run(stage, 60, cache=True) == 0
    for one in mutants("m.py", "x = 1\n"):
        with tree.planted(one):
            assert tree.run(stage, 60) == 1, one
        assert tree.run(stage, 60) == 0

"""One audit of many nodes: falsified histories, real runs and simulated worlds.

Spark is dear, so one run judges them all; what it says of one node does not depend on the others.
"""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.audit.deceptions import matrix
from tests.audit.real_runs.runs import Lived, draw, live, problems
from tests.durability.process import let_run_for
from tests.simulation.audited import Tally, damaged_in, node_of, write_worlds

pytestmark = [
    pytest.mark.ci,
    pytest.mark.skipif(
        shutil.which("mosquitto_sub") is None, reason="Debian's mosquitto-clients is not installed"
    ),
]

MANY_SECONDS = 900.0  # more than other tests take, on a busy machine
RUNS = (0, 3, 19)  # one with a planted loss, one without, and one at a lower level
# These showed mistakes of the audit or of the history: positions of sessions with packet ids bound
# ahead, rows discarded over the end of a start, a client that does not want to hear its own will.
ONCE_WRONG = (6, 36, 110, 135)
WORLDS = (*ONCE_WRONG, *range(200, 208))


@dataclass(frozen=True)
class Judged:
    """What one audit said of all nodes, and what the clients of the real runs know."""

    history: Path
    out: Path
    lived: Sequence[Lived]
    document: dict[str, Any]


@pytest.fixture(scope="module")
def judged(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Judged:
    """All histories, audited."""
    let_run_for(MANY_SECONDS)
    place = tmp_path_factory.mktemp("many")
    history, out = place / "history", place / "out"
    lived = [live(draw(seed), place, history) for seed in RUNS]
    matrix.write_all(history)
    for seed in WORLDS:
        assert write_worlds(seed, 1, None, history) == []
    return Judged(history, out, lived, matrix.judge(spark, history, out))


def test_the_document_says_of_each_attack_what_the_audit_says(judged: Judged) -> None:
    document = judged.document
    assert matrix.accusations(document, matrix.HONEST) == {}
    assert matrix.untested(document, matrix.HONEST) == set()
    assert matrix.written(matrix.DOCUMENT.read_text()) == list(matrix.rows(document))
    for attack in matrix.ATTACKS:
        is_missed = matrix.named_by(document, attack) == matrix.MISSED
        assert attack.needs or not is_missed, attack.what


def test_the_audit_says_what_the_clients_of_every_real_run_saw(judged: Judged) -> None:
    assert problems(judged.lived, judged.document, judged.history, judged.out) == []


def test_nobody_is_accused_in_a_world_that_judged_itself(judged: Judged) -> None:
    tally = Tally({node_of(seed) for seed in WORLDS})
    tally.add(judged.document, damaged_in(judged.history))
    assert tally.accused == []

"""The books the generator writes are those of its events, counted by somebody else."""

from tests.audit.generate.conftest import Made


def test_books_are_those_of_the_events(clean: Made) -> None:
    told = clean.oracle.books_told()
    assert told == clean.oracle.books_counted()
    stages = {stage for _, _, _, stage, *_ in told}
    assert len(stages) == 11


def test_faults_are_in_the_books_too(faulty: Made) -> None:
    told = {row for row in faulty.oracle.books_told() if row[0] == "alpha"}
    assert told == {row for row in faulty.oracle.books_counted() if row[0] == "alpha"}


def test_books_go_on_in_a_gap_of_messages(faulty: Made) -> None:
    (hidden,) = faulty.oracle.rows("SELECT count FROM h WHERE ev = 'history_gap' AND reason = 1050")
    told = {row[:4]: row[4] for row in faulty.oracle.books_told() if row[0] == "beta"}
    seen = {row[:4]: row[4] for row in faulty.oracle.books_counted() if row[0] == "beta"}
    assert sum(told.values()) > sum(seen.values())
    assert hidden[0] > 100

"""A table is aligned by its first rows, however long it is."""

from collections.abc import Iterator

from broker.operations.looking.table import WIDTH_ROWS, aligned


def test_columns_are_as_wide_as_their_widest_cell() -> None:
    lines = list(aligned(("A", "B"), [("long cell", "1"), ("x", "2")]))
    assert lines == ["A          B", "long cell  1", "x          2"]


def test_a_table_without_rows_has_its_titles() -> None:
    assert list(aligned(("A", "B"), [])) == ["A  B"]


def test_a_wide_cell_far_behind_juts_out_and_nothing_is_held_for_it() -> None:
    pulled = []

    def rows() -> Iterator[tuple[str, str]]:
        for row in [("x", "1")] * WIDTH_ROWS + [("very wide", "2")] * 2:
            pulled.append(row)
            yield row

    lines = aligned(("A", "B"), rows())
    assert next(lines) == "A  B"
    assert len(pulled) == WIDTH_ROWS
    assert list(lines)[-2:] == ["very wide  2", "very wide  2"]

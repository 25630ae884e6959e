"""Does docs/design.md show the state machines as the code has them?"""

from tests.session.state_tables import DESIGN, TABLES, with_tables


def test_the_document_shows_the_tables_of_the_code() -> None:
    document = DESIGN.read_text()
    assert document == with_tables(document), "run `python -m tests.session.state_tables`"


def test_a_document_with_another_table_is_noticed() -> None:
    document = "".join(f"<!-- {name} -->\n| old |\n<!-- end -->\n" for name in TABLES)
    written = with_tables(document)
    assert "| old |" not in written and with_tables(written) == written
    assert all(table in written for table in TABLES.values())

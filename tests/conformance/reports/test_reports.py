"""Every form of report tells the same."""

import pytest

from conformance.reports import RENDERERS
from tests.conformance.reports.sample import REPORT


@pytest.mark.parametrize("form", sorted(RENDERERS))
def test_every_form_names_every_statement_and_the_broker(form: str) -> None:
    text = RENDERERS[form](REPORT)
    for found in REPORT.results:
        assert found.statement.id in text
    assert "toy" in text
    assert "40 02 00 07" in text or "40020007" in text
    assert "PUBREC" in text

"""Does docs/design.md show the ways of packets as they are?"""

import pytest

import session.engine
from tests.session import walk


@pytest.mark.skipif(
    not (session.engine.__file__ or "").endswith(".py"), reason="compiled calls cannot be traced"
)
def test_the_document_shows_the_way_of_each_packet_as_a_run_takes_it() -> None:
    text = walk.DOCUMENT.read_text()
    shown = text.partition(walk.BEGIN)[2].partition(walk.END)[0]
    assert shown.strip() == walk.section().strip(), "python -m tests.session.walk"

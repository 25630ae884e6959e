"""The list of those who are connected."""

from broker.admin.pages.views import connections
from broker.admin.records import Page
from tests.broker.admin.pages.records import AT, client


def test_a_page_leads_on_and_back() -> None:
    page = Page([client()], "ab", AT, ["note"])
    context = connections.context(page, match="th", cursor="cd", may_act=False)
    assert context["links"] == {
        "first": "/connections?match=th",
        "next": "/connections?match=th&cursor=ab",
    }
    assert context["notes"] == ["note"] and context["title"] == "Clients that match 'th'"


def test_nobody_is_told_apart_from_not_yet_known() -> None:
    nobody = connections.context(Page([], None, AT, []), match="", cursor="", may_act=True)
    assert nobody["empty"] == "No client is connected."
    waiting = connections.context(None, match="", cursor="", may_act=True)
    assert waiting["empty"] == "The clients are being listed."
    assert waiting["links"] == {"first": "", "next": ""}

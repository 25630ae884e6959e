"""The page: its headline, its board, its size, and how it behaves in a real browser."""

import re
from collections.abc import Iterator
from html import unescape
from html.parser import HTMLParser
from pathlib import Path

import pytest

from audit.checks.verdict import INVARIANTS, OF_CLIENTS
from audit.report import page as report
from audit.report.summary import Picture
from tests.audit import browser, pictures

VOID = {"meta", "link", "br", "img", "input", "hr"}
MAKERS = {
    make.__name__: make
    for make in (
        pictures.empty,
        pictures.tiny,
        pictures.busy,
        pictures.violated,
        pictures.uneven,
        pictures.hostile,
    )
}


def headline(picture: Picture) -> str:
    """Return the sentence a person reads first."""
    return report.headline_of(picture).text


def test_the_headline_is_what_survived() -> None:
    assert headline(pictures.busy()) == "What existed before each crash exists after it"
    assert report.headline_of(pictures.busy()).below == (
        "Up to 4,140 sessions had to survive 3 crashes and 1 clean restart; "
        "every one was found again, as it was."
    )


def test_the_headline_never_says_more_than_is_known() -> None:
    assert headline(pictures.empty()) == "There is nothing to audit"
    assert headline(pictures.tiny()).startswith("No crash, no restart")
    assert headline(pictures.violated()).startswith("Not everything")
    picture = pictures.busy()
    check = picture.check("S5")
    assert check is not None
    check.outcome = "unknown"
    assert headline(picture) == "Whether everything survived cannot be told"
    picture.checks = [check for check in picture.checks if check.id != "S5"]
    assert "not checked" in headline(picture)


@pytest.mark.parametrize("what", ["no events", "S5 left out", "no restart", "no session"])
def test_where_nothing_had_to_survive_there_is_no_tick(what: str) -> None:
    """Only a crash that a session survived shows that sessions survive crashes."""
    picture = pictures.empty() if what == "no events" else pictures.busy()
    if what == "S5 left out":
        picture.checks = [check for check in picture.checks if check.id != "S5"]
    elif what == "no restart":
        picture.boots = picture.boots[-1:]
    elif what == "no session":
        idle(picture, "S5")
    found = report.headline_of(picture)
    assert found.look == "idle"
    assert "exists after it" not in found.text
    page = report.render(picture)
    assert '<header class="hero idle">' in page
    assert '<span class="sign idle" aria-hidden="true">–</span>' in page  # noqa: RUF001


def idle(picture: Picture, *names: str) -> None:
    """Let these invariants have had nothing to check."""
    for check in picture.checks:
        if check.id in names:
            check.checked = 0


def test_the_sign_is_that_of_the_headline_and_the_colour_that_of_the_verdict() -> None:
    """A cross beside "what existed exists" would deny it, where another invariant is violated."""
    picture = pictures.busy()
    check = picture.check("L2")
    assert check is not None
    check.outcome, check.violated, picture.outcome = "violated", 3, "violated"
    page = report.render(picture)
    assert '<header class="hero violated">' in page
    assert '<span class="sign ok" aria-hidden="true">✓</span><span>What existed before' in page
    assert '<span class="chip violated">violated</span> 1 of 20 invariants violated' in page


def test_what_earlier_runs_found_is_not_forgotten() -> None:
    """The numbers are those of all runs: a new run without a crash takes nothing back."""
    picture = pictures.busy()
    check = picture.check("S5")
    assert check is not None
    check.checked, check.earlier = 0, (4000, 1, 0)
    found = report.headline_of(picture)
    assert (found.look, found.text) == (
        "violated", "Not everything that existed before a crash existed after it",
    )  # fmt: skip
    assert report.summary_of(picture) == (
        "19 of 20 invariants hold; 1 had nothing to check. "
        "Earlier runs over this history found violations: S5 (1)."
    )
    picture.batches = 2
    page = report.render(picture)
    assert '<header class="hero violated">' in page
    assert '<span class="chip ok">this run: ok</span>' in page
    assert "not tested</span> · 1 time violated before</span>" in page
    loud = page[page.index('id="what-title"') : page.index('class="held"')]
    assert 'id="S5"' in loud
    assert "4,000 checked, 1 violated, 0 unknown" in loud


def test_what_earlier_runs_saw_survive_still_counts() -> None:
    picture = pictures.busy()
    check = picture.check("S5")
    assert check is not None
    check.checked, check.earlier = 0, (4000, 0, 7)
    found = report.headline_of(picture)
    assert (found.look, found.text) == ("ok", "What existed before each crash exists after it")
    assert found.below.endswith("7 things could not be told by earlier runs.")
    assert "violated before" not in report.render(picture)


def test_an_invariant_that_had_nothing_to_check_has_no_tick() -> None:
    picture = pictures.busy()
    idle(picture, "W1", "R1")
    assert report.summary_of(picture) == "18 of 20 invariants hold; 2 had nothing to check."
    page = report.render(picture)
    assert re.search(r'<a class="tile idle" href="#W1">', page)
    assert '<span class="word">not tested</span></span></a>' in page
    assert "18 of them true" in page
    assert "2 with nothing to check" in page


def test_losses_are_compared_with_what_is_known_only() -> None:
    picture = pictures.violated()
    assert "3 sessions of up to 4,140 not as before" in report.headline_of(picture).below
    for boot in picture.boots:
        boot.sessions_before = None
    assert report.headline_of(picture).below == (
        "3 sessions not as before, over 3 crashes and 1 clean restart."
    )


def test_the_summary_names_the_worst_first() -> None:
    assert report.summary_of(pictures.busy()) == "All 20 invariants hold."
    assert report.summary_of(pictures.violated()) == (
        "3 of 20 invariants violated: L2 (52), D3 (1), S5 (3). 2 cannot be told. "
        "Suppressed, with a reason: D2 (4)."
    )
    picture = pictures.busy()
    picture.checks[3].outcome = "unknown"
    assert report.summary_of(picture) == (
        f"19 of 20 invariants hold; cannot be told: {picture.checks[3].id}."
    )


def test_every_invariant_has_a_tile_that_leads_to_its_findings() -> None:
    page = report.render(pictures.violated())
    for name in set(INVARIANTS) - set(OF_CLIENTS):
        assert f'href="#{name}"' in page
        assert f'id="{name}"' in page


def test_violations_are_open_and_show_their_witnesses() -> None:
    page = report.render(pictures.violated())
    assert re.search(r'<details class="row violated" id="L2" open>', page)
    assert re.search(r'<details class="row ok" id="L1">', page)
    assert "line-51/recorder" in page
    assert '<thead><tr><th scope="col">what</th><th scope="col">node</th>' in page
    assert page.count("passed over: below the position") == 52 + 1 + 3 + 4  # and four stories


class Balance(HTMLParser):
    """Notes tags that are not closed where they should be."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.wrong: list[str] = []
        self.ids: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.ids += [value for name, value in attrs if name == "id" and value]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open.pop() != tag:
            self.wrong.append(f"{tag} at {self.getpos()}")


@pytest.mark.parametrize("name", sorted(MAKERS))
def test_the_page_is_well_formed(name: str) -> None:
    balance = Balance()
    balance.feed(report.render(MAKERS[name]()))
    assert not balance.wrong
    assert not balance.open
    assert len(balance.ids) == len(set(balance.ids))


@pytest.mark.parametrize("name", sorted(MAKERS))
def test_the_page_asks_nobody_for_anything(name: str) -> None:
    page = report.render(MAKERS[name]())
    assert not re.search(r"""(?:src|href)=["'](?!#|data:,)""", page)
    assert "url(" not in page and "@import" not in page
    assert "default-src 'none'" in unescape(page)


def test_names_from_outside_stay_text() -> None:
    page = report.render(pictures.hostile())
    assert page.count("<script>") == 1 and page.count("</script>") == 1
    assert "<img" not in page
    assert "\u202e" not in page and "\x00" not in page


def test_witnesses_make_room_until_the_page_fits() -> None:
    picture = pictures.violated()
    for check in picture.checks:
        check.outcome, check.violated = "violated", 100_000
        check.witnesses = [{f"column_{c}": "&" * 79 for c in range(12)} for _ in range(100)]
    page = report.render(picture)
    assert len(page.encode()) < report.SIZE_MAX
    assert "5 of 100,000; the others are in" in page


def test_without_colours_the_outcome_is_still_told() -> None:
    page = report.render(pictures.violated())
    for sign, word in (("✓", "ok"), ("✕", "violated"), ("?", "unknown")):
        assert f'<span class="mark">{sign} {word}</span>' in page


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[browser.Page]:
    """A tab of a headless browser."""
    command = browser.find()
    if command is None:
        pytest.skip("no Chromium here")
    with browser.browse(command, tmp_path_factory.mktemp("profile")) as tab:
        yield tab


@pytest.mark.parametrize("name", sorted(MAKERS))
def test_the_page_fits_every_window_asks_nobody_and_axe_finds_nothing(
    page: browser.Page, tmp_path: Path, name: str
) -> None:
    path = tmp_path / "report.html"
    path.write_text(report.render(MAKERS[name]()), "utf-8")
    for width, dark in ((390, False), (1280, True), (390, True), (1280, False)):
        page.open(path, width=width, dark=dark)
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.evaluate("document.title").startswith("Session audit")
        assert page.complaints() == []
        assert page.requests() == [path.as_uri()]
        # Both schemes and both widths; axe takes seconds, and the other pages have no other parts.
        if (width < 600) == dark and name in ("tiny", "violated", "uneven"):
            assert page.violations() == []


def test_in_a_narrow_window_no_cell_of_the_table_of_ends_is_cut(
    page: browser.Page, tmp_path: Path
) -> None:
    path = tmp_path / "report.html"
    path.write_text(report.render(pictures.violated()), "utf-8")
    page.open(path, width=390)
    cells = "[...document.querySelectorAll('.deaths tbody > tr > *')]"
    assert page.evaluate(f"{cells}.length") == 4 * 7
    assert page.evaluate(
        f"{cells}.every(cell => cell.getBoundingClientRect().right <= 390 "
        "&& cell.scrollWidth <= cell.clientWidth)"
    )


def test_the_choice_of_a_broker_hides_the_others_without_a_script(
    page: browser.Page, tmp_path: Path
) -> None:
    picture = pictures.uneven()
    check = picture.check("L2")
    assert check is not None
    check.outcome, check.violated = "violated", 2
    check.witnesses = [{"what": "lost", "node": f"holdfast-{n}", "msg": n} for n in (1, 2)]
    picture.stories = [pictures.story("L2"), pictures.story("L2", 1, "holdfast-2")]
    path = tmp_path / "report.html"
    path.write_text(report.render(picture), "utf-8")
    page.send("Emulation.setScriptExecutionDisabled", value=True)
    try:
        page.open(path, width=1280)
    finally:
        page.send("Emulation.setScriptExecutionDisabled", value=False)
    seen = (
        "[...document.querySelectorAll('#L2 tbody tr, #L2 .story')].map(e => e.checkVisibility())"
    )
    assert page.evaluate(seen) == [True, True, True, True]
    page.evaluate("document.getElementById('node-1').click()")
    assert page.evaluate(seen) == [False, True, False, True]
    page.evaluate("document.getElementById('node-all').click()")
    assert page.evaluate(seen) == [True, True, True, True]


def test_a_chart_is_read_out_by_keys_and_a_tile_opens_its_findings(
    page: browser.Page, tmp_path: Path
) -> None:
    path = tmp_path / "report.html"
    path.write_text(report.render(pictures.busy()), "utf-8")
    page.open(path, width=1440)
    page.evaluate("document.querySelector('.plot').focus()")
    for kind in ("keyDown", "keyUp"):
        page.send("Input.dispatchKeyEvent", type=kind, key="ArrowRight", code="ArrowRight")
    assert page.evaluate("document.querySelector('.plot .out').textContent") == (
        "01 Nov 08:00\nacknowledgements owed 900\nacknowledged 900"
    )
    assert not page.evaluate("document.getElementById('L3').checkVisibility()")
    assert not page.evaluate("document.getElementById('L3').open")
    page.evaluate("document.querySelector('.tile[href=\"#L3\"]').click()")
    page.evaluate("new Promise(done => setTimeout(done, 50))")
    assert page.evaluate("document.getElementById('L3').open")
    assert page.evaluate("document.querySelector('.held').open")

"""The dashboard in Debian's Chromium: what an operator does there at night."""

import pytest
from playwright.sync_api import Browser, expect

from tests.broker.admin.pages.browser import WIDTHS, Tab, tab
from tests.broker.admin.pages.scene import LONG, MARKUP, owe
from tests.broker.admin.running import Running
from tests.durability.rawclient import RawClient

PAGES = (
    "/",
    "/?sort=name",
    "/session?id=boat-17",
    "/session?id=boat-18&payloads=1",
    "/session?id=there-1",
    "/session?id=clean%01one",
    "/session/past?id=boat-17",
    "/session/purge?id=boat-17&older=2d",
    "/session/purge?id=boat-17",
    "/session/delete?id=boat-17",
    "/client/kick?id=there-1",
    "/connections",
    "/bans?client=there-1",
    "/topics?topic=plant/7/alarm",
    "/topics?topic=a/%23&filter=a%23",
    "/retained?topic=plant/7/state",
    "/group?name=crew&filter=orders/%23",
    "/group/purge?name=crew&filter=orders/%23&older=2d",
    "/publish?topic=plant/7/alarm",
    "/broker",
    "/storage",
    "/retained/delete?topic=plant/7/state",
    "/trace?client=boat-17",
    "/past",
    "/access",
    "/access/user?name=vera",
    "/access/user/remove?name=vera",
    "/password",
)


@pytest.mark.ci
@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", WIDTHS)
def test_every_page_fits_its_window_and_axe_finds_nothing(
    port_town: Running, browser: Browser, width: int, dark: bool
) -> None:
    wrong = []
    with tab(browser, port_town, width=width, dark=dark) as here:
        here.open("/login")
        wrong += [f"/login: {each}" for each in here.violations()]
        here.log_in("anna")
        for path in PAGES:
            here.open(path)
            here.page.wait_for_load_state("networkidle")
            wrong += [f"{path}: {each}" for each in here.violations()]
            if here.overflow() > 0:
                wrong.append(f"{path}: {here.overflow()} pixels too wide")
        here.may_be_refused = True
        here.open("/session?id=nobody")
        wrong += [f"not found: {each}" for each in here.violations()]
    assert not wrong, "\n".join(wrong)


def test_who_is_owed_most_is_found_and_the_queue_is_dropped_after_a_question(
    port_town: Running, browser: Browser
) -> None:
    owe(port_town, "boat-40", 40, topic="fleet/40")
    with tab(browser, port_town, width=390) as here:
        here.log_in("olga")
        here.page.click("thead a:has-text('Messages')")
        here.page.wait_for_url("**sort=messages**")
        here.page.locator("#list tbody tr").first.get_by_role("link").click()
        expect(here.page.locator("h1")).to_have_text("boat-40")
        expect(here.page.locator("#queue-list tbody tr")).to_have_count(25)
        assert "Show payloads" not in here.main()
        here.page.click("text=Drop what waits")
        here.sees("40 messages would be dropped, for good.")
        here.page.fill("#reason", "they are old")
        here.page.click("text=Drop 40 messages")
        here.sees("40 messages dropped; that is durable.")
        here.sees("It is owed nothing.")
    (line,) = [each for each in port_town.log_lines() if each.get("reason") == "they are old"]
    assert (line["name"], line["client_id"], line["outcome"]) == ("olga", "boat-40", "asked")


def test_a_client_is_kicked_with_the_keyboard_alone_and_the_admin_log_tells(
    port_town: Running, browser: Browser
) -> None:
    loud = RawClient(port_town.broker.port, "loud-1")
    loud.durable()
    with tab(browser, port_town) as here:
        here.log_in("anna")
        here.open("/connections?match=loud")
        press = here.page.keyboard.press
        press("Tab")
        expect(here.page.locator(":focus")).to_have_text("Skip to the content")
        press("Enter")
        focus(here, "End the connection of loud-1")
        press("Enter")
        here.sees("What would happen")
        focus_field(here, "reason")
        here.page.keyboard.type("too loud")
        press("Tab")
        press("Enter")
        here.sees("The connection of loud-1 has ended.")
        left = loud.expect_closed()
        assert left is not None and left.reason_string == "too loud"
        here.open("/access")
        row = here.page.locator("#log tbody tr", has_text="too loud").first
        expect(row).to_contain_text("kick client, client_id loud-1, reason too loud")


def focus(here: Tab, text: str) -> None:
    """Press Tab until a link has the focus, and its outline can be seen."""
    for _ in range(60):
        here.page.keyboard.press("Tab")
        focused = here.page.locator(":focus")
        if focused.count() and focused.inner_text().replace("\n", " ") == text:
            width = focused.evaluate("each => getComputedStyle(each).outlineWidth")
            assert width == "2px", width
            return
    raise AssertionError(f"{text!r} never has the focus")


def focus_field(here: Tab, name: str) -> None:
    """Press Tab until a field has the focus."""
    for _ in range(60):
        here.page.keyboard.press("Tab")
        if here.page.evaluate("document.activeElement.id") == name:
            return
    raise AssertionError(f"{name!r} never has the focus")


def test_a_list_finds_as_one_types_and_stays_live(port_town: Running, browser: Browser) -> None:
    with tab(browser, port_town) as here:
        here.log_in("vera")
        here.page.locator("#find-match").press_sequentially("new-ship")
        here.sees("No stored session matches 'new-ship'.")
        here.page.wait_for_url("**match=new-ship**")
        owe(port_town, "new-ship-1", 2, topic="new")
        here.sees("new-ship-1")  # nobody has touched the page
        expect(here.page.locator("#find-match")).to_be_focused()


@pytest.mark.parametrize("script", [True, False])
def test_hostile_names_lead_to_their_own_pages(
    port_town: Running, browser: Browser, script: bool
) -> None:
    with tab(browser, port_town, width=390, script=script) as here:
        here.log_in("vera")
        for name in (MARKUP, LONG):
            here.open("/?sort=name")
            here.page.locator("#list tbody a", has_text=name[:20]).first.click()
            here.page.wait_for_url("**/session?**")
            assert here.page.locator("h1").inner_text().startswith(name[:20])
            if script:
                assert here.overflow() <= 0


def test_without_javascript_a_queue_is_read_and_dropped(
    port_town: Running, browser: Browser
) -> None:
    owe(port_town, "boat-50", 30, topic="fleet/50")
    with tab(browser, port_town, script=False) as here:
        here.log_in("olga")
        here.page.fill("#find-match", "boat-50")
        here.page.click("text=Find")
        here.page.locator("#list tbody a").first.click()
        here.page.click("text=Further ones")
        here.page.wait_for_url("**cursor=**")
        expect(here.page.locator("#queue-list tbody tr")).to_have_count(5)
        here.page.click("text=Does it miss messages?")
        here.sees("connected, new session")
        here.page.go_back()
        here.page.click("text=Drop what waits")
        here.page.click("text=Drop 30 messages")
        here.sees("30 messages dropped; that is durable.")


def test_payloads_are_shown_to_those_only_who_may_read_them(
    port_town: Running, browser: Browser
) -> None:
    with tab(browser, port_town) as here:
        here.log_in("anna").open("/session?id=boat-17")
        assert "high" not in here.main()
        here.page.click("text=Show payloads")
        here.sees('{"alarm": "<b>high</b>"}')
        here.open("/retained?topic=plant/7/state")
        here.sees('{"alarm": "<b>high</b>"}')
    with tab(browser, port_town) as here:
        here.log_in("vera").open("/retained?topic=plant/7/state")
        here.sees("Your account may not read payloads.")
        here.may_be_refused = True
        here.open("/session?id=boat-17&payloads=1")
        here.sees("'vera' lacks the permission to read payloads")


@pytest.mark.parametrize("script", [True, False])
def test_an_admin_gives_and_takes_access_with_forms_alone(
    port_town: Running, browser: Browser, script: bool
) -> None:
    name = f"ci-{script}".lower()
    with tab(browser, port_town, width=390, script=script) as here:
        here.log_in("anna").open("/access")
        here.page.fill("#token-name", name)
        here.page.select_option("#token-role", "operator")
        here.page.click("text=Make the token")
        here.sees("This is shown once, now.")
        assert here.page.inner_text("#token").startswith("hf_")
        here.page.click("text=Done")
        here.page.locator("tr", has_text=name).get_by_role("link", name="Remove").click()
        here.sees("Whoever uses it is refused from the next request on.")
        here.page.click("button:has-text('Remove it')")
        here.sees(f"The token {name} is removed.")


def test_a_message_is_published_with_a_form_and_seen_with_its_properties(
    port_town: Running, browser: Browser
) -> None:
    with tab(browser, port_town, script=False) as here:
        here.log_in("anna").open("/topics")
        here.page.click("text=Publish a message")
        here.page.fill("#topic", "forms/1")
        here.page.fill("#payload", "one\ntwo")
        here.page.fill("#content_type", "text/plain")
        here.page.fill("#properties", "unit=m")
        here.page.check("#retain")
        here.page.click("button:has-text('Publish')")
        here.sees("The message on forms/1 is stored; no subscription gets it.")
        here.open("/retained?topic=forms/1")
        here.sees("text/plain")
        here.sees("unit")
        assert here.page.inner_text("pre") == "one\ntwo"

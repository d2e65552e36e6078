"""The page in a real browser: what somebody woken at night sees, hears and can do."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any

import pytest
from playwright.sync_api import Browser, Dialog, Locator, Page, expect, sync_playwright

from tests.web_server import serving
from tests.web_source import FakeSource, fleet, load

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
VERDICTS = ("flagship", "calm", "down", "empty", "hostile")

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on PATH; install it (Debian: apt-get install chromium)")
expect.set_options(timeout=20_000)


class CountingSource(FakeSource):
    """Counts how often it is looked at, and breaks when told."""

    looks = 0
    broken = False

    def verdict(self, target: str | None) -> Mapping[str, object]:
        """Count, then answer or fail as the daemon's bug would."""
        self.looks += 1
        if self.broken:
            raise RuntimeError
        return super().verdict(target)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Chromium without a window."""
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def daemon() -> Iterator[tuple[CountingSource, str]]:
    """One daemon for all tests."""
    source = CountingSource(load("flagship"))
    with serving(source) as url:
        yield source, url


@pytest.fixture
def source(daemon: tuple[CountingSource, str]) -> CountingSource:
    """What the page shows: the flagship incident, unless the test changes it."""
    source = daemon[0]
    source.start_over(load("flagship"))
    source.looks, source.broken = 0, False
    return source


@pytest.fixture
def page(browser: Browser, daemon: tuple[CountingSource, str]) -> Iterator[Page]:
    """A fresh tab with a clock that can be moved; a script error, a refused resource or a dialog fails the test."""
    problems: list[str] = []
    context = browser.new_context(base_url=daemon[1], viewport={"width": 1280, "height": 800}, color_scheme="light")
    context.set_default_timeout(20_000)
    page = context.new_page()
    page.on("pageerror", lambda error: problems.append(str(error)))

    def refuse(dialog: Dialog) -> None:
        problems.append(dialog.message)
        dialog.dismiss()

    page.on("dialog", refuse)
    page.on("console", lambda message: problems.append(message.text) if "Content Security Policy" in message.text else None)
    page.clock.install()
    yield page
    context.close()
    assert problems == []


def see(page: Page, source: CountingSource, verdict: dict[str, Any] | None = None) -> Page:
    """Open the page on a verdict and wait until it is drawn, history included."""
    source.shown = verdict or source.shown
    with page.expect_response(re.compile("/history$")):
        page.goto("/")
    expect(page.locator("#summary")).to_contain_text(source.shown["summary"].split("--")[0][:40].strip())
    return page


def look_again(page: Page) -> None:
    """Let the page's pause pass and wait for its next look to be drawn."""
    drawn = page.locator("#updated").inner_text()
    page.clock.run_for(3_500)
    expect(page.locator("#updated")).not_to_have_text(drawn)


def row(page: Page, name: str) -> Locator:
    """The row of an engine by its name."""
    return page.locator(".engine").filter(has=page.locator("h3", has_text=re.compile(rf"^{re.escape(name)}$")))


def test_what_is_wrong_and_what_to_do_come_first(page: Page, source: CountingSource) -> None:
    """Without a click: the status as a word beside an icon, the summary, the first root's remedy in order, and why."""
    see(page, source)
    summary = page.get_by_role("region", name="Verdict").locator("#summary")
    expect(summary.get_by_role("heading")).to_have_text("critical")
    expect(summary.locator("svg.icon.critical")).to_be_visible()
    first = page.locator(".finding").first
    expect(first.get_by_role("listitem").first).to_contain_text("raise --mem-fraction-static above 0.85")
    expect(first.locator(".remedy li")).to_have_count(4)
    expect(first.get_by_role("row", name="l1_used_ratio 99 % ≥ 95 %")).to_be_visible()
    expect(first.get_by_role("link", name="runbook")).to_have_attribute("href", "runbook/l1-saturated-l2-idle")
    box = first.locator(".remedy li").first.bounding_box()
    assert box is not None
    assert box["y"] < 400
    expect(page).to_have_title("critical · kvwatch")


def test_effects_stand_below_their_cause_and_doubts_are_folded_away(page: Page, source: CountingSource) -> None:
    """A finding with a cause is nested in it, on the same subject; what could not be judged opens on demand, with what it lacked."""
    see(page, source)
    root = page.locator("#findings > ul > li").first
    expect(root.locator(".effects h3")).to_have_text(
        ["Running requests lose their KV and are computed again", "First tokens come 18 times later than in calm times"]
    )
    expect(page.locator("#findings > ul > li")).to_have_count(3)
    unjudged = page.locator(".unjudged")
    expect(unjudged.locator("h3")).to_be_hidden()
    unjudged.get_by_text("Could not be judged (1)").click()
    unjudged.get_by_role("heading", name="The KV pool could be larger").click()
    expect(unjudged.locator(".missing")).to_contain_text("hbm_free_ratio")


def test_the_worst_finding_stands_open_until_it_is_closed(page: Page, source: CountingSource) -> None:
    """When another finding becomes the first root it opens by itself; after the reader has closed one, none does."""
    see(page, source)
    first = page.locator("#findings > ul > li").first.locator("> details")
    calmer = source.shown["findings"][3]
    moving = page.locator(".finding > summary", has_text=calmer["title"])
    moving.focus()
    source.shown["findings"].remove(calmer)
    source.shown["findings"].insert(0, calmer)
    look_again(page)
    expect(first.get_by_role("heading", level=3)).to_have_text("A mamba state pool is the one that fills")
    expect(first).to_have_attribute("open", "")
    expect(moving).to_be_focused()
    first.locator("summary").click()
    source.shown["findings"].remove(calmer)
    source.shown["findings"].append(calmer | {"rule": "another-rule"})
    source.shown["findings"].insert(0, source.shown["findings"].pop(3))
    look_again(page)
    expect(first.get_by_role("heading", level=3)).to_have_text("The host tier cannot be seen")
    expect(first).not_to_have_attribute("open", "")


def test_evidence_is_written_as_people_say_it(page: Page, source: CountingSource) -> None:
    """Shares are percentages, multiples are times, a condition has no limit to repeat."""
    terms = [
        ("share", 0.4, "<=", 0.5, "ratio"),
        ("multiple", 367.3, ">=", 2, "times"),
        ("state", 1, "==", 1, "condition"),
        ("some", [3, None], ">", 1, "count"),
    ]
    source.shown["findings"][0]["evidence"] = [dict(zip(("signal", "value", "op", "limit", "unit"), term, strict=True)) for term in terms]
    see(page, source)
    rows = page.locator(".evidence").first.locator("tbody tr")
    expect(rows).to_have_text(
        ["share40 %≤ 50 %", "multiple367 \N{MULTIPLICATION SIGN}≥ 2 \N{MULTIPLICATION SIGN}", "stateyes", "some≥ 3> 1"]
    )


def test_an_effect_of_another_engine_is_no_effect_here(page: Page, source: CountingSource) -> None:
    """The same rule on another target does not nest under this one's root."""
    verdict = load("flagship")
    verdict["findings"][2]["subject"] = {**verdict["findings"][3]["subject"]}
    see(page, source, verdict)
    expect(page.locator("#findings > ul > li").first.locator(".effects h3")).to_have_count(1)
    expect(page.locator("#findings > ul > li")).to_have_count(4)


def test_bars_claim_no_more_than_is_proven(page: Page, source: CountingSource) -> None:
    """Proven parts are filled, what can be either is striped in both colours, what is unknown is empty; all of it in words too."""
    see(page, source)
    for name in ("chat-1 rank 0", "edge-0 rank 0"):
        row(page, name).locator("summary").first.click()
    l1 = row(page, "chat-1 rank 0").locator(".pool").nth(0)
    expect(l1.locator("svg.bar rect.used")).to_have_attribute("width", re.compile(r"^42\.49"))
    expect(l1.locator('svg.bar rect[fill="url(#either-evictable-available)"]')).to_have_attribute("width", re.compile(r"^57\.5"))
    expect(l1.locator("svg.bar rect")).to_have_count(2)
    expect(l1.get_by_role("img")).to_have_attribute(
        "aria-label", re.compile("used 111,411.tokens, evictable 0.150,733.tokens, available 0.150,733.tokens")
    )
    expect(l1.locator(".legend")).to_have_text("used 111k (42 %)evictable or available 151k (58 %)")
    unsized = row(page, "edge-0 rank 0").locator(".pool").nth(2)
    expect(unsized.locator("svg.bar rect")).to_have_count(0)
    expect(unsized).to_contain_text("capacity unknown")
    expect(unsized).to_contain_text("2.4 GiB hold data")


def test_unknown_is_said_and_never_zero(page: Page, source: CountingSource) -> None:
    """An engine that tells nothing any more shows no 0 among its figures."""
    see(page, source, load("down"))
    figures = row(page, "chat-1 rank 0").locator(".figures dd b")
    assert {*figures.all_inner_texts()} == {"unknown"}
    expect(row(page, "chat-1 rank 0").locator(".meter .figure").first).to_have_text("unknown")
    expect(row(page, "chat-1 rank 0").locator("svg.bar rect")).to_have_count(0)


def test_a_silent_engine_has_no_tier_denied(page: Page, source: CountingSource) -> None:
    """An engine whose figures are too old is said to have unknown tiers, not none, and its last minutes are still drawn."""
    verdict = load("flagship")
    source.past = verdict
    silent = verdict["engines"][0] | {"state": "unknown", "pools": [], "requests": dict.fromkeys(verdict["engines"][0]["requests"])}
    see(page, source, verdict | {"engines": [silent, *verdict["engines"][1:]]})
    found = row(page, f"{silent['target']} rank {silent['rank']}")
    expect(found.locator("summary .l1")).to_have_text(re.compile("unknown$"))
    expect(found.locator("summary .l2")).to_have_text(re.compile("unknown$"))
    expect(found.get_by_role("img", name=re.compile("Tiers over .* L1 used: now unknown"))).to_have_count(1)


def test_intervals_keep_both_ends(page: Page, source: CountingSource) -> None:
    """Bounds are shown as a range, a lower bound as such, a missing model in words."""
    see(page, source)
    edge = row(page, "edge-0 rank 0")
    expect(edge.locator(".queue")).to_contain_text("7\N{EN DASH}9")
    expect(edge.locator(".ttft")).to_contain_text("≥ 3.5 s")
    expect(row(page, "kv-server rank 0")).to_contain_text("LMCache server")
    source.shown["engines"][1]["model"] = None
    look_again(page)
    expect(row(page, "chat-1 rank 0")).to_contain_text("model unknown")


def test_history_has_gaps_where_there_is_no_data(page: Page, source: CountingSource) -> None:
    """Nulls and a pause of the samples interrupt the line, and the chart says so to those who do not see it."""
    see(page, source)
    tiers = row(page, "chat-0 rank 0").locator(".chart").first
    expect(tiers.locator("path.line.first")).to_have_count(3)
    expect(tiers.get_by_role("img")).to_have_attribute("aria-label", re.compile(r"L1 used: now 99.%, lowest .*, highest 99.%, with gaps"))
    server = row(page, "kv-server rank 0")
    server.locator("summary").first.click()
    expect(server.locator(".chart").nth(2)).to_contain_text("no data")


def test_a_refresh_keeps_focus_scroll_and_open_parts(page: Page, source: CountingSource) -> None:
    """New figures appear in the nodes that were there; the reader's place is not lost, even when findings come before it."""
    see(page, source)
    summary = row(page, "chat-1 rank 0").locator("summary").first
    summary.click()
    summary.focus()
    place = page.evaluate(
        """() => {
            window.kept = document.activeElement;
            window.kept.scrollIntoView({ block: "center", behavior: "instant" });
            return window.kept.getBoundingClientRect().top;
        }"""
    )
    source.shown["summary"] = "something else is wrong"
    source.shown["engines"][1]["requests"]["waiting"] = 17
    source.shown["engines"].reverse()
    look_again(page)
    expect(page.locator("#summary")).to_contain_text("something else is wrong")
    expect(row(page, "chat-1 rank 0").locator(".queue")).to_contain_text("17")
    expect(row(page, "chat-1 rank 0").locator(".figures")).to_be_visible()
    assert page.evaluate("window.kept === document.activeElement && window.kept.isConnected")
    assert page.evaluate("window.kept.getBoundingClientRect().top") == pytest.approx(place, abs=1)


def test_the_list_does_not_move_under_the_readers_hand(page: Page, source: CountingSource) -> None:
    """Rows are ordered by trouble, but not while somebody is in the list."""
    see(page, source)
    names = page.locator(".engine h3")
    expect(names.first).to_have_text("chat-0 rank 0")
    row(page, "chat-1 rank 1").locator("summary").first.focus()
    for finding in source.shown["findings"]:
        finding["subject"] |= {"target": "kv-server", "engine": "lmcache", "model": None}
    look_again(page)
    expect(row(page, "kv-server rank 0")).to_have_class(re.compile("critical"))
    expect(names.first).to_have_text("chat-0 rank 0")
    page.locator("#theme").focus()
    look_again(page)
    expect(names.first).to_have_text("kv-server rank 0")


def test_only_news_is_announced(page: Page, source: CountingSource) -> None:
    """A screen reader hears what fires when that changes, and nothing when only a figure of the summary does."""
    see(page, source)
    page.evaluate(
        """() => {
            window.heard = [];
            const words = ({ addedNodes: [added], target }) => (added ? added.textContent : target.data);
            const listen = (changes) => window.heard.push(...changes.map(words).filter(Boolean));
            for (const region of document.querySelectorAll("[aria-live], [role=status]"))
                new MutationObserver(listen).observe(region, { subtree: true, childList: true, characterData: true });
        }"""
    )
    source.shown["summary"] = "chat-0: 41 requests wait"
    look_again(page)
    expect(page.locator("#summary")).to_contain_text("41 requests wait")
    look_again(page)
    assert page.evaluate("window.heard") == []
    source.shown["findings"][0]["status"] = "pending"
    source.shown["status"] = "warning"
    look_again(page)
    look_again(page)
    assert page.evaluate("window.heard") == ["warning: chat-0: 41 requests wait"]
    expect(page.locator("#news")).to_be_empty()


def test_a_lost_daemon_is_told_and_found_again(page: Page, source: CountingSource) -> None:
    """The last known state stays in sight, marked as such, with the time since when; it goes on by itself."""
    see(page, source)
    page.context.set_offline(True)
    page.clock.run_for(3_500)
    expect(page.get_by_role("status")).to_contain_text(re.compile(r"Connection lost since \d\d:\d\d:\d\d"))
    expect(page.locator("#summary")).to_contain_text("40 requests wait")
    expect(page).to_have_title("connection lost \N{MIDDLE DOT} kvwatch")
    page.context.set_offline(False)
    expect(page.get_by_role("status")).to_have_text("live")
    expect(page).to_have_title("critical \N{MIDDLE DOT} kvwatch")


def test_a_failing_daemon_is_asked_ever_less(page: Page, source: CountingSource) -> None:
    """An answer that is an error counts as lost, and the pauses grow."""
    see(page, source)
    source.broken = True
    page.clock.run_for(3_500)
    expect(page.get_by_role("status")).to_contain_text("HTTP 500")
    looks = source.looks
    page.clock.run_for(4_000)
    assert source.looks == looks
    with page.expect_response(re.compile("/diagnose$")):
        page.clock.run_for(3_000)
    source.broken = False
    page.clock.run_for(15_000)
    expect(page.get_by_role("status")).to_have_text("live")


def test_a_hidden_tab_asks_nothing(page: Page, source: CountingSource) -> None:
    """Hidden, it lets the daemon alone; shown again, it looks at once."""
    page.add_init_script("Object.defineProperty(document, 'hidden', { get: () => window.away === true })")
    see(page, source)
    page.evaluate("window.away = true; document.dispatchEvent(new Event('visibilitychange'))")
    looks = source.looks
    page.clock.run_for(60_000)
    assert source.looks == looks
    with page.expect_response(re.compile("/diagnose$")):
        page.evaluate("window.away = false; document.dispatchEvent(new Event('visibilitychange'))")


def test_names_from_labels_are_only_text(page: Page, source: CountingSource) -> None:
    """Markup in any name is shown as it was written: no element, no script, no link comes of it."""
    see(page, source, load("hostile"))
    for summary in page.locator("summary").all():
        summary.press("Enter")
        summary.press("Enter")
    expect(page.locator("img, script:not([src]), b > b")).to_have_count(0)
    expect(page.locator("#summary")).to_contain_text("<img src=x onerror=alert(1)>\"'&</script><b>")
    expect(page.locator(".engine").first).to_contain_text("<img src=x onerror=alert(1)>")
    links = page.locator("main a").evaluate_all("links => links.map((link) => link.getAttribute('href'))")
    assert {*links} == {"runbook/l1-saturated"}


def test_no_name_turns_the_words_around_it(page: Page, source: CountingSource) -> None:
    """A character that changes the direction of writing is spelled out in text and in what is read aloud."""
    verdict = load("flagship")
    turned = "\N{RIGHT-TO-LEFT OVERRIDE}0-tahc"
    for finding in verdict["findings"][:3]:
        finding["subject"]["target"] = turned
    verdict["engines"][0]["target"] = verdict["targets"][0]["name"] = turned
    verdict["summary"] = f"{turned}: requests wait"
    source.shown = verdict
    page.goto("/")
    expect(page.locator("#summary p")).to_have_text(r"\u202e0-tahc: requests wait")
    expect(page.locator(".engine h3").first).to_have_attribute("title", r"\u202e0-tahc")
    assert "\N{RIGHT-TO-LEFT OVERRIDE}" not in page.content()


def test_a_name_without_end_pushes_nothing_away(page: Page, source: CountingSource) -> None:
    """However long a model's name is, what to do is on the first screen; an open row shows more of a name than a closed one."""
    verdict = load("flagship")
    for named in (*(finding["subject"] for finding in verdict["findings"]), *verdict["engines"]):
        named["model"] = "organisation/" + "model-" * 700
    see(page, source, verdict)
    box = page.locator(".finding .remedy li").first.bounding_box()
    assert box is not None
    assert box["y"] < 500
    opened, closed = (row(page, name).locator(".who > .dim").bounding_box() for name in ("chat-0 rank 0", "chat-1 rank 0"))
    assert opened is not None
    assert closed is not None
    assert closed["height"] < opened["height"] < 100


@pytest.mark.parametrize(("width", "height"), [(1280, 800), (640, 400), (320, 640), (320, 256)])
def test_what_is_jumped_to_is_not_below_the_bar(page: Page, source: CountingSource, width: int, height: int) -> None:
    """On a phone and enlarged to 400 % too, a section's heading is to be seen after its link was followed."""
    page.emulate_media(reduced_motion="reduce")
    page.set_viewport_size({"width": width, "height": height})
    see(page, source)
    page.get_by_role("navigation", name="Sections").get_by_role("link", name=re.compile("^Engines")).click()
    covered = """(title) => {
        const box = title.getBoundingClientRect();
        return document.elementFromPoint(box.left + 5, box.top + box.height / 2) !== title;
    }"""
    assert page.locator("#engines-title").evaluate(covered) is False


def test_the_bar_comes_back_on_a_phone_when_the_connection_is_lost(page: Page, source: CountingSource) -> None:
    """Far down the page, too, nobody takes old figures for new ones."""
    page.set_viewport_size({"width": 320, "height": 640})
    see(page, source)
    page.evaluate("scrollTo({ top: document.body.scrollHeight, behavior: 'instant' })")
    expect(page.get_by_role("status")).not_to_be_in_viewport()
    page.context.set_offline(True)
    page.clock.run_for(3_500)
    expect(page.get_by_role("status")).to_be_in_viewport()


def test_a_printed_page_is_dark_on_white(page: Page, source: CountingSource) -> None:
    """Paper is white whatever colours were chosen for the screen."""
    see(page, source)
    page.get_by_label("Colours").select_option("light")
    ink = page.evaluate("getComputedStyle(document.body).color")
    page.get_by_label("Colours").select_option("dark")
    page.emulate_media(media="print", color_scheme="dark")
    assert page.evaluate("getComputedStyle(document.body).color") == ink


def test_larger_letters_are_larger_everywhere(browser: Browser, daemon: tuple[CountingSource, str], source: CountingSource) -> None:
    """Whoever has set letters of 24 px in the browser instead of 16 reads larger ones, and on a phone nothing sticks out."""
    arguments = ["--no-sandbox", "--blink-settings=defaultFontSize=24"]
    with browser.browser_type.launch(executable_path=CHROMIUM, args=arguments) as enlarged:
        page = enlarged.new_page(base_url=daemon[1], viewport={"width": 360, "height": 740})
        see(page, source)
        assert page.evaluate("getComputedStyle(document.body).fontSize") == "22.5px"
        assert page.evaluate("document.documentElement.scrollWidth") <= 360


@pytest.mark.parametrize("name", VERDICTS)
def test_nothing_sticks_out_of_any_screen(page: Page, source: CountingSource, name: str) -> None:
    """With every part open the page is never wider than the screen."""
    see(page, source, load(name))
    page.wait_for_function(
        """() => {
            const closed = document.querySelectorAll("details:not([open]) > summary");
            for (const summary of closed) summary.click();
            return closed.length === 0;
        }"""
    )
    for width in (320, 360, 768, 1280):
        page.set_viewport_size({"width": width, "height": 740})
        page.wait_for_function(f"innerWidth === {width}")
        assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_two_hundred_engines_stay_in_hand(page: Page, source: CountingSource) -> None:
    """The one in trouble stands first and open; calm ones are asked for, closed rows hold no details, a filter finds any."""
    see(page, source, fleet(200))
    names = page.locator(".engine h3")
    expect(names.first).to_have_text("chat-199 rank 0")
    expect(names).to_have_count(20)
    expect(page.locator(".engine .body")).to_have_count(1)
    page.get_by_label("Filter").fill("chat-15 serving")
    expect(names).to_have_count(10)
    page.get_by_label("Filter").fill("nobody")
    expect(page.locator("#engine-list")).to_contain_text("No engine matches")
    page.get_by_label("Filter").fill("")
    page.get_by_role("button", name="Show 180 more without trouble").press("Enter")
    expect(names).to_have_count(200)
    assert page.evaluate("document.querySelectorAll('#engines *').length") < 10_000


def test_a_filter_can_be_taken_back_however_few_engines_are_left(page: Page, source: CountingSource) -> None:
    """What hides rows is in sight as long as it does."""
    see(page, source, fleet(6))
    page.get_by_label("Filter").fill("chat-000")
    source.shown["engines"].pop()
    look_again(page)
    expect(page.locator(".engine")).to_have_count(1)
    page.get_by_label("Filter").fill("")
    expect(page.locator(".engine")).to_have_count(5)
    expect(page.get_by_label("Filter")).to_be_hidden()


def test_a_chosen_colour_scheme_is_remembered(page: Page, source: CountingSource) -> None:
    """The system's scheme applies until one is chosen; the choice outlives a reload."""
    see(page, source)
    background = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(background)
    page.emulate_media(color_scheme="dark")
    dark = page.evaluate(background)
    assert dark != light
    page.get_by_label("Colours").select_option("light")
    assert page.evaluate(background) == light
    page.reload()
    expect(page.get_by_label("Colours")).to_have_value("light")
    assert page.evaluate(background) == light
    page.get_by_label("Colours").select_option("")
    assert page.evaluate(background) == dark


def test_a_browser_that_forbids_storage_can_still_choose(page: Page, source: CountingSource) -> None:
    """Where localStorage throws, the page works and the choice lasts until the tab is closed."""
    page.add_init_script("Object.defineProperty(window, 'localStorage', { get() { throw new DOMException('no', 'SecurityError'); } })")
    see(page, source)
    page.get_by_label("Colours").select_option("dark")
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")


def test_it_can_be_read_with_the_keyboard_alone(page: Page, source: CountingSource) -> None:
    """The first stop skips to the verdict; findings and engines open with Enter; the focus is always to be seen."""
    see(page, source)
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to the verdict")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("#verdict")).to_be_focused()
    page.keyboard.press("Tab")
    first = page.locator(".finding > summary").first
    expect(first).to_be_focused()
    assert first.evaluate("(node) => getComputedStyle(node).outlineStyle") == "solid"
    page.keyboard.press("Enter")
    expect(page.locator(".finding").first.locator(".remedy")).to_be_hidden()
    page.keyboard.press("Enter")
    expect(page.locator(".finding").first.locator(".remedy")).to_be_visible()


def test_every_part_has_a_name(page: Page, source: CountingSource) -> None:
    """Landmarks and headings lead through the page, levels without a jump; every picture has words or is marked as ornament."""
    see(page, source)
    for name in ("Verdict", "Engines", "GPU memory", "Targets"):
        expect(page.get_by_role("region", name=name)).to_be_visible()
    expect(page.get_by_role("navigation", name="Sections").get_by_role("link")).to_have_text(
        ["Findings 5", "Engines 5", "GPUs 6", "Targets 4"]
    )
    levels = page.locator("h1, h2, h3, h4").evaluate_all(
        "(all) => all.filter((node) => node.checkVisibility()).map((node) => Number(node.tagName[1]))"
    )
    assert levels[0] == 1
    assert all(later <= earlier + 1 for earlier, later in pairwise(levels))
    assert page.locator("svg:not([aria-hidden]):not([aria-label])").count() == 0


def test_nothing_moves_for_those_who_ask_for_stillness(page: Page, source: CountingSource) -> None:
    """With reduced motion the page neither scrolls smoothly nor animates."""
    page.emulate_media(reduced_motion="reduce")
    see(page, source)
    assert page.evaluate("getComputedStyle(document.documentElement).scrollBehavior") == "auto"
    assert page.evaluate("document.getAnimations().length") == 0


def test_an_empty_start_says_what_it_looks_for(page: Page, source: CountingSource) -> None:
    """Before any engine is known the page tells where it looks and how to name another; nothing empty is drawn."""
    see(page, source, load("empty"))
    expect(page.locator("#findings")).to_contain_text("Looking for an engine on 127.0.0.1:8000 (vLLM) and 127.0.0.1:30000 (SGLang)")
    expect(page.locator("#findings code").first).to_have_text("kvwatch serve --target http://HOST:PORT/metrics")
    for section in ("#engines", "#gpus", "#targets"):
        expect(page.locator(section)).to_be_hidden()


def test_a_failing_target_tells_why(page: Page, source: CountingSource) -> None:
    """Failing targets stand first with reason and detail; without NVML the page says so."""
    see(page, source, load("down"))
    expect(page.locator(".targets > li").first).to_contain_text("not_exposition")
    expect(page.locator(".targets > li").first).to_contain_text("add the engine's /metrics path")
    expect(row(page, "chat-1 rank 0")).to_contain_text("The last scrape failed (refused)")
    expect(page.locator("#gpus")).to_contain_text("no NVML library")


def test_missing_series_tell_what_would_bring_them(page: Page, source: CountingSource) -> None:
    """A target opens into what it lacks, why, and what to set."""
    see(page, source)
    target = page.locator(".targets > li", has_text="edge-0")
    target.get_by_text("1 series is missing").click()
    expect(target.locator("dl")).to_contain_text("lmcache:local_cache_usage")
    expect(target.locator("dl")).to_contain_text("PROMETHEUS_MULTIPROC_DIR")


def test_gpus_show_their_memory_or_why_not(page: Page, source: CountingSource) -> None:
    """Used, reserved and free add up to the bar; a lost card is empty and says so; MIG instances stand below their card."""
    see(page, source)
    cards = page.locator(".cards > .gpu")
    expect(cards).to_have_count(4)
    expect(cards.nth(0).get_by_role("img")).to_have_attribute(
        "aria-label", re.compile("used 72.GiB, reserved 512.MiB, free 7.5.GiB of 80.GiB")
    )
    expect(cards.nth(2).locator(".instances .gpu")).to_have_count(2)
    expect(cards.nth(3)).to_contain_text("lost")
    expect(cards.nth(3).locator("rect")).to_have_count(0)
    cards.nth(1).get_by_text("2 processes").click()
    expect(cards.nth(1).locator("details li")).to_have_text(["pid 4311: 22 GiB, watched engine", "pid 977: unknown, another process"])

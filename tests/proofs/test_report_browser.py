"""The report page in a real browser: it steps, filters, switches, fits a phone, and runs nobody's script."""

from __future__ import annotations

import base64
import json
import os
import runpy
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from draftproof.proofs.report import write_report

webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
from selenium.common.exceptions import NoAlertPresentException  # noqa: E402
from selenium.webdriver.chrome.service import Service  # noqa: E402
from selenium.webdriver.common.by import By  # noqa: E402
from selenium.webdriver.common.keys import Keys  # noqa: E402
from selenium.webdriver.support.ui import Select  # noqa: E402

CHROMIUM, CHROMEDRIVER = shutil.which("chromium"), shutil.which("chromedriver")
pytestmark = pytest.mark.skipif(
    CHROMIUM is None or CHROMEDRIVER is None,
    reason="no chromium and chromedriver here (on Debian: apt-get install chromium chromium-driver)",
)

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
)

SAMPLE = runpy.run_path(str(Path(__file__).with_name("report_sample.py")))
STORIES = SAMPLE["STORIES"]

Driver = Any

DRAWN = "requestAnimationFrame(() => requestAnimationFrame(arguments[0]))"
"""Returns once what was changed has been drawn, and scripts were told of it."""


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driver]:
    """One browser for all tests of this file, without the user's profile and without a network."""
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    options.set_capability("unhandledPromptBehavior", "ignore")
    # Given both paths, selenium looks for no driver elsewhere.
    os.environ["SE_OFFLINE"] = "true"
    driver = webdriver.Chrome(options=options, service=Service(CHROMEDRIVER))
    yield driver
    driver.quit()


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> str:
    target = tmp_path_factory.mktemp("report") / "report.html"
    write_report(SAMPLE["sample"](), target)
    return target.as_uri()


@pytest.fixture
def page(browser: Driver, address: str) -> Driver:
    """The page, fresh, on a desktop in light colours; earlier console messages are gone."""
    resize(browser, 1280)
    prefer(browser, "light")
    browser.get_log("browser")
    browser.get_log("performance")
    browser.get("about:blank")
    browser.get(address)
    browser.execute_script("localStorage.clear()")  # what an earlier test chose
    browser.refresh()
    return browser


def resize(browser: Driver, width: int) -> None:
    browser.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500},
    )


def prefer(browser: Driver, scheme: str) -> None:
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
    browser.execute_async_script(DRAWN)


def one(scope: Driver, selector: str) -> Driver:
    return scope.find_element(By.CSS_SELECTOR, selector)


def every(scope: Driver, selector: str) -> list[Driver]:
    return list(scope.find_elements(By.CSS_SELECTOR, selector))


def settle(page: Driver) -> None:
    """Wait until every open fault has its story (browsers tell of an opened element a moment later), and
    until that has been drawn."""
    page.execute_async_script(
        "const done = arguments[0];"
        "const ready = () => document.querySelector('.fault[open]:not(:has(.story))') === null;"
        "const wait = () => ready() ? requestAnimationFrame(() => requestAnimationFrame(done)) : "
        "setTimeout(wait);"
        "wait();"
    )


def open_fault(page: Driver, name: str) -> Driver:
    fault = page.execute_script(
        "const found = document.getElementById(arguments[0]); found.open = true; return found",
        f"fault-{name}",
    )
    settle(page)
    return fault


def press(button: Driver) -> None:
    """Click, after scrolling to where the bar at the top of the page does not cover it."""
    button.parent.execute_script(
        "arguments[0].scrollIntoView({block: 'center', behavior: 'instant'})", button
    )
    button.click()


def open_all(page: Driver) -> None:
    page.execute_script("for (const one of document.querySelectorAll('details')) one.open = true")
    settle(page)


def step(fault: Driver) -> str:
    return str(one(fault, ".now b").text)


def complaints(page: Driver) -> list[str]:
    return [entry["message"] for entry in page.get_log("browser")]


def test_all_faults_open_without_a_complaint_of_the_browser(page: Driver) -> None:
    open_all(page)
    assert len(every(page, ".fault .story")) == len(STORIES["stories"]())
    assert complaints(page) == []


def test_the_log_that_is_asserted_empty_does_see_complaints(page: Driver) -> None:
    page.execute_script("setTimeout(() => { throw new Error('seen') })")
    page.execute_async_script("setTimeout(arguments[0], 50)")
    assert any("seen" in message for message in complaints(page))


def test_a_timeline_starts_where_it_goes_wrong_and_marks_the_counter_in_words(page: Driver) -> None:
    fault = open_fault(page, "trim-uncounted")
    assert step(fault) == "Step 6 of 9"
    cell = one(fault, "tr.current td.wrong")
    assert cell.get_property("textContent") == "▲ wrong: 6right: 4"
    assert "C is 6, right would be 4" in one(fault, ".now").text
    names = [line.text for line in every(fault, ".strip-name")]
    assert names == ["faulty", "right"]
    labels = [drawing.get_attribute("aria-label") for drawing in every(fault, ".moment svg")]
    assert "Frontier 6" in labels[0] and "Frontier 4" in labels[1]


def test_a_refused_step_is_marked_and_never_said_to_agree(browser: Driver, tmp_path: Path) -> None:
    story = STORIES["trim_story"]()
    story["rows"] = story["rows"][:3]
    story["rows"][2].update({"right": None, "note": "the right code refuses this: running"})
    story["rows"][2]["strip"].update({"right": None, "right_frontier": None})
    write_report({**SAMPLE["sample"](), "stories": [story]}, tmp_path / "refused.html")
    browser.get((tmp_path / "refused.html").as_uri())
    fault = open_fault(browser, "trim-uncounted")
    assert step(fault) == "Step 3 of 3"
    assert one(fault, ".now strong").text == "▲ the right code refuses this: running"
    assert "refused by the right code" in one(fault, "tr.current").text
    assert [line.text for line in every(fault, ".strip-name")] == ["faulty"]


def test_a_wrong_decision_shows_the_values_that_differ(page: Driver) -> None:
    fault = open_fault(page, "lookup-hits-everything")
    assert [value.text for value in every(fault, ".decision dd")[1:3]] == [
        "▲ num_hit_tokens = 32",
        "num_hit_tokens = 16",
    ]


def test_the_buttons_step(page: Driver) -> None:
    fault = open_fault(page, "trim-uncounted")
    back, forward, wrong = every(fault, ".controls button")
    press(back)
    assert step(fault) == "Step 5 of 9"
    assert [line.text for line in every(fault, ".strip-name")] == ["faulty and right agree"]
    for _ in range(4):
        press(forward)
    assert step(fault) == "Step 9 of 9"
    assert not forward.is_enabled()
    press(wrong)
    assert step(fault) == "Step 6 of 9"
    press(every(fault, ".events .step button")[0])
    assert step(fault) == "Step 1 of 9"
    assert not back.is_enabled()


def test_the_keyboard_steps(page: Driver) -> None:
    fault = open_fault(page, "trim-uncounted")
    timeline = one(fault, ".timeline")
    for key, expected in (
        (Keys.ARROW_LEFT, 5),
        (Keys.HOME, 1),
        (Keys.ARROW_LEFT, 1),
        (Keys.ARROW_RIGHT, 2),
        (Keys.END, 9),
        (Keys.ARROW_RIGHT, 9),
        (Keys.ARROW_LEFT, 8),
    ):
        timeline.send_keys(key)
        assert step(fault) == f"Step {expected} of 9"
    slider = one(fault, "input[type=range]")
    slider.send_keys(Keys.ARROW_LEFT)
    assert step(fault) == "Step 7 of 9", "the slider steps once, not twice"
    assert slider.get_attribute("aria-valuetext") == "step 7 of 9"
    assert one(fault, "tr[aria-current=step] th").text == "end_turn()"


def test_a_fault_opens_from_the_keyboard_and_the_focus_is_visible(page: Driver) -> None:
    summary = one(page, ".fault summary")
    page.execute_script("arguments[0].focus()", one(page, "#by-theorem"))
    page.switch_to.active_element.send_keys(Keys.TAB)
    assert page.switch_to.active_element == summary
    assert page.execute_script("return getComputedStyle(arguments[0]).outlineStyle", summary) == "solid"
    summary.send_keys(Keys.ENTER)
    settle(page)
    assert every(page, ".fault[open] .story")


def test_the_filters_find(page: Driver) -> None:
    def shown() -> list[str]:
        names = [fault.get_attribute("id") for fault in every(page, ".fault") if fault.is_displayed()]
        return [str(name).removeprefix("fault-") for name in names]

    total = len(STORIES["stories"]())
    assert one(page, "#shown").text == f"{total} faults"
    search = one(page, "#search")
    search.send_keys("54979 HASHED")
    assert shown() == ["finish-registers-nothing"]
    assert one(page, "#shown").text == f"1 of {total} faults"
    search.send_keys(Keys.ENTER, " nowhere")
    assert shown() == [] and "No fault matches" in one(page, "#fault-list").text
    search.clear()
    Select(one(page, "#by-engine")).select_by_visible_text("SGLang")
    assert shown() == ["finish-registers-nothing", "lookup-hits-everything"]
    Select(one(page, "#by-area")).select_by_visible_text("prefix-hash")
    assert shown() == ["lookup-hits-everything"]
    Select(one(page, "#by-theorem")).select_by_visible_text("T2")
    assert shown() == []
    assert complaints(page) == []


def test_a_link_opens_its_fault(page: Driver) -> None:
    page.execute_script("location.hash = 'fault-trim-uncounted'")
    page.execute_async_script("setTimeout(arguments[0], 50)")
    assert one(page, ".fault[open] .fault-title").text == "Trimmed tokens stay counted as computed"


def test_hostile_text_stays_text(page: Driver) -> None:
    open_all(page)
    fault = open_fault(page, 'hostile"><b>')
    back = one(fault, ".controls button")
    while back.is_enabled():
        press(back)
    with pytest.raises(NoAlertPresentException):
        _ = page.switch_to.alert.text
    assert STORIES["HOSTILE"] in one(fault, ".fault-title").text
    assert STORIES["HOSTILE_TOKEN"] in one(fault, ".moment svg title").get_property("textContent")
    assert every(page, "img") == []
    assert len(every(page, "script")) == 2
    assert every(page, "a[href^=javascript]") == []
    assert complaints(page) == []


def test_a_script_that_got_in_would_be_refused_and_noticed(page: Driver) -> None:
    page.execute_script(
        "const planted = document.createElement('script'); planted.textContent = 'window.planted = 1';"
        "document.body.append(planted)"
    )
    assert page.execute_script("return window.planted") is None
    assert any("Content Security Policy" in message for message in complaints(page))


def test_nothing_is_requested_but_the_page_itself(page: Driver, address: str) -> None:
    open_all(page)
    messages = [json.loads(entry["message"])["message"] for entry in page.get_log("performance")]
    requested = {
        message["params"]["request"]["url"]
        for message in messages
        if message["method"] == "Network.requestWillBeSent"
    }
    assert {url for url in requested if not url.startswith("data:")} <= {address, "about:blank"}
    assert address in requested, "the log does see requests"


def ground(page: Driver) -> str:
    return str(page.execute_script("return getComputedStyle(document.body).backgroundColor"))


def test_light_and_dark_follow_the_system_until_the_reader_chooses(page: Driver) -> None:
    light = ground(page)
    prefer(page, "dark")
    dark = ground(page)
    assert dark != light
    button = one(page, "#theme")
    assert button.get_attribute("aria-pressed") == "true"
    button.click()
    assert (ground(page), button.get_attribute("aria-pressed")) == (light, "false")
    page.refresh()
    assert ground(page) == light, "the choice is kept"
    one(page, "#theme").click()
    prefer(page, "light")
    assert ground(page) == dark


CONTRAST = """
const parse = (colour) => colour.match(/[\\d.]+/g).map(Number);
const linear = (v) => (v /= 255, v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
const luminance = ([r, g, b]) => 0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b);
function groundOf(element) {
  for (let node = element; node; node = node.parentElement) {
    const colour = parse(getComputedStyle(node).backgroundColor);
    if (colour.length < 4 || colour[3] === 1) return colour;
  }
  return [255, 255, 255];
}
const poor = new Set();
const walker = document.createTreeWalker(document.querySelector("main"), NodeFilter.SHOW_TEXT);
for (let text = walker.nextNode(); text; text = walker.nextNode()) {
  const element = text.parentElement;
  if (!text.data.trim() || element.closest("svg, .unseen, select, button:disabled")) continue;
  const [a, b] = [luminance(parse(getComputedStyle(element).color)), luminance(groundOf(element))];
  const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
  if (ratio < 4.5) poor.add(`${element.tagName}.${element.className} ${ratio.toFixed(2)}`);
}
return [...poor];
"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_all_text_has_the_contrast_that_wcag_aa_asks_for(page: Driver, scheme: str) -> None:
    prefer(page, scheme)
    open_all(page)
    assert page.execute_script(CONTRAST) == []
    page.execute_script(
        "document.querySelector('.lede').style.color = getComputedStyle(document.body).backgroundColor"
    )
    assert len(page.execute_script(CONTRAST)) == 1, "the measure does see poor contrast"


@pytest.mark.parametrize("width", [360, 768, 1280])
def test_the_page_itself_never_scrolls_sideways(page: Driver, width: int) -> None:
    resize(page, width)
    open_all(page)
    overflow = "return document.documentElement.scrollWidth - document.documentElement.clientWidth"
    assert page.execute_script(overflow) <= 0
    page.execute_script("document.querySelector('.lede').style.minWidth = '2000px'")
    assert page.execute_script(overflow) > 0, "the measure does see an overflow"


def test_on_a_phone_the_wrong_counter_is_in_view(page: Driver) -> None:
    resize(page, 360)
    for name in ("trim-uncounted", "finish-registers-nothing"):
        fault = open_fault(page, name)
        box, cell = one(fault, ".events-box").rect, one(fault, "tr.current .wrong").rect
        assert box["x"] <= cell["x"] and cell["x"] + cell["width"] <= box["x"] + box["width"] + 1


def test_sixty_faults_are_there_and_can_be_photographed(browser: Driver, tmp_path: Path) -> None:
    target = tmp_path / "sixty.html"
    size = write_report(SAMPLE["sample"](60), target)
    browser.get(target.as_uri())
    assert len(every(browser, ".fault")) == 60 and size < 2 * 1024 * 1024
    picture = base64.b64decode(browser.execute_cdp_cmd("Page.captureScreenshot", {})["data"])
    assert picture.startswith(b"\x89PNG")

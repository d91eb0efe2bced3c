"""The page of a toy checkout in a real browser, from file://, at the widths of a desk and of a phone."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from factory import dvc, edit, environment, make_project, run
from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.wait import WebDriverWait

pytestmark = pytest.mark.e2e

FLAGS = (
    "--headless=new --no-sandbox --disable-gpu --disable-background-networking --no-first-run --disable-component-update"
    " --disable-sync --disable-dev-shm-usage"
)
WIDTHS = {"desk": (1280, 900), "phone": (390, 844)}


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Alpha ran, misses one claim and was edited since; beta never ran."""
    root = make_project(tmp_path_factory.mktemp("checkout"))
    edit(root / "params.yaml", "value: 1.0", "value: -3.0")
    dvc(root, "repro", "alpha-results")
    edit(
        root / "params.yaml",
        "alpha: {cpu: {prepare: {value: -3.0}, train: {value: 0.5}",
        "alpha: {cpu: {prepare: {value: -3.0}, train: {value: 0.7}",
    )
    run(root, "python", "-m", "flows.engine.scorecard", "cpu")
    return root


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[webdriver.Chrome]:
    folder = tmp_path_factory.mktemp("browser")
    options = webdriver.ChromeOptions()
    options.binary_location = "/usr/bin/chromium"
    for flag in (*FLAGS.split(), f"--user-data-dir={folder / 'profile'}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service("/usr/bin/chromedriver", env=environment(folder)))
    yield driver
    driver.quit()


def opened(browser: webdriver.Chrome, checkout: Path, width: str) -> webdriver.Chrome:
    wide, high = WIDTHS[width]
    size = {"width": wide, "height": high, "deviceScaleFactor": 1, "mobile": width == "phone"}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    still = {"name": "prefers-reduced-motion", "value": "reduce"}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [still]})
    for log in ("browser", "performance"):
        browser.get_log(log)
    browser.get((checkout / "report/index.html").as_uri())
    return browser


def shown(browser: webdriver.Chrome, css: str) -> list[Any]:
    return [element for element in browser.find_elements(By.CSS_SELECTOR, css) if element.is_displayed()]


@pytest.mark.parametrize("width", list(WIDTHS))
def test_everything_is_there_nothing_is_fetched_and_nothing_complains(browser: webdriver.Chrome, checkout: Path, width: str):
    opened(browser, checkout, width)
    body = browser.find_element(By.TAG_NAME, "body").text
    for said in ("Toy paper alpha", "Toy paper beta", "more than 1", "nothing added", "says nothing against the paper", "not run yet"):
        assert said in body
    assert "parameter alpha.cpu.train.value: 0.5 -> 0.7" in body
    assert len(shown(browser, ".claim")) == 4
    assert len(shown(browser, "svg.interval")) == 2
    images = browser.execute_script("return [...document.querySelectorAll('figure img')].map(i => i.complete && i.naturalWidth)")
    assert len(images) == 1
    assert all(size > 100 for size in images)
    scrolled, inner = browser.execute_script("return [document.documentElement.scrollWidth, window.innerWidth]")
    assert scrolled <= inner == WIDTHS[width][0]
    assert browser.get_log("browser") == []
    events = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    requested = [event["params"]["request"]["url"] for event in events if event["method"] == "Network.requestWillBeSent"]
    assert requested
    assert [url for url in requested if not url.startswith(("file:", "data:"))] == []


@pytest.mark.parametrize("width", list(WIDTHS))
def test_claims_are_filtered_by_verdict_and_scale(browser: webdriver.Chrome, checkout: Path, width: str):
    opened(browser, checkout, width)
    chip = {c.get_attribute("data-value"): c for c in browser.find_elements(By.CSS_SELECTOR, ".filters .chip")}
    chip["inconclusive"].click()
    assert [c.get_attribute("id") for c in shown(browser, ".claim")] == ["alpha--grows", "alpha--extra"]
    assert [s.get_attribute("id") for s in shown(browser, "section.paper")] == ["alpha"]
    assert shown(browser, ".shown")[0].text == "2 of 4 claims"
    chip["verified"].send_keys(Keys.SPACE)
    assert [c.get_attribute("data-verdict") for c in shown(browser, ".claim")] == ["not reproduced"]
    chip["toy"].click()
    assert shown(browser, ".claim") == []
    shown(browser, "#reset")[0].click()
    assert len(shown(browser, ".claim")) == 4
    assert {c.get_attribute("aria-pressed") for c in chip.values()} == {"true"}
    assert browser.get_log("browser") == []


def test_a_link_to_a_hidden_claim_shows_it(browser: webdriver.Chrome, checkout: Path):
    opened(browser, checkout, "desk")
    browser.find_element(By.CSS_SELECTOR, '.chip[data-value="verified"]').click()
    assert "alpha--extra" not in [c.get_attribute("id") for c in shown(browser, ".claim")]
    browser.execute_script("location.hash = 'alpha--extra'")
    WebDriverWait(browser, 20).until(lambda b: b.find_element(By.ID, "alpha--extra").is_displayed())


def test_details_open_and_figures_enlarge_by_keyboard(browser: webdriver.Chrome, checkout: Path):
    opened(browser, checkout, "desk")
    summary = browser.find_element(By.CSS_SELECTOR, "#alpha--grows summary")
    assert not shown(browser, "#alpha--grows .decides")
    summary.send_keys(Keys.ENTER)
    assert "ours.score = " in shown(browser, "#alpha--grows .decides")[0].text
    browser.find_element(By.CSS_SELECTOR, ".zoom").send_keys(Keys.ENTER)
    assert browser.execute_script("return document.querySelector('#viewer img').naturalWidth") > 100
    browser.switch_to.active_element.send_keys(Keys.ESCAPE)
    assert not shown(browser, "#viewer")


def test_commands_are_copied(browser: webdriver.Chrome, checkout: Path):
    opened(browser, checkout, "desk")
    browser.find_element(By.CSS_SELECTOR, "#alpha .how summary").click()
    button = shown(browser, "#alpha .copy")[0]
    assert "make reproduce PAPER=alpha" in button.get_attribute("aria-label")
    button.click()
    WebDriverWait(browser, 20).until(lambda _: button.text in ("copied", "selected"))


def test_it_is_readable_in_the_dark(browser: webdriver.Chrome, checkout: Path):
    opened(browser, checkout, "desk")

    def colours(scheme: str) -> tuple[str, str]:
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": scheme}]})
        found = browser.execute_script("const s = getComputedStyle(document.body); return [s.color, s.backgroundColor]")
        return tuple(found)

    light, dark = colours("light"), colours("dark")
    assert brightness(light[0]) < 80 < 200 < brightness(light[1])
    assert brightness(dark[1]) < 80 < 200 < brightness(dark[0])


def brightness(colour: str) -> float:
    numbers = [float(part) for part in colour[colour.index("(") + 1 : -1].split(",")[:3]]
    return sum(numbers) / 3

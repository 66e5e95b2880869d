"""The ten main ways through the console in Firefox: Debian's firefox-esr, driven through geckodriver.

They run with `--firefox`, which `nox -s browser -- --firefox` gives them together with both programs.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from browser.demo import HOSTILE
from browser.running import BOUND_MS, ConsoleProcess

FIREFOX: Final = "firefox-esr"


@pytest.fixture(scope="module")
def firefox(request: pytest.FixtureRequest) -> Iterator[Any]:
    """Firefox without a window."""
    if not request.config.getoption("--firefox"):
        pytest.skip("Firefox is driven with --firefox")
    from selenium import webdriver
    from selenium.webdriver.firefox.service import Service

    path = shutil.which(FIREFOX)
    driver = os.environ.get("GECKODRIVER") or shutil.which("geckodriver")
    if path is None or driver is None or not Path(driver).exists():
        pytest.fail("needs firefox-esr and geckodriver: nox -s browser -- --firefox installs both")
    options = webdriver.FirefoxOptions()
    options.binary_location = path
    options.add_argument("-headless")
    started = webdriver.Firefox(options=options, service=Service(executable_path=driver))
    started.set_page_load_timeout(BOUND_MS / 1_000)
    started.set_script_timeout(BOUND_MS / 1_000)
    yield started
    started.quit()


class Tab:
    """A tab of Firefox at the console, with waits that are bounded."""

    def __init__(self, driver: Any, url: str) -> None:
        self.driver = driver
        self.url = url

    def open(self, path: str) -> Tab:
        """Open a page."""
        self.driver.get(self.url + path)
        return self

    def find(self, selector: str) -> Any:
        """Return the first element of a selector once it is there."""
        return self.until(lambda driver: driver.find_element("css selector", selector))

    def link(self, text: str) -> Any:
        """Return a link by its text."""
        return self.until(lambda driver: driver.find_element("link text", text))

    def sees(self, words: str) -> None:
        """Return once words stand in the content."""
        self.until(lambda driver: words in driver.find_element("id", "content").text)

    def until(self, condition: Callable[[Any], Any]) -> Any:
        """Return the first true value of a condition."""
        from selenium.common.exceptions import StaleElementReferenceException
        from selenium.webdriver.support.ui import WebDriverWait

        ignored = [StaleElementReferenceException]
        return WebDriverWait(self.driver, BOUND_MS / 1_000, ignored_exceptions=ignored).until(condition)

    def run(self, script: str) -> Any:
        """Run a script as a tester, beside the page's policy."""
        return self.driver.execute_script(script)


@pytest.fixture
def tab(firefox: Any, console: ConsoleProcess) -> Tab:
    """The tab, at the console."""
    return Tab(firefox, console.url)


def test_the_first_page_leads_to_the_cluster(tab: Tab) -> None:
    tab.open("/").sees("Log directories")
    assert tab.driver.current_url.endswith("/c/local/")


def test_topics_are_searched_and_sorted(tab: Tab) -> None:
    tab.open("/c/local/topics").find("input[type=search]").send_keys("ord")
    tab.find("form.search button").click()
    tab.until(lambda driver: "q=ord" in driver.current_url)
    tab.link("Size with replicas").click()
    tab.until(lambda driver: "order=size" in driver.current_url)
    tab.sees("orders-dead")


def test_a_topic_leads_to_its_records_and_one_of_them(tab: Tab) -> None:
    tab.open("/c/local/topics/orders").sees("604800000")
    tab.link("Read its records").click()
    tab.sees("customer-")
    tab.find("table.records th a").click()
    tab.sees("Headers")


def test_records_of_hostile_values_run_nothing(tab: Tab) -> None:
    tab.open("/c/local/topics/audit/record?partition=0&offset=0").sees(HOSTILE[:20])
    assert tab.run("return window.hacked") is None


def test_a_group_shows_its_lag_and_draws_it(tab: Tab) -> None:
    tab.open("/c/local/groups")
    tab.link("billing").click()
    tab.sees("No member reads")
    tab.find("#lag-chart canvas")


def test_a_page_updates_by_itself(tab: Tab) -> None:
    tab.open("/c/local/topics").sees("payments")
    tab.run("window.seen = 0; document.addEventListener('htmx:afterRequest', () => { window.seen += 1 })")
    tab.until(lambda _: tab.run("return window.seen") > 0)


def test_the_theme_changes(tab: Tab) -> None:
    tab.open("/c/local/topics")
    before = tab.run("return getComputedStyle(document.body).backgroundColor")
    tab.find("#theme").click()
    assert tab.run("return getComputedStyle(document.body).backgroundColor") != before


def test_a_keyboard_reaches_the_content_first(tab: Tab) -> None:
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.keys import Keys

    tab.open("/c/local/topics").find("main")
    ActionChains(tab.driver).send_keys(Keys.TAB).send_keys(Keys.ENTER).perform()
    assert tab.until(lambda _: tab.run("return document.activeElement.id")) == "content"


def test_a_topic_is_created_and_deleted(tab: Tab) -> None:
    tab.open("/c/local/change/create-topic").find("[name=topic]").send_keys("from-firefox")
    tab.find("form.change button").click()
    tab.sees("What will happen")
    tab.find("form[method=post] button").click()
    tab.sees("Topic from-firefox is created")
    tab.open("/c/local/change/delete-topic?topic=from-firefox").find("[name=typed]").send_keys("from-firefox")
    tab.find("form[method=post] button").click()
    tab.sees("Topic from-firefox is deleted")


def test_a_page_is_never_wider_than_a_phone(tab: Tab) -> None:
    tab.driver.set_window_size(450, 844)  # Firefox has no window that is narrower
    for path in ("/c/local/", "/c/local/topics/orders/records", "/c/local/group?name=billing"):
        tab.open(path).find("h1")
        root = "document.documentElement"
        assert tab.run(f"return {root}.scrollWidth - {root}.clientWidth") <= 0
    tab.driver.set_window_size(1_280, 900)

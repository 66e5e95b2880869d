"""How pages behave while one looks at them: keyboard, updates, outages, addresses, hostile content."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from browser.demo import HOSTILE
from browser.running import BOUND_MS, ConsoleProcess, Running, problems_of, running

OWN_KIND = "ottla"
MORPHED = (
    "() => new Promise(done => document.addEventListener('htmx:afterSwap', () => done(true), {once: true}))"
)


@pytest.fixture
def own(tmp_path: Path) -> Iterator[tuple[Running, ConsoleProcess]]:
    """A broker and a console that a test may end."""
    with (
        running(OWN_KIND, tmp_path) as cluster,
        ConsoleProcess(cluster.servers, tmp_path / "console") as console,
    ):
        yield cluster, console


@pytest.fixture
def tab(browser: Any, own: tuple[Running, ConsoleProcess]) -> Iterator[Any]:
    """A tab of that console."""
    context = browser.new_context(base_url=own[1].url)
    context.set_default_timeout(BOUND_MS)
    yield context.new_page()
    context.close()


def focused(page: Any) -> str:
    """Return the text of the focused element, and whether its focus is to be seen."""
    return str(page.evaluate(
        "() => { const at = document.activeElement, style = getComputedStyle(at);"
        "return at.innerText.trim() + '|' + at.matches(':focus-visible') + '|' + style.outlineStyle }"
    ))  # fmt: skip


def test_a_keyboard_reaches_everything_in_the_order_of_the_page(page: Any) -> None:
    page.goto("/c/local/topics")
    reached = []
    for _ in range(16):
        page.keyboard.press("Tab")
        reached.append(focused(page))

    assert reached[0] == "To the content|true|solid"
    names = [text.partition("|")[0] for text in reached]
    assert names.index("local") < names.index("Alerts") < names.index("Cluster") < names.index("Access")
    assert all(text.endswith("|true|solid") or text.startswith("|true") for text in reached), reached


def test_the_first_link_leads_a_keyboard_to_the_content(page: Any) -> None:
    page.goto("/c/local/topics")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")

    assert page.evaluate("document.activeElement.id") == "content"
    page.keyboard.press("Tab")
    assert page.evaluate("document.querySelector('#content').contains(document.activeElement)")


def test_an_update_leaves_the_focus_where_it_is_and_what_is_typed(page: Any) -> None:
    page.goto("/c/local/topics")
    page.evaluate("window.kept = document.querySelector('main')")
    page.get_by_role("link", name="payments").focus()
    page.keyboard.press("Shift")  # the focus comes from a keyboard from here on
    page.evaluate(MORPHED)
    assert page.evaluate("document.activeElement.innerText") == "payments"

    page.get_by_label("Words in the name").fill("half a wo")
    page.evaluate(MORPHED)
    assert page.get_by_label("Words in the name").input_value() == "half a wo"
    assert page.evaluate("window.kept === document.querySelector('main')")


def test_an_update_folds_nothing_up_that_one_has_unfolded(page: Any) -> None:
    page.goto("/c/local/settings?all=1")
    page.locator("details").first.evaluate("fold => { fold.open = true }")
    page.evaluate(
        "() => { const fold = document.querySelector('details');"
        "document.querySelector('#content h1').append(' (changed, so that an update has work)');"
        "window.fold = fold }"
    )
    page.evaluate(MORPHED)

    assert page.evaluate("window.fold.open && document.contains(window.fold)")


def test_updates_wait_while_they_are_off(page: Any) -> None:
    page.goto("/c/local/topics")
    page.get_by_label("Live").uncheck()
    with page.expect_event("request", predicate=lambda request: "hx-request" in request.headers) as asked:
        page.evaluate("setTimeout(() => document.getElementById('live').click(), 6000)")
    assert page.get_by_label("Live").is_checked()
    assert asked.value.headers["hx-request"] == "true"


def test_motion_stands_still_for_those_who_want_that(browser: Any, console: ConsoleProcess) -> None:
    context = browser.new_context(base_url=console.url, reduced_motion="reduce")
    page = context.new_page()
    page.goto("/c/local/topics")

    moving = page.evaluate(
        "() => [...document.querySelectorAll('*')].filter(at => { const style = getComputedStyle(at);"
        "return style.transitionDuration !== '0s' || style.animationName !== 'none' }).length"
    )
    assert moving == 0
    context.close()


def test_back_forward_and_a_pasted_address_lead_to_the_same_view(page: Any, console: ConsoleProcess) -> None:
    page.goto("/c/local/topics")
    page.get_by_label("Words in the name").fill("ord")
    page.get_by_role("button", name="Search").click()
    page.get_by_role("link", name="Size with replicas").click()
    page.wait_for_url("**order=size**")
    address = page.url
    page.get_by_role("link", name="orders", exact=True).click()
    page.get_by_role("heading", name="Partitions").wait_for()
    page.go_back()
    page.wait_for_url(address)
    assert page.get_by_label("Words in the name").input_value() == "ord"
    page.go_forward()
    page.get_by_role("heading", name="orders").wait_for()

    other = page.context.new_page()
    other.goto(address)
    assert other.get_by_label("Words in the name").input_value() == "ord"
    assert other.locator("tbody tr").count() == 2


def test_the_theme_is_kept_and_begins_with_that_of_the_system(browser: Any, console: ConsoleProcess) -> None:
    context = browser.new_context(base_url=console.url, color_scheme="dark")
    page = context.new_page()
    page.goto("/c/local/topics")
    dark = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.get_by_role("button", name="Dark or light").press("Enter")
    light = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.goto("/c/local/groups")

    assert dark != light == page.evaluate("getComputedStyle(document.body).backgroundColor")
    context.close()


def test_what_records_hold_is_shown_and_never_run(page: Any) -> None:
    errors = problems_of(page)
    page.goto("/c/local/topics/audit/records")
    page.get_by_text("window.hacked").first.wait_for()
    page.goto("/c/local/topics/audit/record?partition=0&offset=0")
    shown = page.locator("pre.whole").nth(1).inner_text()

    assert shown.startswith(HOSTILE[:40])
    assert "\\u202e" in shown or "\\x1b" in shown, "control characters are written, not obeyed"
    assert page.evaluate("window.hacked") is None
    assert page.locator("#content img").count() == 0
    assert errors == []


def test_a_chart_of_lag_is_drawn_and_goes_on(page: Any) -> None:
    page.goto("/c/local/group?name=billing")
    page.locator("#lag-chart .uplot canvas").wait_for()
    page.evaluate("window.canvas = document.querySelector('#lag-chart canvas')")
    page.evaluate(MORPHED)

    assert page.evaluate("window.canvas === document.querySelector('#lag-chart canvas')")


def test_a_broker_that_is_killed_empties_no_page(tab: Any, own: tuple[Running, ConsoleProcess]) -> None:
    tab.goto("/c/local/topics")
    tab.get_by_role("link", name="payments").wait_for()
    own[0].cluster.kill()
    tab.get_by_text("This is the state of").wait_for()
    assert tab.get_by_role("link", name="payments").is_visible()

    own[0].cluster.start()
    tab.get_by_text("This is the state of").wait_for(state="detached")


def test_a_page_outlives_a_restart_of_the_console(tab: Any, own: tuple[Running, ConsoleProcess]) -> None:
    _, console = own
    tab.goto("/c/local/topics")
    tab.get_by_role("link", name="payments").wait_for()
    console.stop()
    tab.get_by_text("The console does not answer.").wait_for()
    assert tab.get_by_role("link", name="payments").is_visible()

    console.start()
    tab.get_by_text("The console does not answer.").wait_for(state="hidden")
    tab.get_by_role("link", name="payments").click()
    tab.get_by_role("heading", name="Partitions").wait_for()


def test_a_selection_is_not_taken_away_by_an_update(page: Any) -> None:
    page.goto("/c/local/topics")
    page.evaluate(
        "() => { const range = document.createRange();"
        "range.selectNodeContents(document.querySelector('tbody th'));"
        "getSelection().addRange(range); window.asked = 0;"
        "document.addEventListener('htmx:beforeSend', () => { window.asked += 1 }) }"
    )
    page.wait_for_function(
        "since => performance.now() - since > 6000", arg=page.evaluate("performance.now()")
    )

    assert page.evaluate("window.asked") == 0
    assert page.evaluate("getSelection().toString()") != ""

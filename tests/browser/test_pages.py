"""Each page of the console in Chromium: complete, without errors, usable by all, at all widths; each change.

The pages and changes stand in `shown_pages.py`.
"""

from __future__ import annotations

from typing import Any

import pytest
from starlette.routing import Mount, Route

from browser.running import USUAL, ConsoleProcess, Running, flaws, problems_of, violations
from browser.shown_pages import CHANGES, LOGIN_PAGES, PAGES, WITHOUT_A_PAGE, DrivenChange, ShownPage, opened
from ottla.console.app import application
from ottla.console.pages.changes import CHANGES as KNOWN_CHANGES
from ottla.console.settings import ConsoleSettings


def test_every_route_has_a_page_here() -> None:
    routes = application(ConsoleSettings(())).routes
    known = {route.path for route in routes if isinstance(route, (Route, Mount))}
    shown = {of_path(entry.route or entry.path) for entry in (*PAGES, *LOGIN_PAGES)}

    assert known - shown - WITHOUT_A_PAGE == {"/c/{cluster}/change/{change}"}


def of_path(path: str) -> str:
    """Return the route of a page's address."""
    plain = path.partition("?")[0].replace("/c/local", "/c/{cluster}")
    head, topics, rest = plain.partition("/topics/")
    if not topics or rest.startswith("{"):
        return plain
    _, slash, end = rest.partition("/")
    return f"{head}{topics}{{topic}}{slash}{end}"


def test_every_change_is_driven() -> None:
    assert {change.name for change in CHANGES} == set(KNOWN_CHANGES)


@pytest.mark.parametrize("shown", PAGES, ids=lambda shown: shown.name)
def test_a_page_is_complete_accessible_and_never_wider_than_the_window(
    page: Any, cluster: Running, axe: str, shown: ShownPage
) -> None:
    if cluster.kind not in shown.kinds:
        pytest.skip(f"not of {cluster.kind}")
    errors = problems_of(page)
    page.set_viewport_size(USUAL)
    opened(page, shown)

    assert flaws(page, axe) == []
    assert page.evaluate("window.hacked") is None
    assert errors == []


def test_every_change_shows_first_what_it_will_do_and_then_does_it(
    page: Any, cluster: Running, axe: str
) -> None:
    errors = problems_of(page)
    for change in CHANGES:
        if cluster.kind in change.kinds:
            drive(page, change, axe)
    assert errors == []


def drive(page: Any, change: DrivenChange, axe: str) -> None:
    """Fill in a change's form, look at the preview, type the name, press the button, and see what it did."""
    page.goto(f"/c/local/change/{change.name}?{change.query}")
    content = page.locator("#content")
    for name, text in change.fields.items():
        place = content.locator(f"[name={name}]:not([type=hidden])").first
        if place.evaluate("place => place.tagName") == "SELECT":
            place.select_option(text)
        else:
            place.fill(text)
    if change.fields:
        content.get_by_role("button", name="Preview").click()
    if change.unclear:
        content.get_by_text(change.unclear).first.wait_for()
        return
    content.get_by_role("heading", name="What will happen").wait_for()
    content.get_by_text(change.previews).filter(visible=True).first.wait_for()
    assert violations(page, axe) == [], change.name
    button = content.locator("form[method=post] button:not(.quiet)")
    if change.typed:
        typed = content.locator("[name=typed]")
        typed.fill("another name")
        button.click()
        content.get_by_role("alert").get_by_text(f"type {change.typed} to confirm").wait_for()
        content.locator("[name=typed]").fill(change.typed)
        button = content.locator("form[method=post] button:not(.quiet)")
    button.click()
    content.get_by_role("status").get_by_text(change.done).wait_for()
    if change.sees is not None:
        path, words = change.sees
        page.goto(path)
        content.get_by_text(words).filter(visible=True).first.wait_for()


def test_a_page_needs_no_script(browser: Any, console: ConsoleProcess) -> None:
    context = browser.new_context(base_url=console.url, java_script_enabled=False)
    page = context.new_page()
    page.goto("/c/local/topics")
    page.get_by_label("Words in the name").fill("invo")
    page.get_by_role("button", name="Search").click()

    page.wait_for_url("**/topics?q=invo*")
    assert page.locator("tbody tr").count() == 1
    context.close()

"""Each page of the console in Chromium: complete, without errors, usable by all, at all widths; each change.

The pages stand in `shown_pages.py`, the changes in `driven_changes.py`.
"""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from starlette.routing import Mount, Route

from browser.demo import becomes, held_open, run
from browser.driven_changes import CHANGES, DrivenChange
from browser.running import KINDS, USUAL, ConsoleProcess, Running, flaws, problems_of, violations
from browser.shown_pages import LOGIN_PAGES, PAGES, WITHOUT_A_PAGE, ShownPage, opened
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


def test_every_change_is_driven_to_its_effect_on_each_kind_of_cluster_or_says_why_not() -> None:
    driven = [(change.name, kind) for change in CHANGES if change.has_effect for kind in change.kinds]
    excused = [(change.name, kind) for change in CHANGES if change.unclear for kind in change.kinds]

    assert sorted(driven + excused) == sorted((name, kind) for name in KNOWN_CHANGES for kind in KINDS)
    assert {kind for _, kind in excused} == {"ottla"}, "one broker has nowhere to move anything"


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
            drive(page, cluster.servers, change, axe)
    assert errors == []


def drive(page: Any, servers: str, change: DrivenChange, axe: str) -> None:
    """Make what there is to change, drive the change, and return once its effect is there."""
    if change.prepare is not None:
        run(change.prepare(servers))
    open_form(page, change, axe)
    content = page.locator("#content")
    if change.unclear:
        content.get_by_text(change.unclear).first.wait_for()
        return
    content.get_by_role("heading", name="What will happen").wait_for()
    content.get_by_text(change.previews).filter(visible=True).first.wait_for()
    assert violations(page, axe) == [], change.name
    confirm(page, change)
    if change.effect is not None:
        run(becomes(servers, change.effect))
    if change.sees is not None:
        path, words = change.sees
        page.goto(path)
        content.get_by_text(words).filter(visible=True).first.wait_for()
    if change.misses is not None:
        path, name = change.misses
        page.goto(path)
        content.get_by_role("link", name=name, exact=True).wait_for(state="detached")


def open_form(page: Any, change: DrivenChange, axe: str) -> None:
    """Come to a change's form, through the page that shows what there is to change, and fill it in."""
    content = page.locator("#content")
    if change.link is None:
        page.goto(f"/c/local/change/{change.name}?{change.query}")
    else:
        path, words, link = change.link
        page.goto(path)
        content.get_by_text(words).filter(visible=True).first.wait_for()
        assert violations(page, axe) == [], path
        content.get_by_role("link", name=link, exact=True).first.click()
    for name, text in change.fields.items():
        place = content.locator(f"[name={name}]:not([type=hidden])").first
        if place.evaluate("place => place.tagName") == "SELECT":
            place.select_option(text)
        else:
            place.fill(text)
    if change.fields:
        content.get_by_role("button", name="Preview").click()


def confirm(page: Any, change: DrivenChange) -> None:
    """Type the name, a wrong one first, press the button, and see that it is done."""
    content = page.locator("#content")
    button = content.locator("form[method=post] button:not(.quiet)")
    if change.typed:
        content.locator("[name=typed]").fill("another name")
        button.click()
        content.get_by_role("alert").get_by_text(f"type {change.typed} to confirm").wait_for()
        content.locator("[name=typed]").fill(change.typed)
    button.click()
    content.get_by_role("status").get_by_text(change.done).wait_for()


def test_an_open_transaction_shows_who_waits_and_is_left_to_its_coordinator(
    page: Any, cluster: Running, axe: str
) -> None:
    with held_open(cluster.servers, "invoicing-2", "invoices"):
        page.goto("/c/local/transactions")
        row = page.locator("#content tbody tr").filter(has_text="invoicing-2").first
        row.get_by_text("Ongoing").wait_for()
        row.get_by_text(re.compile(r"invoices-\d")).wait_for()
        held = page.locator("#content table").last.locator("tbody tr").filter(has_text="invoicing-2")
        held.get_by_text("its producer or coordinator").wait_for()
        found = flaws(page, axe)
        link = held.get_by_role("link").first
        query = parse_qs(urlsplit(link.get_attribute("href")).query)
        partition, offset = query["partition"][0], query["offset"][0]
        page.goto(f"/c/local/change/abort-transaction?topic=invoices&partition={partition}&offset={offset}")
        page.get_by_text("is of the transactional id invoicing-2, and does not hang").wait_for()

    page.goto("/c/local/transactions")
    page.get_by_text("No transaction is open.").wait_for()
    page.get_by_text("No partition: each reader gets to the end.").wait_for()
    assert found == []


def test_a_page_needs_no_script(browser: Any, console: ConsoleProcess) -> None:
    context = browser.new_context(base_url=console.url, java_script_enabled=False)
    page = context.new_page()
    page.goto("/c/local/topics")
    page.get_by_label("Words in the name").fill("invo")
    page.get_by_role("button", name="Search").click()

    page.wait_for_url("**/topics?q=invo*")
    assert page.locator("tbody tr").count() == 1
    context.close()

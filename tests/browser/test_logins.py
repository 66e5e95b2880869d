"""The console with logins in Chromium: who gets in, who does not, and what each role sees and may do."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from argon2 import PasswordHasher

from browser.running import BOUND_MS, ConsoleProcess, Running, flaws, problems_of
from browser.shown_pages import LOGIN_PAGES, ShownPage, opened
from peers.oidc_provider import oidc_provider

PASSWORD: Final = "correct horse"
HIDDEN: Final = "•••"
BURST: Final = 10
"""Wrong passwords for a name before the next one must wait."""
_CHEAP: Final = PasswordHasher(time_cost=1, memory_cost=8, parallelism=1).hash(PASSWORD)
_USERS: Final = {
    "root": 'role = "administrator"',
    "oskar": 'role = "operator"\ntopics = ["orders*"]\ngroups = ["billing"]',
    "vera": 'role = "viewer"',
    "paul": 'role = "viewer"',
}
_MASK: Final = '[[mask]]\ntopics = ["orders*"]\nfields = ["total"]\n'


def file_of(folder: Path, issuer: str, *without: str) -> Path:
    """Write a file of logins with a user of each role, a provider, and a mask; `without` are left out."""
    path = folder / "logins.toml"
    path.touch(mode=0o600)
    users = "".join(
        f'[[user]]\nname = "{name}"\npassword = "{_CHEAP}"\n{grant}\n'
        for name, grant in _USERS.items()
        if name not in without
    )
    provider = (
        f'[oidc]\nissuer = "{issuer}"\nclient_id = "console"\n'
        f'client_secret = {{ file = "{folder}/secret" }}\n'
        'label = "Example"\n[[oidc.role]]\nvalue = "kafka-admins"\nrole = "administrator"\n'
    )
    (folder / "secret").write_text("s3cret\n")
    path.write_text(users + provider + _MASK)
    return path


@pytest.fixture(scope="module")
def issuer() -> Iterator[str]:
    """A provider that knows anna, an administrator, and eve, who has no role."""
    with oidc_provider(
        {"sub": "anna", "preferred_username": "anna", "groups": ["kafka-admins"]},
        {"sub": "eve", "preferred_username": "eve", "groups": ["staff"]},
    ) as started:
        yield started


@pytest.fixture(scope="module")
def shared_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("logins")


@pytest.fixture(scope="module")
def guarded(cluster: Running, issuer: str, shared_folder: Path) -> Iterator[ConsoleProcess]:
    """A console that wants a login."""
    logins = ("--logins", str(file_of(shared_folder, issuer)))
    with ConsoleProcess(cluster.servers, shared_folder / "console", "--allow-changes", *logins) as started:
        yield started


@pytest.fixture
def new_tab(browser: Any) -> Iterator[Callable[..., Any]]:
    """Open tabs of people who share nothing, at a console."""
    contexts = []

    def open_tab(console: ConsoleProcess, **options: Any) -> Any:
        contexts.append(browser.new_context(base_url=console.url, reduced_motion="reduce", **options))
        contexts[-1].set_default_timeout(BOUND_MS)
        return contexts[-1].new_page()

    yield open_tab
    for context in contexts:
        context.close()


@pytest.fixture
def tab(new_tab: Callable[..., Any], guarded: ConsoleProcess) -> Any:
    return new_tab(guarded)


def send(tab: Any, name: str, password: str = PASSWORD) -> None:
    """Fill in the form of the login, and send it."""
    tab.get_by_label("Name").fill(name)
    tab.get_by_label("Password").fill(password)
    tab.get_by_role("button", name="Log in", exact=True).click()


def log_in(tab: Any, name: str, path: str = "/c/local/topics") -> None:
    """Open a page as a stranger, log in, and come back to the page."""
    tab.goto(path)
    send(tab, name)
    tab.wait_for_url(f"**{path}")
    assert tab.locator("form.person b").inner_text() == name


def refusal(tab: Any) -> str:
    return str(tab.get_by_role("alert").inner_text())


@pytest.mark.parametrize("shown", LOGIN_PAGES, ids=lambda shown: shown.name)
def test_a_page_for_strangers_is_complete_and_accessible(tab: Any, axe: str, shown: ShownPage) -> None:
    errors = problems_of(tab)
    opened(tab, shown)

    assert flaws(tab, axe) == []
    assert tab.get_by_role("navigation").count() == 0
    assert errors == []


def test_a_wrong_password_is_said_and_the_right_one_leads_to_the_page(tab: Any, axe: str) -> None:
    errors = problems_of(tab)
    tab.goto("/c/local/topics?q=ord&order=size")
    send(tab, "vera", "wrong")

    assert refusal(tab) == "The name or the password is wrong."
    assert tab.get_by_label("Name").input_value() == "vera"
    assert tab.get_by_label("Password").evaluate("field => field === document.activeElement")
    assert tab.get_by_label("Password").input_value() == ""
    assert flaws(tab, axe) == []
    tab.get_by_label("Password").fill(PASSWORD)
    tab.keyboard.press("Enter")
    tab.wait_for_url("**/c/local/topics?q=ord&order=size")
    assert [text.strip() for text in tab.locator("tbody th").all_inner_texts()] == ["orders-dead", "orders"]
    assert errors == []


def test_many_wrong_passwords_lock_a_name_out_and_no_other(
    new_tab: Callable[..., Any], cluster: Running, issuer: str, tmp_path: Path, axe: str
) -> None:
    logins = str(file_of(tmp_path, issuer))
    with ConsoleProcess(cluster.servers, tmp_path / "console", "--logins", logins) as console:
        tab, other = new_tab(console), new_tab(console)
        tab.goto("/login")
        said = []
        for number in range(BURST + 1):
            send(tab, "vera", f"guess {number}")
            tab.wait_for_load_state()
            said.append(refusal(tab))
        send(tab, "vera")
        right_but_late = refusal(tab)
        found = flaws(tab, axe)
        log_in(other, "paul")
        log = (console.folder / "console.log").read_text()

    assert said[:BURST] == ["The name or the password is wrong."] * BURST
    assert re.fullmatch(r"There were too many attempts: try again in \d+ s\.", said[BURST])
    assert right_but_late.startswith("There were too many attempts")
    assert found == []
    assert "a login is refused user=vera client=127.0.0.1 reason=too many attempts" in log
    assert "guess" not in log


def test_a_login_works_without_a_script(new_tab: Callable[..., Any], guarded: ConsoleProcess) -> None:
    tab = new_tab(guarded, java_script_enabled=False)
    log_in(tab, "vera")
    tab.get_by_role("button", name="Log out").click()
    tab.get_by_role("heading", name="You are logged out").wait_for()


# --- the provider


def test_people_log_in_through_their_provider_and_out(tab: Any, axe: str) -> None:
    tab.goto("/c/local/groups")
    tab.get_by_role("link", name="Log in with Example").click()
    tab.get_by_role("button", name="anna").click()
    tab.wait_for_url("**/c/local/groups")

    assert tab.locator("form.person b").inner_text() == "anna"
    assert flaws(tab, axe) == []
    tab.get_by_role("button", name="Log out").click()
    tab.get_by_role("heading", name="You are logged out").wait_for()
    tab.goto("/c/local/groups")
    tab.wait_for_url("**/login?next=*")


def test_a_person_without_a_role_or_who_refuses_stays_outside(tab: Any, axe: str) -> None:
    tab.goto("/login")
    tab.get_by_role("link", name="Log in with Example").click()
    tab.get_by_role("button", name="eve").click()
    assert refusal(tab) == "You have no role here: ask those who run this console for one."
    assert flaws(tab, axe) == []

    tab.get_by_role("link", name="Log in with Example").click()
    tab.get_by_role("button", name="Deny").click()
    assert "begin again" in refusal(tab)  # this provider says no without the state of the login
    tab.goto("/c/local/")
    tab.wait_for_url("**/login?next=*")


# --- the end of a session


def test_a_logout_ends_all_tabs_and_the_way_back(tab: Any) -> None:
    log_in(tab, "vera")
    second = tab.context.new_page()
    second.goto("/c/local/groups")
    tab.get_by_role("button", name="Log out").click()
    tab.get_by_role("heading", name="You are logged out").wait_for()

    second.wait_for_url("**/login?next=*")  # with its next update, by itself
    tab.go_back()
    tab.wait_for_url("**/login?next=*")
    assert tab.get_by_role("link", name="orders").count() == 0
    send(second, "vera")
    second.wait_for_url("**/c/local/groups")


def test_somebody_who_is_taken_out_of_the_file_is_led_to_the_login(
    new_tab: Callable[..., Any], cluster: Running, issuer: str, tmp_path: Path
) -> None:
    logins = str(file_of(tmp_path, issuer))
    with ConsoleProcess(cluster.servers, tmp_path / "console", "--logins", logins) as console:
        tab, other = new_tab(console), new_tab(console)
        log_in(tab, "vera", "/c/local/topics?q=ord")
        log_in(other, "paul")
        file_of(tmp_path, issuer, "vera")

        tab.wait_for_url("**/login?next=%2Fc%2Flocal%2Ftopics%3Fq%3Dord")
        send(tab, "vera")
        assert refusal(tab) == "The name or the password is wrong."
        other.reload()
        assert other.locator("form.person b").inner_text() == "paul"
        file_of(tmp_path, issuer)
        other.get_by_role("link", name="payments").wait_for()


def test_a_tail_ends_with_its_session(tab: Any) -> None:
    log_in(tab, "vera", "/c/local/topics/orders/records?tail=1")
    tab.locator("#search-state").get_by_text("records").wait_for()
    ended = tab.context.new_page()
    ended.goto("/c/local/topics")
    ended.get_by_role("button", name="Log out").click()
    tab.get_by_text("or refused the search: load the page again").wait_for()


# --- roles


def names(tab: Any, path: str) -> list[str]:
    """Return the names in the first column of a list."""
    tab.goto(path)
    tab.locator("tbody th").first.wait_for()
    return [text.strip() for text in tab.locator("#content table").first.locator("th.name").all_inner_texts()]


def answer(tab: Any, path: str) -> tuple[int, str]:
    """Return the status of a page, and its words."""
    response = tab.goto(path)
    assert response is not None
    return response.status, tab.locator("#content").inner_text()


def test_a_viewer_sees_all_pages_changes_nothing_and_reads_no_masked_value(tab: Any, axe: str) -> None:
    log_in(tab, "vera")
    assert {"orders", "payments", "invoices"} <= set(names(tab, "/c/local/topics"))
    assert tab.get_by_role("link", name="Create a topic").count() == 0
    links = tab.get_by_role("navigation").get_by_role("link").all_inner_texts()
    assert {"Cluster", "Transactions", "Settings", "Access"} <= set(links)
    for change in ("create-topic", "produce?topic=orders", "delete-group?group=billing", "reassign"):
        status, words = answer(tab, f"/c/local/change/{change}")
        assert (status, "this needs the role " in words) == (403, True), change
    assert flaws(tab, axe) == []

    tab.goto("/c/local/topics/orders/record?partition=0&offset=0")
    value = tab.locator("pre.whole").nth(1).inner_text()
    assert re.search(rf'"total": *"{HIDDEN}"', value)
    assert '"city"' in value
    assert tab.get_by_role("button", name="Edit it and send it again").count() == 0


def test_an_operator_sees_and_changes_that_which_the_role_is_over(tab: Any, axe: str) -> None:
    log_in(tab, "oskar")
    assert names(tab, "/c/local/topics") == ["orders", "orders-dead"]
    links = tab.get_by_role("navigation").get_by_role("link").all_inner_texts()
    assert not {"Transactions", "Settings", "Znodes", "Access"} & set(links)
    assert flaws(tab, axe) == []
    assert names(tab, "/c/local/groups") == ["billing"]
    hidden, missing = (answer(tab, f"/c/local/topics/{topic}") for topic in ("payments", "none-such"))
    assert (hidden[0], hidden[1].replace("payments", "none-such")) == missing
    assert answer(tab, "/c/local/settings")[0] == 403
    assert answer(tab, "/c/local/change/delete-topic?topic=orders")[0] == 403

    tab.goto("/c/local/change/produce?topic=orders-dead")
    tab.locator("#content textarea[name=value]").first.fill("by oskar")
    tab.get_by_role("button", name="Preview").click()
    tab.get_by_role("heading", name="What will happen").wait_for()
    tab.locator("form[method=post] button:not(.quiet)").click()
    tab.get_by_role("status").get_by_text("The record is at offset").wait_for()


def test_an_administrator_deletes_topics_and_reads_masked_values(tab: Any) -> None:
    log_in(tab, "root")
    tab.goto("/c/local/topics/orders/record?partition=0&offset=0")
    assert HIDDEN not in tab.locator("pre.whole").nth(1).inner_text()
    tab.goto("/c/local/change/create-topic")
    tab.locator("[name=topic]").fill("of-root")
    tab.get_by_role("button", name="Preview").click()
    tab.locator("form[method=post] button:not(.quiet)").click()
    tab.get_by_role("status").get_by_text("Topic of-root is created").wait_for()
    tab.goto("/c/local/change/delete-topic?topic=of-root")
    tab.locator("[name=typed]").fill("of-root")
    tab.locator("form[method=post] button:not(.quiet)").click()
    tab.get_by_role("status").get_by_text("Topic of-root is deleted").wait_for()

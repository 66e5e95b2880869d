"""A browser, and for each kind of cluster one that runs with a console, for all tests of a session."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from browser.running import (
    KINDS,
    OF_JAVA,
    ConsoleProcess,
    Running,
    Worker,
    chromium,
    registry,
    running,
    serving_json,
)  # fmt: skip
from peers.fetched_programs import node_modules
from peers.maven import missing_tools

AXE = "axe-core@4.14.1"
HERE = Path(__file__).parent


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the choice of clusters, and of Firefox beside Chromium."""
    parser.addoption("--kinds", default="all", help=f"of which clusters pages are shown: {','.join(KINDS)}")
    parser.addoption("--firefox", action="store_true", help="drive Firefox through the main ways, too")
    parser.addoption("--site", help="a folder with the built documentation, instead of building it")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out clusters that were not asked for; what a page does while one looks needs one of them."""
    wanted = str(config.getoption("--kinds", "all")).split(",")
    kinds = KINDS if wanted == ["all"] else wanted
    items[:] = [item for item in items if item.path.parent != HERE or _is_wanted(item, kinds)]


def _is_wanted(item: pytest.Item, kinds: Sequence[str]) -> bool:
    kind = getattr(item, "callspec", None) and item.callspec.params.get("cluster")  # type: ignore[attr-defined]
    return kind is None or kind in (kinds if item.path.name == "test_pages.py" else kinds[:1])


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """Chromium, as Debian has it."""
    from playwright.sync_api import sync_playwright

    if (path := chromium()) is None:
        pytest.fail("needs Chromium: apt-get install chromium")
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        yield started
        started.close()


@pytest.fixture(scope="session")
def axe() -> str:
    """The source of axe-core, which finds what keeps people from using a page."""
    return (node_modules(AXE) / "axe-core" / "axe.min.js").read_text()


@pytest.fixture(scope="session", params=KINDS)
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A cluster of each kind, one after the other."""
    kind: str = request.param
    if kind in OF_JAVA and (missing := missing_tools()):
        pytest.skip(missing)
    with running(kind, tmp_path_factory.mktemp(kind)) as found:
        yield found


@pytest.fixture(scope="session")
def console(cluster: Running, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConsoleProcess]:
    """A console of that cluster, which allows changes, with a schema registry and a worker of Connect."""
    folder = tmp_path_factory.mktemp("console")
    with serving_json(registry()) as schemas, serving_json(Worker()) as connect:
        services = ("--schema-registry", schemas, "--connect", f"etl={connect}")
        with ConsoleProcess(cluster.servers, folder, "--allow-changes", *services) as started:
            yield started


@pytest.fixture
def page(browser: Any, console: ConsoleProcess) -> Iterator[Any]:
    """A tab of its own, with a language and a zone that are not the machine's."""
    from browser.running import BOUND_MS

    context = browser.new_context(
        base_url=console.url, locale="en-GB", timezone_id="Asia/Tokyo", reduced_motion="reduce"
    )
    context.set_default_timeout(BOUND_MS)
    yield context.new_page()
    context.close()

"""Every README and docs page does what it shows: its code is run, its output compared.

README and the tutorial are read one after the other, with one broker: what a page writes, the next
ones find there. Every other page has a broker of its own.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from ottla.broker.testing import BrokerProcess
from ottla.zookeeper.embedded import EmbeddedCoordinator
from ottla.zookeeper.testing import Background
from peers.snippets import PAGES, ROOT, blocks, run_console, run_page

TUTORIAL = ROOT / "docs" / "tutorial"
RUN_AGAIN = frozenset(
    {
        "index.md",
        "howto/choose-partitions.md",
        "howto/handle-failures.md",
        "howto/query-with-sql.md",
        "howto/reset-a-group.md",
        "howto/serialize.md",
        "howto/streams-language.md",
        "howto/tune-clients.md",
        "howto/use-on-windows.md",
        "howto/use-threads.md",
        "howto/write-handlers.md",
    }
)
"""Pages whose programs are run again with the same broker: what the first run left must not matter."""


def first_steps() -> list[Path]:
    """Return README, which ends with the first message, and the tutorial in the order of the site."""
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    tutorial = re.findall(r"^ +- (tutorial/.+\.md)$", navigation, re.MULTILINE)
    return [ROOT / "README.md", *(ROOT / "docs" / page for page in tutorial)]


def other_pages() -> Iterator[object]:
    """Give each page beside the first steps that has something to run."""
    for page in PAGES:
        if blocks(page) and page not in first_steps():
            yield pytest.param(page, id=str(page.relative_to(ROOT)))


@pytest.fixture
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with Background(EmbeddedCoordinator(tmp_path_factory.mktemp("zookeeper"))) as server:
        yield server.value.connect_string


@pytest.fixture
def broker(zookeeper: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("docs"), {"zookeeper.connect": zookeeper}) as running:
        yield running


def test_the_tutorial_is_in_the_order_of_the_site_complete() -> None:
    assert set(first_steps()) == {ROOT / "README.md", *TUTORIAL.glob("*.md")}


@pytest.mark.long
@pytest.mark.timeout(900)  # a dozen pages one after the other; each of their programs has a bound of its own
def test_the_first_steps_are_taken_with_one_broker(broker: BrokerProcess, tmp_path: Path) -> None:
    written = "$ echo hello | ottla produce letters\nProduced 1 record to letters."
    run_console(written, broker.bootstrap_servers, tmp_path)  # as README's two commands do
    for page in first_steps():
        run_page(page, broker.bootstrap_servers, tmp_path)


def test_the_programs_of_the_first_page_about_clients_can_be_run_again(
    broker: BrokerProcess, tmp_path: Path
) -> None:
    for _ in range(2):
        run_page(TUTORIAL / "produce-and-consume.md", broker.bootstrap_servers, tmp_path)


@pytest.mark.parametrize("page", list(other_pages()))
def test_the_page_does_what_it_shows(
    page: Path, broker: BrokerProcess, zookeeper: str, tmp_path: Path
) -> None:
    run_page(page, broker.bootstrap_servers, tmp_path, zookeeper=zookeeper)
    if page in {ROOT / "docs" / name for name in RUN_AGAIN}:
        run_page(page, broker.bootstrap_servers, tmp_path, zookeeper=zookeeper, only_programs=True)

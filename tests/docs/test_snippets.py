"""Every README and docs page does what it shows: its code is run, its output compared.

Each page has a broker of its own, as its reader has: pages may use the same names.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ottla.broker.testing import BrokerProcess
from ottla.zookeeper.embedded import EmbeddedCoordinator
from ottla.zookeeper.testing import Background
from peers.snippets import PAGES, ROOT, blocks, run_page


def pages() -> Iterator[object]:
    """Give each page that has something to run."""
    for page in PAGES:
        if blocks(page):
            yield pytest.param(page, id=str(page.relative_to(ROOT)))


@pytest.fixture
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with Background(EmbeddedCoordinator(tmp_path_factory.mktemp("zookeeper"))) as server:
        yield server.value.connect_string


@pytest.fixture
def broker(zookeeper: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("docs"), {"zookeeper.connect": zookeeper}) as running:
        yield running


@pytest.mark.parametrize("page", list(pages()))
def test_the_page_does_what_it_shows(
    page: Path, broker: BrokerProcess, zookeeper: str, tmp_path: Path
) -> None:
    run_page(page, broker.bootstrap_servers, tmp_path, zookeeper=zookeeper)

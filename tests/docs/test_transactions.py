"""The docs' examples of transactions run on Ottla's broker; the interop tests run them on Apache Kafka."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ottla.broker.testing import BrokerProcess
from peers.snippets import TRANSACTIONS, pages_with, run_page


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("docs")) as running:
        yield running


@pytest.mark.parametrize("page", pages_with(TRANSACTIONS))
def test_a_page_does_what_it_shows_of_transactions(page: Path, broker: BrokerProcess, tmp_path: Path) -> None:
    run_page(page, broker.bootstrap_servers, tmp_path, TRANSACTIONS)

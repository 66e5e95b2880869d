"""What the docs show and Ottla's broker does not have yet is run against Apache Kafka."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from peers.apache_kafka import ApacheKafka
from peers.snippets import PAGES, ROOT, blocks, run_page

pytestmark = pytest.mark.java

NEEDS = "needs transactions"


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApacheKafka]:
    with ApacheKafka(tmp_path_factory.mktemp("kafka"), heap="512m") as running:
        yield running


@pytest.mark.parametrize(
    "page", [pytest.param(page, id=str(page.relative_to(ROOT))) for page in PAGES if blocks(page, NEEDS)]
)
def test_the_page_does_what_it_shows_on_apache_kafka(page: Path, kafka: ApacheKafka, tmp_path: Path) -> None:
    run_page(page, kafka.bootstrap_servers, tmp_path, NEEDS)

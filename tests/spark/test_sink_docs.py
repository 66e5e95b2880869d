"""The examples of the sink's page run on Ottla's broker; those with transactions on Apache Kafka, too."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ottla.broker.testing import BrokerProcess
from peers.kraft_kafka import KraftKafka
from peers.maven import missing_tools
from peers.snippets import ROOT, blocks, run_page

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PAGE = ROOT / "docs/howto/write-topics-from-spark.md"
ANYWHERE, TRANSACTIONS = "needs Spark", "needs SparkTransactions"


def test_the_page_does_what_it_shows(spark: SparkSession, tmp_path: Path) -> None:
    assert blocks(PAGE, ANYWHERE)
    # A broker of its own: the names on the page are plain ones.
    with BrokerProcess(tmp_path / "broker") as broker:
        run_page(PAGE, broker.bootstrap_servers, tmp_path, ANYWHERE, one_program=True)


@pytest.mark.parametrize("kind", ["ottla", "kafka"])
def test_the_page_does_what_it_shows_of_transactions(spark: SparkSession, tmp_path: Path, kind: str) -> None:
    if kind == "kafka" and (missing := missing_tools()):
        pytest.skip(missing)
    assert blocks(PAGE, TRANSACTIONS)
    folder = tmp_path / "broker"
    with BrokerProcess(folder) if kind == "ottla" else KraftKafka(folder) as broker:
        run_page(PAGE, broker.bootstrap_servers, tmp_path, TRANSACTIONS, one_program=True)

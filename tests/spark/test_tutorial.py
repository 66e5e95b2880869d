"""The tutorial's page about Spark, and the package's README, do what they show."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ottla.broker.testing import BrokerProcess
from peers.snippets import PRINTED_SERVERS, ROOT, blocks, run_page

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PAGE = ROOT / "docs/tutorial/spark.md"
MARK = "needs spark"


@pytest.mark.timeout(600)
def test_the_page_does_what_it_shows(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert len(blocks(PAGE, MARK)) > 5
    declaration = re.search(r"^```toml\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert declaration is not None
    monkeypatch.chdir(tmp_path)  # the page's places are relative

    # A broker of its own: the names on the page are plain ones.
    with BrokerProcess(tmp_path / "broker") as broker:
        (tmp_path / "orders.toml").write_text(
            declaration[1].replace(PRINTED_SERVERS, broker.bootstrap_servers)
        )
        run_page(PAGE, broker.bootstrap_servers, tmp_path, MARK, timeout_s=200, one_program=True)


def test_the_readme_does_what_it_shows(spark: SparkSession, tmp_path: Path) -> None:
    page = ROOT / "packages/pipeline/README.md"
    assert blocks(page, "needs Spark")
    with BrokerProcess(tmp_path / "broker") as broker:
        run_page(page, broker.bootstrap_servers, tmp_path, "needs Spark", one_program=True)

"""The pages about pipelines do what they show."""

from __future__ import annotations

from pathlib import Path

import pytest

from ottla.broker.testing import BrokerProcess
from peers.snippets import ROOT, run_page


@pytest.mark.parametrize(
    "page", ["pipeline-logs", "pipeline-activity", "pipeline-changelog", "pipeline-alerts"]
)
@pytest.mark.timeout(300)
def test_the_page_does_what_it_shows(page: str, tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "broker") as broker:
        run_page(
            ROOT / f"docs/howto/{page}.md", broker.bootstrap_servers, tmp_path, "needs spark", timeout_s=200
        )

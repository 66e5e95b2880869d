"""Log lines with their facts, in all tests of this package."""

from __future__ import annotations

import pytest

from ottla.client.log_formats import FactsFormatter


@pytest.fixture(autouse=True)
def _caplog_shows_facts(caplog: pytest.LogCaptureFixture) -> None:
    caplog.handler.setFormatter(FactsFormatter())

"""A broker's process hands the GIL over soon: requests do not wait for the threads behind them."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from ottla.broker.config import BrokerConfig
from ottla.broker.server import cli


@pytest.fixture
def _own_interval() -> Iterator[None]:
    before = sys.getswitchinterval()
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("_own_interval")
def test_a_thread_that_wants_the_gil_gets_it_after_half_a_millisecond(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[float] = []

    async def serve(*_: object) -> None:
        seen.append(sys.getswitchinterval())

    monkeypatch.setattr(cli, "_serve", serve)
    cli._run(BrokerConfig(), uvloop=False, ready_fd=None)

    assert seen == [pytest.approx(0.0005)]

"""The program of the page about dedupe with Redis, where there is a server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ottla.broker.testing import BrokerProcess
from peers.redis import Redis, missing_redis
from peers.snippets import PRINTED_SERVERS, ROOT, blocks, run_program

PAGE = ROOT / "docs/howto/dedupe-with-redis.md"
PRINTED_REDIS = "redis://127.0.0.1:6379/0"


@pytest.fixture
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("docs")) as running:
        yield running


def test_the_page_about_redis_does_what_it_shows(broker: BrokerProcess, tmp_path: Path) -> None:
    if (missing := missing_redis()) is not None:
        pytest.skip(missing)
    (program,) = blocks(PAGE, "needs redis")
    assert PRINTED_REDIS in program.code
    with Redis(tmp_path / "redis") as server:
        code = program.code.replace(PRINTED_REDIS, server.url)
        run_program(code.replace(PRINTED_SERVERS, broker.bootstrap_servers), tmp_path, "mails.py")

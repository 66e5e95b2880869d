"""The stores, each on something that outlives it: a file, a server, a broker."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ottla.broker.testing import BrokerThread
from ottla.streams.dedupe import DedupeStore, MemoryStore, RedisStore, SqliteStore, TopicStore
from peers.dedupe_work import Clock
from peers.redis import Redis, missing_redis

MakeStore = Callable[..., DedupeStore]


@pytest.fixture
def clock() -> Clock:
    return Clock(time.time_ns() // 1_000_000)


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Redis]:
    if (missing := missing_redis()) is not None:
        pytest.skip(missing)
    with Redis(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerThread]:
    settings = {"num.partitions": "4", "group.initial.rebalance.delay.ms": "0"}
    with BrokerThread(tmp_path_factory.mktemp("broker"), settings) as running:
        yield running


@pytest.fixture(params=["memory", "sqlite", "redis", "topic"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def make_store(kind: str, clock: Clock, tmp_path: Path, request: pytest.FixtureRequest) -> MakeStore:
    """Return a function that makes stores with the same file, server or broker."""
    name = f"test-{secrets.token_hex(4)}"

    def make(**limits: Any) -> DedupeStore:
        if kind == "memory":
            return MemoryStore(clock=clock, **limits)
        if kind == "sqlite":
            return SqliteStore(tmp_path / "marks.db", clock=clock, **limits)
        if kind == "redis":
            server: Redis = request.getfixturevalue("redis_server")
            return RedisStore(server.url, name=name, clock=clock, **limits)
        running: BrokerThread = request.getfixturevalue("broker")
        return TopicStore(running.bootstrap_servers, name=name, clock=clock, **limits)

    return make

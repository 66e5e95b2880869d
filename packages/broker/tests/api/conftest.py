from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from ottla.broker.api.group_testing import BROKER, GroupServices, TopicsStub, group_services, tell
from ottla.broker.api.testing import DataPlane
from ottla.broker.cluster.metadata import MetadataCache


@pytest.fixture
def plane(tmp_path: Path) -> Iterator[DataPlane]:
    made = DataPlane(tmp_path)
    yield made
    made.logs.close()


@pytest.fixture
def topics() -> TopicsStub:
    metadata = MetadataCache(BROKER)
    tell(metadata, {"topic": 2})
    return TopicsStub(metadata)


@pytest.fixture
async def services(topics: TopicsStub) -> AsyncIterator[GroupServices]:
    async with group_services(topics) as made:
        yield made

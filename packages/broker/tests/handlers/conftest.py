from collections.abc import Iterator
from pathlib import Path

import pytest

from ottla.broker.handlers.testing import DataPlane


@pytest.fixture
def plane(tmp_path: Path) -> Iterator[DataPlane]:
    made = DataPlane(tmp_path)
    yield made
    made.logs.close()

from __future__ import annotations

import os
import sys

import pytest

EARLIER = "EARLIER_PYTHON"
"""The Python of an environment with an earlier commit; `nox -s upgrade -- REF` makes it."""


@pytest.fixture
def versions() -> dict[str, str]:
    """The Pythons of both versions, by name."""
    if EARLIER not in os.environ:
        pytest.skip("needs an earlier version beside this one: nox -s upgrade -- REF")
    return {"earlier": os.environ[EARLIER], "current": sys.executable}
